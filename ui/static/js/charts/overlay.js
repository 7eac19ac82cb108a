// What a chart shows besides its lines: declared ranges, attempts, gaps' lone points, values that are not finite,
// values outside their range, and where each run stands.

import { alpha } from "../core/theme.js";
import { keyOf } from "./lines.js";
import { xOf, xOfStep } from "./maths.js";
import { declaredRange, mains } from "./plot.js";

const ratio = () => window.devicePixelRatio || 1;

function clippedTo(u, paint) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  const margin = 3 * ratio(); // a dot at the first step is whole
  ctx.rect(bbox.left - margin, bbox.top - margin, bbox.width + 2 * margin, bbox.height + 2 * margin);
  ctx.clip();
  paint(ctx, bbox, ratio());
  ctx.restore();
}

export function drawUnder(u, chart) {
  clippedTo(u, (ctx, box, px) => {
    if (chart.view.range && !chart.log) rangeLines(u, chart, ctx, box, px);
    attemptLines(u, chart, ctx, box, px);
  });
}

function rangeLines(u, chart, ctx, box, px) {
  ctx.strokeStyle = chart.view.colors.range;
  ctx.lineWidth = px;
  ctx.setLineDash([4 * px, 4 * px]);
  for (const value of declaredRange(chart)) {
    if (value == null) continue;
    const y = Math.round(u.valToPos(value, "y", true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(box.left, y);
    ctx.lineTo(box.left + box.width, y);
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

function attemptLines(u, chart, ctx, box, px) {
  for (const run of new Set(chart.lines.map((line) => line.run))) {
    const xs = xOf(run.series, chart.view.x, run.startedAt);
    for (const attempt of run.series.attempts) {
      if (attempt.attempt <= 1) continue;
      const at = xOfStep(run.series, attempt.first_step, xs);
      if (at == null) continue;
      const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
      ctx.strokeStyle = alpha(run.color, 0.75);
      ctx.lineWidth = px;
      ctx.setLineDash([2 * px, 3 * px]);
      ctx.beginPath();
      ctx.moveTo(x, box.top);
      ctx.lineTo(x, box.top + box.height);
      ctx.stroke();
      ctx.setLineDash([]);
      attemptName(ctx, `attempt ${attempt.attempt}`, x, box, px, chart.view.colors);
    }
  }
}

// On a patch of the card's colour, and on the side of the line where there is room.
function attemptName(ctx, text, x, box, px, colors) {
  ctx.font = `${9.5 * px}px ${colors.font}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  const width = ctx.measureText(text).width;
  const left = x + 4 * px + width > box.left + box.width ? x - width - 4 * px : x + 4 * px;
  ctx.fillStyle = alpha(colors.card, 0.94);
  ctx.fillRect(left - 2 * px, box.top, width + 4 * px, 12 * px);
  ctx.fillStyle = colors.muted;
  ctx.fillText(text, left, box.top + 1 * px);
}

export function drawOver(u, chart) {
  clippedTo(u, (ctx, box, px) => {
    chart.outside = 0;
    for (const line of mains(chart)) {
      const faded = chart.view.dim && chart.view.dim !== line.run.id;
      ctx.globalAlpha = faded ? 0.16 : 1;
      lonePoints(u, line, ctx, px);
      if (chart.view.range && !chart.log) chart.outside += outsideMarks(u, chart, line, ctx, box, px);
      nonfiniteMarks(u, chart, line, ctx, box, px);
      ctx.globalAlpha = 1;
    }
  });
  u.ctx.save();
  for (const line of mains(chart)) endPoint(u, chart, line);
  u.ctx.restore();
}

// A value between two absent ones has no line to be on; sparse metrics show each of their points.
function lonePoints(u, line, ctx, px) {
  const { x, main } = line;
  const all = line.sparse && x.length < 250;
  ctx.fillStyle = line.color;
  for (let i = 0; i < main.length; i++) {
    if (main[i] == null || !(all || (main[i - 1] == null && main[i + 1] == null))) continue;
    dot(ctx, u.valToPos(x[i], "x", true), u.valToPos(main[i], "y", true), 2.2 * px);
  }
}

function dot(ctx, x, y, radius) {
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 7);
  ctx.fill();
}

function triangle(ctx, x, y, size, up) {
  const tip = up ? -size : size;
  ctx.beginPath();
  ctx.moveTo(x - size, y - tip);
  ctx.lineTo(x + size, y - tip);
  ctx.lineTo(x, y + tip);
  ctx.fill();
}

// Up for +inf, down for -inf, a cross for nan: each at the edge of the chart, since it has no height.
function nonfiniteMarks(u, chart, line, ctx, box, px) {
  const { series } = line.run;
  const points = series.nonfinite.get(keyOf(line)) || [];
  if (!points.length) return;
  const xs = xOf(series, chart.view.x, line.run.startedAt);
  ctx.fillStyle = ctx.strokeStyle = chart.view.colors.bad;
  ctx.lineWidth = 1.8 * px;
  for (const [step, kind] of points) {
    const at = xOfStep(series, step, xs);
    if (at == null) continue;
    const x = u.valToPos(at, "x", true);
    const size = 4 * px;
    if (kind === "inf") triangle(ctx, x, box.top + 7 * px, size, true);
    else if (kind === "-inf") triangle(ctx, x, box.top + box.height - 7 * px, size, false);
    else cross(ctx, x, box.top + box.height - 7 * px, size);
  }
}

function cross(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}

// A mean outside its declared range gets a ring; a minimum or maximum outside gets a tick on the line it passed.
function outsideMarks(u, chart, line, ctx, box, px) {
  const [low, high] = declaredRange(chart);
  if (low == null && high == null) return 0;
  let found = 0;
  ctx.strokeStyle = ctx.fillStyle = chart.view.colors.warn;
  ctx.lineWidth = 1.5 * px;
  const eps = 1e-9 * Math.max(1, Math.abs(low ?? 0), Math.abs(high ?? 0));
  for (let i = 0; i < line.x.length; i++) {
    const x = () => u.valToPos(line.x[i], "x", true);
    const value = line.raw[i];
    if (value != null && ((low != null && value < low - eps) || (high != null && value > high + eps))) {
      found++;
      ctx.beginPath();
      ctx.arc(x(), u.valToPos(value, "y", true), 3 * px, 0, 7);
      ctx.stroke();
      continue;
    }
    const below = low != null && line.low?.[i] != null && line.low[i] < low - eps;
    const above = high != null && line.high?.[i] != null && line.high[i] > high + eps;
    if (below || above) found++;
    if (below) triangle(ctx, x(), u.valToPos(low, "y", true) + 4 * px, 2.4 * px, false);
    if (above) triangle(ctx, x(), u.valToPos(high, "y", true) - 4 * px, 2.4 * px, true);
  }
  return found;
}

function endPoint(u, chart, line) {
  const { main } = line;
  let i = main.length - 1;
  while (i >= 0 && main[i] == null) i--;
  if (i < 0) return;
  const { ctx, bbox } = u;
  const px = ratio();
  const x = u.valToPos(line.x[i], "x", true);
  const y = u.valToPos(main[i], "y", true);
  if (x < bbox.left || x > bbox.left + bbox.width + 1 || y < bbox.top - 1 || y > bbox.top + bbox.height + 1) return;
  const weight = chart.view.dim && chart.view.dim !== line.run.id ? 0.16 : 1;
  if (line.run.running) {
    ctx.fillStyle = alpha(line.color, 0.2 * weight);
    dot(ctx, x, y, 6.5 * px);
  }
  ctx.fillStyle = alpha(line.color, weight);
  dot(ctx, x, y, 2.8 * px);
}
