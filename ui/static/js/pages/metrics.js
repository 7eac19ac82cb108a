// Metrics: every metric by section and group (All), or the charts that people chose (Custom).

import { button, debounce, fill, h, iconButton } from "../core/dom.js";
import { Poll } from "../core/poll.js";
import { entitle } from "../core/title.js";
import { Board } from "../charts/board.js";
import { openFull } from "../charts/fullscreen.js";
import { live } from "../parts/controls.js";
import { noRuns, waitForRuns } from "../parts/empty.js";
import { setKeys } from "../parts/keys.js";
import { Sidebar } from "../parts/sidebar.js";
import { say } from "../parts/toast.js";
import { AllView } from "./metrics_all.js";
import { CustomView } from "./metrics_custom.js";
import { Headline } from "./headline.js";
import { readView, renderEnvironments, toolbar, writeView } from "./metrics_tools.js";

export async function mount(main, session) {
  if (!session.rows.length) return showNothing(main, session);
  const page = new MetricsPage(main, session);
  await page.start();
}

function showNothing(main, session) {
  entitle("Metrics");
  main.classList.remove("with-side");
  fill(main, h("div", { class: "content" }, noRuns(session.root)));
  waitForRuns(session);
}

class MetricsPage {
  constructor(main, session) {
    this.session = session;
    this.main = main;
    this.view = readView();
    this.body = h("div", { class: "sections" });
    this.headline = new Headline();
    this.live = live();
    this.side = new Sidebar(session, { onChange: () => this.runsChanged(), onHover: (id) => this.dim(id) });
    this.board = new Board({
      store: session.store,
      catalog: session.catalog,
      view: this.view,
      shownRuns: (panel) => (panel?.options.runs ? session.views(panel.options.runs) : session.shown()),
      openFull: (panel) => openFull(this.board, panel).catch((error) => say(error.message)),
      onZoom: (range) => this.zoom(range),
    });
    this.board.onError = (error) => this.live.show({ ok: false, error, retry: 2000 });
    this.views = { all: new AllView(this), custom: new CustomView(this) };
    this.extra = h("div", { class: "bar-extra" });
    this.tools = toolbar(this);
    this.resetZoom = button("Reset zoom", () => this.zoom(null), { kind: "accent", icon: "fit" });
    this.resetZoom.hidden = !this.view.zoom;
    this.tools.append(this.resetZoom, this.extra);
    const bar = h("div", { class: "bar" }, this.tools, h("span", { class: "bar-end" }, iconButton("link", "Copy a link to this view", () => this.copyLink()), this.live));
    main.append(h("h1", { class: "sr" }, "Metrics"), this.side.element, h("div", { class: "content" }, bar, this.headline.element, this.body));
    main.classList.add("with-side");
  }

  async start() {
    setKeys([
      ["f", "Full screen of the chart under the pointer or the focus", () => this.fullOfCurrent()],
      ["+ =", "Zoom in", () => this.zoomBy(0.5)],
      ["-", "Zoom out", () => this.zoomBy(2)],
      ["[", "Earlier", () => this.pan(-0.25)],
      ["]", "Later", () => this.pan(0.25)],
      ["r", "Reset zoom", () => this.zoom(null)],
      ["ArrowRight ArrowDown", "Next chart", () => this.move(1)],
      ["ArrowLeft ArrowUp", "Previous chart", () => this.move(-1)],
      ["c", "All or Custom", () => this.show(this.view.mode === "all" ? "custom" : "all")],
    ]);
    this.side.render();
    await this.session.catalog.load(this.ids);
    renderEnvironments(this);
    await this.show(this.view.mode);
    await this.loadShown();
    this.poll = new Poll(() => this.beat(), (state) => this.live.show(state));
    await this.poll.now();
  }

  // The runs on the page: the selected ones, and those that single charts have chosen for themselves.
  get ids() {
    return [...this.session.selected, ...this.session.also];
  }

  async loadShown() {
    await Promise.all(this.ids.map((id) => this.session.store.need(id, Headline.keys())));
    this.renderHeadline();
    this.board.refresh();
  }

