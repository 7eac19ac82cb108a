// From metrics and runs to the columns of one chart: which lines, which bands, in which colour and order.

import { ema, joined, pick, pickX, presentRows, xOf } from "./maths.js";

const MOST_MADE = 400;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

// Declared range of a metric for one run, each side null when it is not declared.
export function rangeOf(entry, runId) {
  return entry.ranges?.[runId] || entry.declared || [null, null];
}

// The range that rewards are normalised by: the declared one, with the run's own extremes where a side is not declared.
export function boundsOf(entry, runId) {
  const [low, high] = entry.bounds?.[runId] || rangeOf(entry, runId);
  return entry.section === "Reward" && low != null && high != null && high > low ? [low, high] : null;
}

// → {data, lines}: data as uPlot wants it, lines[i] describes data[i + 1].
export function buildLines(entries, runs, view) {
  const tables = [];
  const lines = [];
  const many = entries.length > 1;
  runs.forEach((run) => {
    entries.forEach((entry, at) => {
      const color = many && runs.length === 1 ? view.colors.runs[at % view.colors.runs.length] : run.color;
      const dash = many && runs.length > 1 ? DASHES[at % DASHES.length] : [];
      const built = oneMetric(entry, run, view, { color, dash, bands: !many, single: runs.length === 1 });
      if (!built) return;
      tables.push(built.table);
      lines.push(...built.lines);
    });
  });
  if (!tables.length) return { data: [[]], lines: [] };
  return { data: joined(tables), lines };
}

// Of several runs on screen mostly one grows: what was made of the others is used again.
function oneMetric(entry, run, view, style) {
  const { series } = run;
  const asked = [entry.key, entry.kind, run.startedAt, view.x, view.smooth, view.std, view.minmax, view.normalise, view.skipFirst, style.bands, style.single].join("\n");
  if (!series.made || series.made.edition !== series.edition) series.made = { edition: series.edition, tables: new Map() };
  const { tables } = series.made;
  if (tables.size > MOST_MADE) tables.clear();
  if (!tables.has(asked)) tables.set(asked, makeMetric(entry, run, view, style));
  const found = tables.get(asked);
  return found && { table: found.table, lines: found.lines.map((line) => ({ ...line, run, entry, ...style })) };
}

// The key whose values a line shows.
export const keyOf = ({ entry }) => (entry.kind === "distribution" ? entry.stats.mean : entry.key);

function makeMetric(entry, run, view, style) {
  const { series } = run;
  const spread = entry.kind === "distribution" ? entry.stats : null;
  const mean = series.column(keyOf({ entry }));
  if (!mean) return null;
  const { rows, sparse, count } = presentRows(series.steps, mean, view.skipFirst);
  if (!count) return null;
  const scale = scaling(entry, run, view);
  const take = (key) => {
    const column = key && series.column(key);
    return column ? pick(column, rows).map(scale) : null;
  };
  const x = pickX(xOf(series, view.x, run.startedAt), rows);
  const raw = pick(mean, rows).map(scale);
  const main = ema(raw, view.smooth);
  const table = [x];
  const lines = [];
  const add = (values, line) => {
    table.push(values);
    lines.push({ sparse, ...line });
  };
  if (spread && style.bands) addBands(add, spread, take, main, scale, view, style);
  if (view.smooth) add(raw, { role: "raw" });
  add(main, { role: "main", raw, x, main, std: spread ? take(spread.std) : null, low: spread ? take(spread.min) : null, high: spread ? take(spread.max) : null });
  return { table, lines };
}

function scaling(entry, run, view) {
  const bounds = view.normalise ? boundsOf(entry, run.id) : null;
  if (!bounds) return (value) => value;
  const [low, high] = bounds;
  return (value) => (value == null ? null : (value - low) / (high - low));
}

function addBands(add, spread, take, main, scale, view, style) {
  const smooth = (values) => (values ? ema(values, view.smooth) : null);
  const low = smooth(take(spread.min));
  const high = smooth(take(spread.max));
  // Several min–max bands on top of each other say nothing; their numbers stay in the box under the cursor.
  if (view.minmax && style.single && low && high) {
    add(high, { role: "edge" });
    add(low, { role: "edge", band: "minmax" });
  }
  // A standard deviation is a difference of two values, so it is scaled like one.
  const std = take(spread.std);
  if (!view.std || !std) return;
  const zero = scale(0);
  const wide = smooth(std.map((value) => (value == null ? null : value - zero)));
  const within = (value, i) => (value == null ? null : Math.max(low?.[i] ?? -Infinity, Math.min(high?.[i] ?? Infinity, value)));
  add(main.map((value, i) => within(value == null || wide[i] == null ? value : value + wide[i], i)), { role: "edge" });
  add(main.map((value, i) => within(value == null || wide[i] == null ? value : value - wide[i], i)), { role: "edge", band: "std" });
}
