// The panels of a page: fetches the columns of what is on screen, draws in slices that keep the page responsive.

import { onTheme, colors } from "../core/theme.js";

const SLICE_MS = 9;
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

  // Something a panel shows may have changed: fetch what it lacks, then draw it once it is its turn.
  watch(panel) {
    if (!panel.visible || panel.drawnVersion === this.version()) return;
    const lacking = this.lacking(panel);
    if (lacking.length) this.fetchSoon(lacking);
    else this.drawSoon(panel);
  }

  lacking(panel) {
    const columns = panel.columns();
    return this.shownRuns()
      .map((run) => [run.id, columns.filter((key) => !run.series.columns.has(key))])
      .filter(([, keys]) => keys.length);
  }

  fetchSoon(lacking) {
    for (const [id, keys] of lacking) {
      const wanted = this.wanted.get(id) || new Set();
      keys.forEach((key) => wanted.add(key));
      this.wanted.set(id, wanted);
    }
    if (this.fetching) return;
    this.fetching = setTimeout(() => this.fetchNow(), 15);
  }

  async fetchNow() {
    const wanted = this.wanted;
    this.wanted = new Map();
    try {
      await Promise.all([...wanted].map(([id, keys]) => this.store.need(id, [...keys])));
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
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = 0;
    const begun = performance.now();
    for (const panel of this.dirty) {
      this.dirty.delete(panel);
      if (panel.visible && panel.element.isConnected) panel.draw();
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

  zoom() {
    for (const panel of this.panels) {
      const plot = panel.plot;
      if (!plot) continue;
      const xs = plot.data[0];
      const [min, max] = this.view.zoom || [xs[0], xs[xs.length - 1]];
      plot.setScale("x", { min, max });
    }
  }
}
