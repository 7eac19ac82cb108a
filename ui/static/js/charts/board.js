// The panels of a page: fetches the columns of what is on screen, draws in slices that keep the page responsive.

import { thinnedSteps } from "../core/detail.js";
import { onTheme, colors } from "../core/theme.js";
import { xOf } from "./maths.js";

const SLICE_MS = 4;
const SETTLE_MS = 15;
const HEIGHTS = { compact: 128, normal: 172, large: 268 };

export class Board {
  constructor({ store, catalog, view, shownRuns, openFull, onZoom, onPick }) {
    Object.assign(this, { store, catalog, view, shownRuns, openFull, onZoom, onPick });
    this.panels = new Set();
    this.dirty = new Set();
    this.frame = 0;
    this.wanted = new Map();
    this.edition = 0;
    this.seen = new IntersectionObserver((entries) => this.onSeen(entries), { rootMargin: "240px 0px" });
    this.sized = new ResizeObserver(() => this.resizeSoon());
    view.colors = colors();
    view.themeVersion = 0;
    onTheme(() => {
      view.colors = colors();
      view.themeVersion++;
      this.redraw();
    });
  }

  version() {
    return `${this.store.version}:${this.edition}`;
  }

  chartHeight() {
    return HEIGHTS[this.view.density] || HEIGHTS.normal;
  }

  add(panel) {
    this.panels.add(panel);
    this.seen.observe(panel.element);
    this.sized.observe(panel.element);
    return panel;
  }

  clear() {
    for (const panel of this.panels) this.remove(panel);
  }

  remove(panel) {
    this.seen.unobserve(panel.element);
    this.sized.unobserve(panel.element);
    panel.destroyPlot();
    this.panels.delete(panel);
    this.dirty.delete(panel);
  }

  onSeen(entries) {
    for (const entry of entries) {
      const panel = entry.target.panel;
      panel.visible = entry.isIntersecting;
      if (panel.visible) this.watch(panel);
    }
  }

  resizeSoon() {
    clearTimeout(this.resizing);
    this.resizing = setTimeout(() => {
      for (const panel of this.panels) panel.resize();
    }, 60);
  }

  // The runs of a panel, each with the detail that the zoom asks for once that is here.
  runsOf(panel) {
    const columns = panel.columns();
    return this.shownRuns(panel).map((run) => {
      const { detail } = run.series;
      const near = this.stretchOf(run) && detail?.covers(this.stretchOf(run)) && detail.has(columns);
      return near ? { ...run, series: detail.within(run.series) } : run;
    });
  }

  stretchOf(run) {
    const { zoom, x } = this.view;
    return zoom ? thinnedSteps(run.series, xOf(run.series, x, run.startedAt), zoom) : null;
  }

  // Something a panel shows may have changed: fetch what it lacks, then draw it once it is its turn.
  watch(panel) {
    if (!panel.visible || panel.drawnVersion === this.version()) return;
    const whole = this.lacking(panel);
    const near = this.lackingDetail(panel);
    if (whole.length || near.length) this.fetchSoon([...whole, ...near]);
    if (!whole.length) this.drawSoon(panel);
  }

  lacking(panel) {
    const columns = panel.columns();
    return this.shownRuns(panel)
      .map((run) => ({ id: run.id, keys: columns.filter((key) => !run.series.columns.has(key)) }))
      .filter(({ keys }) => keys.length);
  }

  lackingDetail(panel) {
    if (!this.view.zoom) return [];
    const columns = panel.columns();
    return this.shownRuns(panel).flatMap((run) => {
      const stretch = this.stretchOf(run);
      const detail = stretch && run.series.detail?.covers(stretch) ? run.series.detail : null;
      const keys = stretch ? columns.filter((key) => !detail?.columns.has(key)) : [];
      return keys.length ? [{ id: run.id, keys, stretch }] : [];
    });
  }

  fetchSoon(lacking) {
    for (const { id, keys, stretch } of lacking) {
      const name = stretch ? `${id} ${stretch.from} ${stretch.to}` : id;
      const wanted = this.wanted.get(name) || { id, stretch, keys: new Set() };
      keys.forEach((key) => wanted.keys.add(key));
      this.wanted.set(name, wanted);
    }
    if (this.fetching) return;
    this.fetching = setTimeout(() => this.fetchNow(), SETTLE_MS);
  }

  async fetchNow() {
    const wanted = [...this.wanted.values()];
    this.wanted = new Map();
    try {
      await Promise.all(wanted.map(({ id, stretch, keys }) => (stretch ? this.store.refine(id, stretch, [...keys]) : this.store.need(id, [...keys]))));
    } catch (error) {
      this.onError?.(error);
      return;
    } finally {
      this.fetching = 0;
    }
    this.refresh();
  }

  drawSoon(panel) {
    this.dirty.add(panel);
    delete document.documentElement.dataset.painted;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  // Sizes are read for all charts before any is drawn: a read after a change would lay the whole page out again.
  flush() {
    this.frame = 0;
    const begun = performance.now();
    const due = [...this.dirty].filter((panel) => panel.visible && panel.element.isConnected);
    for (const panel of due) panel.measure();
    this.dirty = new Set(due);
    for (const panel of due) {
      this.dirty.delete(panel);
      panel.draw();
      if (performance.now() - begun > SLICE_MS) break;
    }
    if (this.dirty.size) this.frame = requestAnimationFrame(() => this.flush());
    else document.documentElement.dataset.painted = String(performance.now().toFixed(0));
  }

  refresh() {
    for (const panel of this.panels) this.watch(panel);
  }

  // The way of looking changed: every panel on screen is drawn again, the others when they are scrolled to.
  redraw() {
    this.edition++;
    this.refresh();
  }

  // Only the colours' weight or the window changed: paint again, compute nothing.
  repaint() {
    for (const panel of this.panels) if (panel.visible) panel.plot?.redraw(false, false);
  }

  // What is there moves at once; what is finer follows when it has come.
  zoom() {
    for (const { plot, visible } of this.panels) {
      if (!plot || !visible) continue;
      const xs = plot.data[0];
      const [min, max] = this.view.zoom || [xs[0], xs[xs.length - 1]];
      plot.setScale("x", { min, max });
    }
    this.redraw();
  }
}
