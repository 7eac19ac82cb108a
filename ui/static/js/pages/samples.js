// The page of samples: step, filters, groups at the left, the chosen sample at the right.

import { button, debounce, fill, h, iconButton } from "../core/dom.js";
import { getJson, link } from "../core/api.js";
import { count } from "../core/format.js";
import * as url from "../core/url.js";
import { Panel } from "../charts/panel.js";
import { empty } from "../parts/empty.js";
import { FocusPage } from "../parts/focus_page.js";
import { setKeys } from "../parts/keys.js";
import { say } from "../parts/toast.js";
import { askBias, biasCard, histogramCard, outcomeCard } from "./sample_cards.js";
import { filterBar } from "./sample_filters.js";
import { groupList } from "./sample_groups.js";
import { openSideBySide, showSample } from "./sample_detail.js";

const PAGE = 40;
const CHARTS = ["reward", "tokens_completion"];
const FILTERS = ["outcome", "env", "stop", "tag", "search", "low", "high", "shortest", "longest", "sort", "desc", "by"];

export class SamplesPage {
  constructor(main, session, kind) {
    Object.assign(this, { session, kind });
    this.filters = Object.fromEntries(FILTERS.map((name) => [name, url.get(name)]));
    this.filters.outcome = url.get("outcome") === "all" ? "" : url.get("outcome", kind.fallback);
    this.step = Number(url.get("step")) || 0;
    this.followed = !url.get("step");
    this.offset = Number(url.get("offset")) || 0;
    this.sampleId = url.get("sample") ? Number(url.get("sample")) : null;
    this.stepBar = h("div", { class: "step-bar" });
    this.frame = new FocusPage(main, session, { title: kind.title, open: (run) => this.open(run), beat: (run, changed) => this.beat(run, changed), tools: this.stepBar });
    this.charts = h("div", { class: "contents" });
    this.summary = h("div", { class: "contents" });
    this.filterPlace = h("div", { class: "filters" });
    this.groups = h("div", { class: "groups-list" });
    this.detail = h("aside", { class: "detail card", "aria-label": "Sample" });
    this.board = this.frame.makeBoard({ density: "compact", onPick: (x) => this.goTo(Math.round(x)) });
  }

  async start() {
    setKeys([
      ["ArrowLeft", "Earlier step", () => this.goTo(this.step - 1)],
      ["ArrowRight", "Later step", () => this.goTo(this.step + 1)],
      ["ArrowDown j", "Next sample", () => this.nextSample(1)],
      ["ArrowUp k", "Previous sample", () => this.nextSample(-1)],
    ]);
    await this.frame.start();
  }

  async open(run) {
    this.run = run;
    await this.session.store.need(run.id, this.kind.columns?.(this) || []);
    this.renderCharts();
    fill(this.frame.body, h("h2", { class: "sr" }, "This step"), h("div", { class: `samples-top ${this.kind.discarded ? "discarded" : ""}`, dataset: { density: "compact" } }, this.charts, this.summary), this.filterPlace, h("div", { class: "samples-main" }, this.groups, this.detail));
    if (this.newest == null) return this.nothingYet();
    this.step = this.followed || this.step > this.newest ? this.newest : this.nearest(this.step, 0);
    if (this.kind.discarded) askBias(this); // counted while the groups are fetched
    await this.load();
  }

  renderCharts() {
    this.board.clear();
    const { byKey } = this.session.catalog;
    const plain = CHARTS.filter((key) => byKey.has(key)).map((key) => ({ entries: [byKey.get(key)] }));
    const charts = this.kind.charts ? this.kind.charts(this) : plain;
    fill(this.charts, charts.map(({ entries, title }) => this.board.add(new Panel(this.board, entries, { title })).element));
  }

  // Steps that have samples: all of them, or those that were evaluated.
  get steps() {
    return this.kind.steps ? this.kind.steps(this) : null;
  }

  get newest() {
    const { steps } = this;
    return steps ? steps.at(-1) : this.run.series.lastStep || null;
  }

