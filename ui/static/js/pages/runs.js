// Runs: what exists and what it is doing; the place from which runs are started, stopped, resumed and compared.

import { button, debounce, fill, h, iconButton } from "../core/dom.js";
import { getJson, send } from "../core/api.js";
import { age, count, duration, lastPart, middle, number, wall } from "../core/format.js";
import { Poll } from "../core/poll.js";
import { elapsed, isRunning, whyNoResume } from "../core/session.js";
import { entitle } from "../core/title.js";
import { colors } from "../core/theme.js";
import * as url from "../core/url.js";
import { checkbox, clamped, live, menu, menuItem, searchBox, segments, stateOf } from "../parts/controls.js";
import { empty, noRuns } from "../parts/empty.js";
import { openLogs } from "../parts/logs.js";
import { say } from "../parts/toast.js";
import { sparkline } from "./headline.js";
import { act, archive, describe, openCompare } from "./run_actions.js";

const STATES = [["", "All"], ["running", "Running"], ["finished", "Finished"], ["failed", "Failed"], ["stopped", "Stopped"]];
const MOST_ROWS = 300;
const HEAD = ["", "Run", "State", "Progress", "Reward", "Environment", "Model", "Started", "Took", ""];

export async function mount(main, session) {
  const page = new RunsPage(main, session);
  await page.start();
}

