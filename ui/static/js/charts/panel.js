// A card with one chart: title, definition, latest values, actions. Drawn only while it is on screen.

import { fill, h, iconButton, svg } from "../core/dom.js";
import { distinctNames, duration, number, shown, wall } from "../core/format.js";
import { newestOdd } from "../core/store.js";
import { attach, at, hide } from "../parts/hint.js";
import { definition } from "../parts/definition.js";
import { buildLines, keyOf } from "./lines.js";
import { makePlot } from "./plot.js";

const VALUES_SHOWN = 4;
const LEGEND_PX = 24;
const PADDING_PX = 8;
// As in the style sheet: where nothing hovers, and on phones.
const ALWAYS_SHOWN = "(hover: none), (max-width: 900px)";

export class Panel {
  // board: {store, catalog, view, shownRuns(), watch(panel), openFull(entries), onZoom(range), onCursorStep?}
  constructor(board, entries, options = {}) {
    this.board = board;
    this.entries = entries;
    this.options = options;
    this.names = distinctNames(entries);
    this.visible = false;
    this.drawnVersion = -1;
    this.log = options.log ?? null;
    this.plot = null;
    this.values = h("div", { class: "vals" });
    this.acts = h("div", { class: "acts" });
    this.legend = h("div", { class: "lines", hidden: entries.length < 2 });
    this.mark = h("span", { class: "mark", hidden: true });
    this.body = h("div", { class: "plot", role: "img", "aria-label": this.name });
    this.element = this.card();
    this.element.panel = this;
  }

  get key() {
    return this.entries.map((entry) => entry.key).join("\n");
  }

  get name() {
    return this.options.title || [...this.names.values()].join(", ");
  }

  card() {
    const entry = this.entries[0];
    const title = h("button", { type: "button", class: "title", onclick: () => this.board.openFull(this) }, this.name);
    attach(title, () => h("div", {}, this.entries.map(definition)));
    const card = h("article", { class: `card chart ${this.entries.length > 1 ? "joined" : ""}`, tabindex: "-1", dataset: { key: this.key }, "aria-label": this.name },
      h("header", {},
        this.options.grip ? this.options.grip : null,
        h("div", { class: "head" },
          h("div", { class: "line" }, h("h3", {}, title), unitOf(this.name, entry) ? h("span", { class: "unit" }, entry.unit) : null, this.options.note ? h("span", { class: "own" }, this.options.note) : null, this.mark),
          h("div", { class: "line under" }, h("code", { class: "path", title: this.key }, this.key.replace(/\n/g, "  +  ")), this.values),
          this.legend),
        this.acts),
      this.body);
    // Buttons are shown while a card is pointed at or holds the focus; hundreds of cards need not have them before.
    if (matchMedia(ALWAYS_SHOWN).matches) this.equip();
    for (const event of ["pointerenter", "focusin"]) card.addEventListener(event, () => this.equip());
    return card;
  }

  equip() {
    if (!this.acts.hasChildNodes()) fill(this.acts, this.actions());
  }

  actions() {
    const log = iconButton("log", "Logarithmic y axis", () => {
      this.log = !this.isLog();
      log.setAttribute("aria-pressed", String(this.log));
      this.rebuild();
    }, { "aria-pressed": String(this.isLog()) });
    return [log, ...(this.options.actions?.() || []), iconButton("expand", "Full screen (f)", () => this.board.openFull(this))];
  }

  isLog() {
    return this.log ?? this.board.view.log;
  }

  columns() {
    return this.entries.flatMap((entry) => this.board.catalog.columnsOf(entry));
  }

  chart() {
    const runs = this.board.runsOf(this);
    const view = this.board.view;
    const chart = { view, log: this.isLog(), width: this.width, ...buildLines(this.entries, runs, view) };
    chart.onZoom = (range) => this.board.onZoom(range);
    chart.onCursor = (u) => this.showCursor(u);
    chart.onEnter = () => (this.hovered = true);
    chart.onLeave = () => {
      this.hovered = false;
      hide();
      this.showLast();
    };
    return chart;
  }

  // The width that a new chart will have; read before anything of the page is changed.
  measure() {
    if (!this.plot) this.width = this.room();
  }

  // The names of several metrics take their line from the plot, so that cards of one row stay alike.
  height() {
    return this.board.chartHeight() - (this.entries.length > 1 ? LEGEND_PX : 0);
  }

  draw() {
    const signature = this.signature();
    if (this.plot && signature === this.drawnSignature) {
      const fresh = this.chart();
      // Zooming or a live step keep the chart: only its columns change.
      if (fresh.lines.length === this.current.lines.length) {
        Object.assign(this.current, { data: fresh.data, lines: fresh.lines });
        this.plot.batch(() => this.plot.setData(fresh.data, true));
        return this.drawn();
      }
    }
    this.destroyPlot();
    this.current = this.chart();
    this.drawnSignature = signature;
    if (!this.current.lines.length) fill(this.body, h("div", { class: "nodata" }, this.emptyText()));
    else {
      fill(this.body);
      this.plot = makePlot(this.body, this.current, this.height());
      if (this.board.onPick) this.plot.over.addEventListener("click", () => this.pick());
    }
    this.drawn();
  }

  drawn() {
    this.drawnVersion = this.board.version();
    this.showLast();
    this.body.setAttribute("aria-label", this.summary());
    const outside = this.current.outside || 0;
    this.mark.hidden = !outside;
    this.mark.textContent = outside ? `${outside} outside range` : "";
    if (this.entries.length > 1) fill(this.legend, this.keysOfLines(), this.options.tool);
  }

