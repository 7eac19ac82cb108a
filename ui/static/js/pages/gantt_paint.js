// How the bars of time look. Only what lies in the window is drawn.

import { duration } from "../core/format.js";
import { colors } from "../core/theme.js";
import { KIND_COLORS } from "./gantt_colors.js";

export const LABELS = 118;
export const TOP = 26;
export const PAD = 10;

export function paint(gantt) {
  const { canvas, height, width } = gantt;
  const ratio = window.devicePixelRatio || 1;
  const look = colors();
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.font = `11.5px ${look.font}`;
  ctx.textBaseline = "middle";
  drawRows(gantt, ctx, look);
  ctx.save();
  ctx.beginPath();
  ctx.rect(LABELS, 0, width, height);
  ctx.clip();
  drawSteps(gantt, ctx, look);
  drawBars(gantt, ctx, look);
  ctx.restore();
}

function drawRows(gantt, ctx, look) {
  for (const row of gantt.rows) {
    ctx.fillStyle = look.lane;
    ctx.fillRect(LABELS, row.y, gantt.width, row.height);
    ctx.fillStyle = look.soft;
    if (row.name) ctx.fillText(short(ctx, row.name), 4, row.y + Math.max(6, Math.min(row.height, 22) / 2));
  }
}

function drawSteps(gantt, ctx, look) {
  for (const step of gantt.data.steps) {
    const x = Math.round(gantt.x(step.start_s)) + 0.5;
    const end = gantt.x(step.end_s);
    if (end < LABELS || x > LABELS + gantt.width) continue;
    ctx.strokeStyle = look.range;
    ctx.globalAlpha = 0.6;
    ctx.beginPath();
    ctx.moveTo(x, 4);
    ctx.lineTo(x, gantt.height - PAD);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.fillStyle = look.muted;
    const text = `step ${step.step}  ${duration(step.end_s - step.start_s)}`;
    const left = Math.max(x, LABELS) + 6;
    if (end - left > 40) ctx.fillText(end - left > ctx.measureText(text).width ? text : String(step.step), left, 12);
  }
}

function drawBars(gantt, ctx, look) {
  const { data } = gantt;
  const sums = new Map();
  for (let i = 0; i < data.start.length; i++) {
    if (data.end[i] < gantt.from || data.start[i] > gantt.to || gantt.hidden.has(data.kind[i])) continue;
    const row = gantt.rows[gantt.rowOf[data.lane[i]]];
    if (row.kind === "sum") {
      if (!sums.has(row)) sums.set(row, []);
      sums.get(row).push(i);
      continue;
    }
    drawBar(gantt, ctx, look, i, row);
  }
  for (const [row, bars] of sums) drawBusy(gantt, ctx, row, bars);
}

function drawBar(gantt, ctx, look, i, row) {
  const { data } = gantt;
  const left = gantt.x(data.start[i]);
  const width = Math.max(0.8, gantt.x(data.end[i]) - left - 0.4);
  const inset = row.height > 12 ? 2 : row.height > 6 ? 0.5 : 0;
  ctx.fillStyle = KIND_COLORS[data.kind[i] % KIND_COLORS.length];
  ctx.globalAlpha = gantt.hover === -1 || gantt.hover === i ? 1 : 0.6;
  ctx.beginPath();
  ctx.roundRect(left, row.y + inset, width, row.height - 2 * inset, Math.min(3, width / 2, row.height / 4));
  ctx.fill();
  ctx.globalAlpha = 1;
  if (i === gantt.chosen) {
    ctx.strokeStyle = look.text;
    ctx.lineWidth = 1.5;
    ctx.stroke();
  }
}

// Share of the slots that were busy, in columns of two pixels.
function drawBusy(gantt, ctx, row, bars) {
  const { data } = gantt;
  const columns = Math.ceil(gantt.width / 2);
  const change = new Float64Array(columns + 2);
  const column = (time) => Math.max(0, Math.min(columns, ((time - gantt.from) / (gantt.to - gantt.from)) * columns));
  for (const i of bars) {
    change[Math.floor(column(data.start[i]))] += 1;
    change[Math.ceil(column(data.end[i]))] -= 1;
  }
  const slots = new Set(data.lane.filter((lane) => gantt.rows[gantt.rowOf[lane]] === row)).size || 1;
  ctx.fillStyle = KIND_COLORS[data.kind[bars[0]]];
  let busy = 0;
  for (let i = 0; i < columns; i++) {
    busy += change[i];
    const size = Math.min(1, busy / slots) * row.height;
    ctx.fillRect(LABELS + i * 2, row.y + row.height - size, 2, size);
  }
}

function short(ctx, text) {
  if (ctx.measureText(text).width <= LABELS - 12) return text;
  let end = text.length;
  while (end > 1 && ctx.measureText(`${text.slice(0, end)}…`).width > LABELS - 12) end--;
  return `${text.slice(0, end)}…`;
}