class RunsPage {
  constructor(main, session) {
    this.session = session;
    this.filter = url.get("q");
    this.state = url.get("state");
    this.archived = url.flag("archived");
    this.chosen = new Set(url.list("runs").filter((id) => session.row(id)));
    this.live = live();
    this.body = h("tbody");
    this.chosenBar = h("div", { class: "chosen", hidden: true });
    this.place = h("div");
    this.search = searchBox("Search, or learning_rate=1e-3", this.filter, debounce((text) => this.find(text), 120));
    const tools = h("div", { class: "tools" }, this.search, segments("State", STATES, this.state, (value) => this.choose({ state: value })), checkbox("Archived", this.archived, (on) => this.choose({ archived: on })));
    main.append(h("div", { class: "content narrow" },
      h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("span", { class: "grow" }), this.live, this.newRun()),
      h("div", { class: "run-tools" }, tools), this.chosenBar, this.place));
  }

  newRun() {
    return h("a", { class: "btn primary", href: "/new" }, "New run");
  }

  async start() {
    entitle("Runs");
    await this.readConfigs();
    this.render();
    this.poll = new Poll(() => this.beat(), (state) => this.live.show(state));
    await this.poll.now();
  }

  async beat() {
    if (await this.session.list(true)) {
      await this.readConfigs();
      this.render();
    }
    return this.session.rows.some(isRunning);
  }

  choose(values) {
    Object.assign(this, values);
    url.set({ state: this.state, archived: this.archived, q: this.filter });
    this.render();
  }

  async find(text) {
    this.filter = text;
    await this.readConfigs();
    this.choose({});
  }

  // `key=value` looks at configurations, which are only fetched once somebody asks for them.
  async readConfigs() {
    if (!this.filter.includes("=")) return;
    try {
      this.configs = (await getJson("/configs")).configs;
    } catch (error) {
      say(error.message);
    }
  }

  rows() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    return this.session.rows.filter((row) => (this.archived || !row.archived) && (!this.state || row.state === this.state) && words.every((word) => this.has(row, word)));
  }

  has(row, word) {
    const [key, value] = word.split("=");
    if (value !== undefined) return Object.entries(this.configs?.[row.id] || {}).some(([name, held]) => (name === key || name.endsWith(`.${key}`)) && same(held, value));
    return [row.id, row.label, row.name, row.state, row.model, row.algorithm, row.notes, ...(row.environments || []), ...(row.tags || [])].some((text) => String(text ?? "").toLowerCase().includes(word));
  }

  render() {
    const { session } = this;
    if (!session.rows.length) return fill(this.place, noRuns(session.root));
    const rows = this.rows();
    // Replacing rows would close an open menu and lose the focus.
    if (this.place.contains(document.activeElement) && document.activeElement.closest(".menu")) return;
    if (!rows.length) return fill(this.place, empty("No run matches", "Search words are looked for in names, states, models, environments, tags and notes; key=value in configurations."));
    fill(this.body, rows.slice(0, MOST_ROWS).map((row) => this.row(row)));
    const left = rows.length - MOST_ROWS;
    fill(this.place, h("div", { class: "card run-table scroll" }, h("table", {}, h("thead", {}, h("tr", {}, HEAD.map((name, i) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, i ? "Actions" : "Choose"))))), this.body)), left > 0 ? h("p", { class: "muted" }, `${left} older ones are not shown; search finds them.`) : null);
    this.renderChosen();
  }

  row(row) {
    const name = row.title;
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${name}`, onchange: () => this.pick(row.id, box.checked) });
    box.checked = this.chosen.has(row.id);
    const why = row.reason && row.state !== "finished" ? clamped(row.reason, { class: `why ${row.state === "failed" ? "bad" : "muted"}` }) : null;
    return h("tr", { class: row.archived ? "archived" : "", dataset: { id: row.id } },
      h("td", {}, box),
      h("td", { class: "run-cell" }, h("a", { href: url.href("/overview", { runs: row.id }), title: row.id }, name), row.attempt > 1 ? h("span", { class: "tag", title: "This run was resumed" }, `attempt ${row.attempt}`) : null, (row.tags || []).map((tag) => h("span", { class: "tag" }, tag)), why, row.notes ? h("div", { class: "notes" }, row.notes.split("\n")[0]) : null),
      h("td", {}, stateOf(row)),
      h("td", {}, progress(row)),
      h("td", {}, reward(row)),
      h("td", {}, (row.environments || []).map((env) => h("span", { class: "tag" }, env))),
      h("td", { class: "muted clip", title: row.model }, row.model ? middle(lastPart(row.model), 22) : "–", row.algorithm ? h("div", { class: "small" }, row.algorithm) : null),
      h("td", { class: "muted nowrap", title: row.created_at ? wall(row.created_at, true) : "" }, age(row.started_at || row.created_at)),
      h("td", { class: "muted nowrap" }, duration(elapsed(row))),
      h("td", {}, this.actions(row, name)));
  }

  actions(row, name) {
    const { controls } = this.session;
    const why = controls.on ? whyNoResume(row) : controls.why;
    const off = why ? { disabled: true, title: why } : {};
    const main = isRunning(row)
      ? iconButton("stop", why || `Stop ${name}`, () => act(this, row, "stop"), off)
      : iconButton("play", why || `Resume ${name}`, () => act(this, row, "resume"), off);
    const more = menu("", (close) => [
      menuItem("Logs", () => (close(), openLogs(row)), { icon: "logs" }),
      menuItem("Duplicate", () => (location.href = url.href("/new", { from: row.id })), { icon: "copy" }),
      menuItem("Rename, notes, tags, colour", () => (close(), describe(this, row)), { icon: "edit" }),
      menuItem(row.archived ? "Take out of the archive" : "Archive", () => (close(), archive(this, [row.id], !row.archived)), { icon: "archive" }),
    ], { icon: "more", title: `More for ${name}` });
    more.classList.add("bare", "right");
    more.querySelector("button").setAttribute("aria-label", `More for ${name}`);
    return h("div", { class: "row-acts" }, main, iconButton("logs", `Logs of ${name}`, () => openLogs(row)), more);
  }

  pick(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    url.set({ runs: [...this.chosen] });
    this.renderChosen();
  }

  renderChosen() {
    const ids = [...this.chosen].filter((id) => this.session.row(id));
    this.chosenBar.hidden = !ids.length;
    if (!ids.length) return;
    const compare = button("Compare configurations", () => openCompare(this.session, ids), { icon: "compare" });
    compare.disabled = ids.length !== 2;
    compare.title = ids.length === 2 ? "" : "Choose two runs";
    fill(this.chosenBar, h("strong", {}, `${count(ids.length)} chosen`), h("a", { class: "btn primary", href: url.href("/metrics", { runs: ids.join(",") }) }, ids.length > 1 ? "Overlay in Metrics" : "Open Metrics"), compare, button("Archive", () => archive(this, ids, true), { icon: "archive" }), h("span", { class: "grow" }), button("Clear", () => {
      this.chosen.clear();
      url.set({ runs: null });
      this.render();
    }, { kind: "quiet" }));
  }

  async refresh() {
    await this.session.list(true);
    this.render();
  }

  async save(id, values) {
    try {
      await send("PUT", `/about/${id}`, values);
      await this.refresh();
    } catch (error) {
      say(error.message);
    }
  }
}

const same = (held, text) => String(held).toLowerCase() === text || (held !== null && held !== "" && typeof held !== "boolean" && Number(held) === Number(text));

function progress(row) {
  const share = row.steps ? Math.min(1, (row.last_step || 0) / row.steps) : null;
  return h("div", { class: "progress" }, h("span", {}, count(row.last_step ?? 0), row.steps ? h("span", { class: "muted" }, ` / ${count(row.steps)}`) : null), share == null ? null : h("div", { class: `meter ${row.state}` }, h("i", { style: `width:${(share * 100).toFixed(1)}%` })));
}

function reward(row) {
  const value = row.latest?.reward_mean;
  return h("div", { class: "reward-cell" }, sparkline(row.sparkline || [], row.colorIndex == null ? colors().accent : colors().runs[row.colorIndex], 90, 24), h("b", {}, number(value)));
}
