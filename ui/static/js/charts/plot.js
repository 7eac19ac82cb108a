// One uPlot chart: scales, axes, colours, zoom and the shared cursor. What is drawn on top is in overlay.js.

import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { axisNumber, axisX } from "../core/format.js";
import { alpha } from "../core/theme.js";
import { quantileRange } from "./maths.js";
import { boundsOf, rangeOf } from "./lines.js";
import { drawOver, drawUnder } from "./overlay.js";

// Steps are whole: no line between two of them.
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

export function makePlot(host, chart, height) {
  const { view } = chart;
  const colors = view.colors;
  const axis = { stroke: colors.muted, font: `11px ${colors.font}`, grid: { stroke: colors.grid, width: 1 }, ticks: { show: false }, gap: 5 };
  const fmtX = axisX(view.x);
  const options = {
    width: Math.max(120, chart.width || host.clientWidth),
    height,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "telescope", setSeries: false, scales: ["x", null] },
      drag: { x: true, y: false, setScale: false },
      points: { size: 7, width: 2, stroke: (u, i) => pointColor(chart, i, colors), fill: (u, i) => (isMain(chart, i) ? colors.card : "transparent") },
      y: false,
    },
    scales: { x: { time: false, range: (u, low, high) => xRange(view, low, high) }, y: yScale(chart) },
    series: [{}, ...chart.lines.map((line) => seriesOf(line, chart))],
    bands: bandsOf(chart),
    axes: [
      { ...axis, size: 24, space: 62, incrs: view.x === "step" ? WHOLE : undefined, values: (u, splits) => splits.map(fmtX) },
      { ...axis, size: axisSize, space: 32, values: (u, splits, at, space, step) => splits.map((v) => (v == null ? "" : axisNumber(v, chart.log ? Math.abs(v) : step))) },
    ],
    hooks: {
      drawAxes: [(u) => drawUnder(u, chart)],
      draw: [(u) => drawOver(u, chart)],
      setSelect: [(u) => zoomBySelection(u, chart)],
      setCursor: [(u) => chart.onCursor?.(u)],
    },
  };
  // Drawn now and not in a microtask after the caller has returned, so that the caller can tell how long it took.
  const plot = new uPlot(options, chart.data, (made, begin) => {
    host.append(made.root);
    made.batch(begin);
  });
  plot.over.addEventListener("dblclick", () => chart.onZoom?.(null));
  plot.over.addEventListener("mouseenter", () => chart.onEnter?.(plot));
  plot.over.addEventListener("mouseleave", () => chart.onLeave?.(plot));
  return plot;
}

// As wide as the longest label, so that charts of small numbers do not waste a third of a phone's width.
function axisSize(u, values) {
  const longest = (values || []).reduce((most, value) => Math.max(most, (value || "").length), 0);
  return Math.max(34, 14 + longest * 6.2);
}

const isMain = (chart, i) => chart.lines[i - 1]?.role === "main";
const pointColor = (chart, i, colors) => (isMain(chart, i) ? chart.lines[i - 1].color : colors && "transparent");

const faded = (chart, line) => (chart.view.dim && chart.view.dim !== line.run.id ? 0.16 : 1);

function seriesOf(line, chart) {
  const base = { spanGaps: false, points: { show: false } };
  if (line.role === "main") return { ...base, stroke: () => alpha(line.color, faded(chart, line)), width: chart.big ? 2 : 1.6, dash: line.dash };
  if (line.role === "raw") return { ...base, stroke: () => alpha(line.color, 0.28 * faded(chart, line)), width: 1 };
  return { ...base, stroke: "transparent", width: 0 };
}

function bandsOf(chart) {
  const bands = [];
  chart.lines.forEach((line, i) => {
    if (!line.band) return;
    const weight = line.band === "minmax" ? 0.08 : line.single ? 0.19 : 0.12;
    bands.push({ series: [i, i + 1], fill: () => alpha(line.color, weight * faded(chart, line)) });
  });
  return bands;
}

function xRange(view, low, high) {
  if (view.zoom) return view.zoom;
  if (low == null) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function yScale(chart) {
  if (!chart.log) return { range: (u, low, high) => yRange(u, chart, low, high) };
  let smallest = Infinity;
  let positive = true;
  chart.lines.forEach((line, i) => {
    if (line.role !== "main") return;
    for (const value of chart.data[i + 1]) {
      if (value == null) continue;
      if (value <= 0) positive = false;
      if (value !== 0) smallest = Math.min(smallest, Math.abs(value));
    }
  });
  // Logarithms have no place for zero and below: with such values the axis is linear around zero instead.
  return positive ? { distr: 3 } : { distr: 4, asinh: Number.isFinite(smallest) ? smallest : 1 };
}

// Declared bounds as far as they go; the data's own where they do not, and beyond them where values lie outside.
function yRange(u, chart, low, high) {
  const { view } = chart;
  if (view.clip) [low, high] = clipped(u, chart, low, high);
  if (low == null || !Number.isFinite(low)) return [0, 1];
  const declared = view.range ? declaredRange(chart) : [null, null];
  const bottom = declared[0] == null ? low : Math.min(low, declared[0]);
  const top = declared[1] == null ? high : Math.max(high, declared[1]);
  if (bottom === 0 && top === 0) return [0, 1];
  if (bottom === top) {
    const half = Math.abs(bottom) * 0.1 || 1;
    return [bottom - half, top + half];
  }
  const pad = (top - bottom) * 0.05;
  return [bottom >= 0 && bottom - pad < 0 && declared[0] == null ? 0 : bottom - pad, top + pad];
}

function clipped(u, chart, low, high) {
  const { min, max } = u.scales.x;
  const seen = [];
  chart.lines.forEach((line, i) => {
    if (line.role !== "main" && line.role !== "raw") return;
    const values = u.data[i + 1];
    for (let j = 0; j < values.length; j++) if (values[j] != null && u.data[0][j] >= min && u.data[0][j] <= max) seen.push(values[j]);
  });
  const range = quantileRange(seen);
  return range ? [Math.max(low, range[0]), Math.min(high, range[1])] : [low, high];
}

// The hull of the declared ranges of what is drawn; a side that one of them leaves open stays open.
export function declaredRange(chart) {
  const sides = [[], []];
  for (const { entry, run } of mains(chart)) {
    const range = chart.view.normalise && boundsOf(entry, run.id) ? [0, 1] : rangeOf(entry, run.id);
    sides[0].push(range[0]);
    sides[1].push(range[1]);
  }
  const known = (side, hull) => (side.length && side.every((value) => value != null) ? hull(...side) : null);
  return [known(sides[0], Math.min), known(sides[1], Math.max)];
}

export const mains = (chart) => chart.lines.filter((line) => line.role === "main");

function zoomBySelection(u, chart) {
  const { left, width } = u.select;
  if (width > 6) chart.onZoom?.([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
}