  // Which line is which metric: by colour for one run, by its dashes for several.
  keysOfLines() {
    const lines = this.mains();
    const byColor = new Set(lines.map((line) => line.run.id)).size <= 1;
    return this.entries.map((entry) => {
      const line = lines.find((one) => one.entry.key === entry.key);
      if (!line) return null;
      const mark = byColor ? h("i", { class: "sw", style: `--c:${line.color}` }) : dashes(line.dash);
      return h("span", {}, mark, this.names.get(entry.key));
    });
  }

  summary() {
    const parts = this.mains().map((line) => `${line.run.label} ${shown(newest(line))}`);
    return `${this.name}: ${parts.join(", ") || "no data"}`;
  }

  emptyText() {
    const runs = this.board.shownRuns(this);
    if (!runs.length) return "No run selected";
    return runs.every((run) => run.series.loaded) ? "No value yet" : "Loading…";
  }

  // What a chart is built for: when it changes the chart is made anew.
  signature() {
    const { view } = this.board;
    const runs = this.board.shownRuns(this).map((run) => run.id + run.color + run.running).join();
    return [runs, view.x, view.normalise, view.smooth > 0, view.std, view.minmax, this.isLog(), view.themeVersion, this.board.chartHeight()].join("|");
  }

  mains() {
    return (this.current?.lines || []).filter((line) => line.role === "main");
  }

  showLast() {
    this.fillValues(this.mains().map((line) => [line, newest(line)]));
  }

  fillValues(pairs) {
    const items = pairs.slice(0, VALUES_SHOWN).map(([line, value]) => h("span", { style: `--c:${line.color}`, title: line.run.label, class: typeof value === "string" ? "odd" : null }, shown(value)));
    if (pairs.length > VALUES_SHOWN) items.push(h("span", { class: "more" }, `+${pairs.length - VALUES_SHOWN}`));
    fill(this.values, items);
  }

  showCursor(u) {
    const i = u.cursor.idx;
    if (i == null || u.cursor.left < 0) return this.hovered ? hide() : this.visible && this.showLast();
    const found = this.mains().map((line) => [line, valueNear(u, line, i)]);
    if (this.visible) this.fillValues(found.map(([line, point]) => [line, point?.value]));
    if (!this.hovered) return;
    const box = u.over.getBoundingClientRect();
    at(box.left + u.cursor.left, box.top + 4, valuesTable(this.board.view, u.data[0][i], found, this.names));
  }

  pick() {
    const i = this.plot.cursor.idx;
    if (i != null) this.board.onPick(this.plot.data[0][i]);
  }

  room() {
    return this.body.clientWidth - PADDING_PX;
  }

  resize() {
    if (this.plot && Math.abs(this.room() - this.plot.width) > 1) this.plot.setSize({ width: this.room(), height: this.height() });
  }

  rebuild() {
    this.destroyPlot();
    this.drawnVersion = -1;
    this.board.watch(this);
  }

  destroyPlot() {
    this.plot?.destroy();
    this.plot = null;
  }
}

// A unit that the name says already is not said twice; a range is for the axis to show.
const unitOf = (name, { unit }) => (unit && unit !== "0…1" && !` ${name.toLowerCase()} `.includes(` ${unit.toLowerCase()} `) ? unit : "");

const dashes = (dash) => svg("svg", { class: "dash", width: 22, height: 6, "aria-hidden": "true" }, svg("line", { x1: 0, y1: 3, x2: 22, y2: 3, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": dash.join(" ") || null }));

const lastOf = (values) => {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i];
  return null;
};

// The value of a line at the cursor; for a line with no point there, the one before it, if it is near.
function valueNear(u, line, i) {
  const x = u.data[0][i];
  let low = 0;
  let high = line.x.length - 1;
  if (high < 0 || x > line.x[high]) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (line.x[middle] <= x) low = middle;
    else high = middle - 1;
  }
  if (line.x[low] > x) return null;
  const at = line.raw[low] == null ? null : low;
  if (at == null) return null;
  return { value: line.raw[at], std: line.std?.[at], low: line.low?.[at], high: line.high?.[at] };
}

// A number, or the name of a newest value that is none.
const newest = (line) => newestOdd(line.run.series, keyOf(line)) ?? lastOf(line.raw);

function valuesTable(view, x, found, names) {
  const when = view.x === "step" ? `step ${Number.isInteger(x) ? x : x.toFixed(1)}` : view.x === "rel" ? duration(x) : wall(x, true);
  const rows = found.filter(([, point]) => point).sort((a, b) => b[1].value - a[1].value);
  return h("div", { class: "tipbox" },
    h("div", { class: "tip-x" }, when),
    h("table", {}, h("tbody", {}, rows.slice(0, 12).map(([line, point]) =>
      h("tr", {},
        h("td", {}, h("i", { class: "sw", style: `--c:${line.color}` })),
        h("td", { class: "tip-n" }, names.size > 1 ? `${names.get(line.entry.key)} · ${line.run.label}` : line.run.label),
        h("td", { class: "tip-v" }, number(point.value)),
        h("td", { class: "tip-s" }, point.std != null ? `± ${number(point.std)}` : ""),
        h("td", { class: "tip-s" }, point.low != null ? `${number(point.low)} … ${number(point.high)}` : ""))))),
    rows.length > 12 ? h("div", { class: "tip-x" }, `and ${rows.length - 12} more`) : null);
}