  async beat() {
    const running = await this.session.beat(this.ids);
    if (this.session.lost.length) return this.leave();
    if (this.session.changed.length) {
      const fresh = this.session.changed.some((id) => this.numKeys(id));
      if (fresh) await this.reloadCatalog();
      this.board.refresh();
      this.renderHeadline();
    }
    if (this.session.listed || this.session.changed.length) this.side.render();
    return running;
  }

  // Runs of the page were removed from the disk.
  async leave() {
    if (!this.session.rows.length) {
      this.board.clear();
      this.poll.stop();
      return showNothing(this.main, this.session);
    }
    say(this.session.lost.length === 1 ? "A run of this page was removed" : `${this.session.lost.length} runs of this page were removed`);
    this.side.render();
    await this.runsChanged();
  }

  // True once after a run has gained metrics that the page does not know of.
  numKeys(id) {
    const series = this.session.store.run(id);
    const more = series.keys.length !== (series.knownKeys ?? series.keys.length);
    series.knownKeys = series.keys.length;
    return more;
  }

  async reloadCatalog() {
    if (await this.session.catalog.load(this.ids)) this.current.render();
  }

  async runsChanged() {
    this.board.edition++;
    await this.session.catalog.load(this.ids);
    renderEnvironments(this);
    this.current.render();
    await this.loadShown();
    this.poll.now();
  }

  renderHeadline() {
    const run = this.session.shown().find((one) => one.id === this.session.focus) || this.session.shown()[0];
    this.headline.render(run);
    entitle("Metrics", this.session.shown());
  }

  async show(mode) {
    this.view.mode = mode;
    this.changed();
    this.tools.mode.select(mode);
    this.current = this.views[mode];
    fill(this.extra, this.current.tools());
    await this.current.open();
  }

  // A setting changed: remember it in the address, draw again.
  changed(redraw = true) {
    writeView(this.view);
    if (redraw) this.board.redraw();
  }

  search = debounce((text) => {
    this.view.search = text;
    this.changed(false);
    this.current.render();
  }, 120);

  zoom(range) {
    this.view.zoom = range;
    this.resetZoom.hidden = !range;
    writeView(this.view);
    this.board.zoom();
  }

  // The stretch of x that is looked at, and all of it.
  window() {
    const ends = this.panels().flatMap(({ plot }) => (plot && plot.data[0].length ? [plot.data[0][0], plot.data[0].at(-1)] : []));
    const all = [Math.min(...ends), Math.max(...ends)];
    return { all, shown: this.view.zoom || all };
  }

  zoomBy(factor) {
    const { all, shown } = this.window();
    const half = ((shown[1] - shown[0]) * factor) / 2;
    if (!(half > 0)) return;
    const middle = (shown[0] + shown[1]) / 2;
    const range = [Math.max(all[0], middle - half), Math.min(all[1], middle + half)];
    this.zoom(range[1] - range[0] >= all[1] - all[0] ? null : range);
  }

  pan(share) {
    const { all, shown } = this.window();
    const size = shown[1] - shown[0];
    const from = Math.max(all[0], Math.min(all[1] - size, shown[0] + share * size));
    if (this.view.zoom) this.zoom([from, from + size]);
  }

  dim(id) {
    this.view.dim = id;
    this.board.repaint();
  }

  // Panels in the order of the page.
  panels() {
    return [...this.body.querySelectorAll(".card.chart")].map((element) => element.panel);
  }

  fullOfCurrent() {
    const element = document.querySelector(".card.chart:hover") || document.activeElement?.closest?.(".card.chart");
    const panel = element?.panel || this.panels().find((one) => one.visible);
    if (panel) this.board.openFull(panel);
  }

  move(by) {
    const all = this.panels();
    const at = all.findIndex((panel) => panel.element.contains(document.activeElement));
    const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))];
    next?.element.focus();
    next?.element.scrollIntoView({ block: "nearest" });
  }

  async copyLink() {
    await navigator.clipboard?.writeText(location.href);
    say("Link copied: it opens this view");
  }
}