  get oldest() {
    const { steps } = this;
    return steps ? steps[0] : 1;
  }

  // The step wanted, or the nearest one that has samples in the direction of travel.
  nearest(step, by) {
    const { steps } = this;
    if (!steps) return Math.max(1, Math.min(this.newest, step));
    if (by < 0) return steps.filter((one) => one <= step).pop() ?? steps[0];
    if (by > 0) return steps.find((one) => one >= step) ?? this.newest;
    return steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), this.newest);
  }

  nothingYet() {
    fill(this.frame.body, this.kind.nothingYet ? this.kind.nothingYet(this) : empty("No step yet", "Samples appear here when the first step of this run has been trained."));
    this.waiting = true;
  }

  async beat(run, changed) {
    if (!changed) return;
    if (this.waiting) {
      this.waiting = false;
      return this.open(run);
    }
    this.board.refresh();
    if (this.followed) await this.goTo(this.newest, true);
    else this.renderStepBar();
  }

  async goTo(step, follow = false) {
    const next = this.nearest(step, Math.sign(step - this.step) * (Math.abs(step - this.step) === 1));
    if (next === this.step && (!follow || this.followed)) return this.renderStepBar();
    this.step = next;
    this.followed = follow;
    this.offset = 0;
    await this.load();
  }

  change(values) {
    Object.assign(this.filters, values);
    if (this.kind.evals && "env" in values) this.renderCharts();
    this.offset = 0;
    return this.load();
  }

  changeSoon = debounce((values) => this.change(values), 220);

  async load() {
    const { filters, kind } = this;
    url.set({ ...filters, outcome: filters.outcome === kind.fallback ? null : filters.outcome || "all", step: this.followed ? null : this.step, offset: this.offset || null, sample: this.sampleId });
    this.renderStepBar();
    const ticket = (this.ticket = {});
    try {
      const { desc, ...rest } = filters;
      const page = await getJson("/groups", { run: this.run.id, step: this.step, ...rest, descending: desc || null, offset: this.offset, limit: PAGE });
      // An answer that comes after a newer question is not shown.
      if (ticket !== this.ticket) return;
      this.page = page;
      this.render();
    } catch (error) {
      fill(this.groups, h("p", { class: "bad pad" }, error.message));
    }
  }

  render() {
    const { page } = this;
    const range = (env) => this.rangeOf(env);
    fill(this.summary, histogramCard(page, range, (low, high) => this.change({ low, high })), this.kind.discarded ? biasCard(this) : outcomeCard(page));
    filterBar(this);
    const ids = page.groups.flatMap((group) => group.samples.map((sample) => sample.sample_id));
    if (!ids.includes(this.sampleId)) this.sampleId = ids[0] ?? null;
    fill(this.groups, this.pager(), page.groups.length ? groupList(page.groups, range, this) : this.nothing(), page.groups.length > 6 ? this.pager() : null);
    this.showDetail();
  }

  nothing() {
    return empty("Nothing here", this.page.num_samples ? "No group on this page." : this.kind.nothing);
  }

  // Declared range of what samples are coloured by, for one environment; its observed sides where it has none.
  rangeOf(env) {
    const { byKey } = this.session.catalog;
    const { by } = this.filters;
    const entry = by ? byKey.get(`${env}/${by}`) || byKey.get(by) : byKey.get(`reward/${env}/reward`) || byKey.get("reward");
    const declared = entry?.ranges?.[this.run.id] || entry?.declared || [null, null];
    const observed = entry?.range || [null, null];
    const values = by ? this.page.groups.flatMap((group) => group.samples.map((sample) => sample.value)).filter((value) => typeof value === "number") : this.page.rewards[env] || [];
    const low = declared[0] ?? observed[0] ?? (values.length ? Math.min(...values) : 0);
    const high = declared[1] ?? observed[1] ?? (values.length ? Math.max(...values) : 1);
    return { low, high: high > low ? high : low + 1, declared: declared[0] != null || declared[1] != null, invert: Boolean(entry?.invert) };
  }

  pager() {
    const { page } = this;
    const end = Math.min(page.num_groups, this.offset + PAGE);
    const go = (offset) => () => {
      this.offset = offset;
      this.load();
    };
    const back = iconButton("left", "Previous groups", go(Math.max(0, this.offset - PAGE)));
    const next = iconButton("right", "Next groups", go(this.offset + PAGE));
    back.disabled = this.offset === 0;
    next.disabled = end >= page.num_groups;
    return h("div", { class: "pager" }, h("span", { class: "muted" }, page.num_groups ? `Groups ${count(this.offset + 1)}–${count(end)} of ${count(page.num_groups)}, ${count(page.num_samples)} samples` : "No group"), h("span", { class: "grow" }), h("a", { class: "quiet-link", href: link("/samples_file", { run: this.run.id, step: this.step, outcome: this.filters.outcome }), download: "" }, "JSON lines"), back, next);
  }

  renderStepBar() {
    const [first, last] = [this.oldest, this.newest];
    const input = h("input", { type: "number", min: first, max: last, "aria-label": "Step", onchange: () => this.goTo(Number(input.value)) });
    input.value = this.step;
    const slider = h("input", { type: "range", min: first, max: Math.max(first, last), "aria-label": "Step slider", oninput: () => ((input.value = slider.value), this.slide(Number(slider.value))) });
    slider.value = this.step;
    const move = (name, label, step, off) => {
      const element = iconButton(name, label, () => this.goTo(step));
      element.disabled = off;
      return element;
    };
    const follow = button("Latest", () => this.goTo(last, true), { "aria-pressed": String(this.followed), kind: this.followed ? "accent" : "", title: "Stay at the newest step" });
    // The slider must not be replaced while it is held.
    if (this.stepBar.contains(document.activeElement) && document.activeElement.type === "range") return;
    fill(this.stepBar, h("span", { class: "muted" }, "Step"), move("first", "First step", first, this.step <= first), move("left", "Earlier step (←)", this.step - 1, this.step <= first), input, h("span", { class: "muted" }, `of ${count(last)}`), move("right", "Later step (→)", this.step + 1, this.step >= last), slider, follow);
  }

  slide = debounce((step) => this.goTo(step), 160);

  nextSample(by) {
    const ids = this.page?.groups.flatMap((group) => group.samples.map((sample) => sample.sample_id)) || [];
    const at = ids.indexOf(this.sampleId);
    const next = ids[Math.max(0, Math.min(ids.length - 1, at + by))];
    if (next != null) this.chooseSample(next);
  }

  chooseSample(id) {
    this.sampleId = id;
    url.set({ sample: id });
    for (const cell of this.groups.querySelectorAll(".cell")) cell.setAttribute("aria-pressed", String(Number(cell.dataset.id) === id));
    this.groups.querySelector('.cell[aria-pressed="true"]')?.scrollIntoView({ block: "nearest" });
    this.showDetail();
  }

  async showDetail() {
    this.detail.hidden = this.sampleId == null;
    if (this.sampleId == null) return;
    const asked = this.sampleId;
    const known = `${this.run.id}/${this.step}/${asked}`;
    if (this.shownSample === known) return;
    try {
      const sample = await getJson("/sample", { run: this.run.id, step: this.step, sample_id: asked, outcome: this.kind.evals ? "eval" : null });
      if (asked !== this.sampleId) return;
      this.shownSample = known;
      showSample(this.detail, sample, this);
    } catch (error) {
      fill(this.detail, h("p", { class: "bad pad" }, error.message));
    }
  }

  pin(sample) {
    if (!this.pinned || this.pinned.sample_id === sample.sample_id) {
      this.pinned = sample;
      return say("Kept for comparison: choose another sample, of any step, and press Compare", null);
    }
    openSideBySide(this, this.pinned, sample);
  }
}
