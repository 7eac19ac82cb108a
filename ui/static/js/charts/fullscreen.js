// One chart as large as the window, with its definition, statistics over the full data, and the data itself.

import { button, fill, h, save } from "../core/dom.js";
import { getBytes, link } from "../core/api.js";
import { number, shortName, wall } from "../core/format.js";
import { unpack } from "../core/store.js";
import { statistics } from "./maths.js";
import { buildLines } from "./lines.js";
import { makePlot } from "./plot.js";
import { definition } from "../parts/definition.js";
import { openDialog } from "../parts/dialog.js";
import { Panel } from "./panel.js";

const MAX_POINTS = 100000;
const TABLE_ROWS = 200;

export async function openFull(board, panel) {
  const { entries } = panel;
  const host = h("div", { class: "full-plot" });
  const stats = h("div", { class: "full-stats scroll" });
  const table = h("div", { class: "full-table scroll" });
  const shown = () => board.shownRuns(panel);
  const big = new Panel({ ...boardLike(board, shown), openFull: () => {}, onZoom: (range) => zoomTo(range) }, entries, { title: panel.options.title, log: panel.isLog() });
  let plot = null;
  const files = () => ({ runs: shown().map((run) => run.id).join(","), keys: big.columns().join("\n") });
  const dialog = openDialog({
    title: big.name,
    className: "full",
    label: big.key,
    extra: [
      button("PNG", () => plot.ctx.canvas.toBlob((blob) => save(blob, `${fileName(big.key)}.png`)), { icon: "down" }),
      h("a", { class: "btn", href: link("/export", files()), download: "" }, "CSV"),
      h("a", { class: "btn", href: link("/export", { ...files(), fmt: "parquet" }), download: "" }, "Parquet"),
    ],
    body: [host, h("div", { class: "full-side" }, h("section", {}, h("h3", {}, "Statistics"), stats), h("section", {}, h("h3", {}, "Definition"), entries.map(definition)), h("section", {}, h("h3", {}, "Data"), table))],
    onClose: () => plot?.destroy(),
  });
  const view = { ...board.view };
  const runs = await exactRuns(shown(), big.columns());
  const zoomTo = (range) => {
    view.zoom = range;
    const xs = plot.data[0];
    plot.setScale("x", { min: range ? range[0] : xs[0], max: range ? range[1] : xs[xs.length - 1] });
  };
  const chart = { view, log: big.isLog(), big: true, ...buildLines(entries, runs, view) };
  big.current = chart;
  Object.assign(chart, { onZoom: zoomTo, onCursor: (u) => big.showCursor(u), onEnter: () => (big.hovered = true), onLeave: () => (big.hovered = false, big.showLast()) });
  if (chart.lines.length) plot = makePlot(host, chart, Math.max(220, Math.min(520, innerHeight - 380)));
  else fill(host, h("div", { class: "nodata" }, "No value in the runs shown"));
  fill(stats, statsTable(chart));
  fill(table, dataTable(chart));
  addEventListener("resize", () => plot && dialog.open && plot.setSize({ width: host.clientWidth, height: plot.height }));
}

const boardLike = (board, shown) => ({ store: board.store, catalog: board.catalog, view: board.view, shownRuns: shown, runsOf: shown, chartHeight: () => 400, version: () => 0, watch: () => {} });
const fileName = (key) => key.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80);

// The charts on the page may be thinned; here every step counts.
async function exactRuns(runs, keys) {
  return Promise.all(runs.map(async (run) => {
    const found = unpack(await getBytes("/series", { run: run.id, keys: keys.join("\n"), max: MAX_POINTS, fmt: "f32" }));
    const columns = new Map([...found.columns].map(([key, values]) => [key, Array.from(values, (value) => (Number.isNaN(value) ? null : value))]));
    const series = { steps: Array.from(found.steps), times: Array.from(found.times), columns, attempts: found.attempts, nonfinite: new Map(Object.entries(found.nonfinite)), column: (key) => columns.get(key) };
    return { ...run, series };
  }));
}

function statsTable(chart) {
  const head = ["", "last", "mean of last 20", "mean", "std", "min", "max", "points", "non-finite"];
  const rows = chart.lines.filter((line) => line.role === "main").map((line) => {
    const s = statistics(line.raw);
    const key = line.entry.kind === "distribution" ? line.entry.stats.mean : line.entry.key;
    const odd = (line.run.series.nonfinite.get(key) || []).length;
    return h("tr", {}, h("td", {}, h("i", { class: "sw", style: `--c:${line.color}` }), label(chart, line)),
      [s.last, s.recent, s.mean, s.std, s.min, s.max].map((value) => h("td", {}, number(value))), h("td", {}, s.count), h("td", { class: odd ? "bad" : "" }, odd));
  });
  return h("table", { class: "grid-table" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Run"))))), h("tbody", {}, rows));
}

const label = (chart, line) => (new Set(chart.lines.map((one) => one.entry.key)).size > 1 ? `${line.run.label} · ${shortName(line.entry)}` : line.run.label);

function dataTable(chart) {
  const lines = chart.lines.filter((line) => line.role === "main");
  const rows = [];
  for (const line of lines) line.x.forEach((x, i) => line.raw[i] != null && rows.push([line, x, i]));
  rows.sort((a, b) => b[1] - a[1]);
  const spread = lines.some((line) => line.std);
  const when = (x) => (chart.view.x === "wall" ? wall(x, true) : number(x));
  const body = (from, to) => rows.slice(from, to).map(([line, x, i]) => h("tr", {}, h("td", {}, h("i", { class: "sw", style: `--c:${line.color}` }), label(chart, line)), h("td", {}, Number.isInteger(x) ? x : when(x)), h("td", {}, number(line.raw[i])), spread ? [line.std, line.low, line.high].map((v) => h("td", {}, number(v?.[i]))) : null));
  const tbody = h("tbody", {}, body(0, TABLE_ROWS));
  const more = rows.length > TABLE_ROWS ? button(`Show ${Math.min(2000, rows.length) - TABLE_ROWS} more rows`, () => {
    tbody.append(...body(TABLE_ROWS, 2000));
    more.remove();
  }) : null;
  return h("div", {}, h("table", { class: "grid-table" }, h("thead", {}, h("tr", {}, ["run", chart.view.x === "step" ? "step" : "x", "value", ...(spread ? ["std", "min", "max"] : [])].map((name) => h("th", { scope: "col" }, name)))), tbody), more);
}

