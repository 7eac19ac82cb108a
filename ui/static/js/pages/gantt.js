// Bars of time on one canvas: only what lies in the window is drawn. Wheel and drag move it, so do the keys.

import { fill, h } from "../core/dom.js";
import { duration, pretty } from "../core/format.js";
import { colors, onTheme } from "../core/theme.js";
import { at, hide } from "../parts/hint.js";
import { listen } from "./gantt_input.js";

// In the order of kinds that the server names; distinct in lightness as well as in hue.
export const KIND_COLORS = ["#4d7cf3", "#23a07a", "#a9b2c0", "#8d99ab", "#7388a8", "#3f8ecb", "#8a6fe0", "#b57edc", "#5fb0b7", "#e8863a", "#d5a615", "#cf4a5e", "#e0808d", "#6b7a90", "#b957c9"];
const LABELS = 118;
const TOP = 26;
const PAD = 10;

export class Gantt {
  constructor() {
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline. Arrow keys pan, plus and minus zoom, r shows the whole stretch." });
    this.detail = h("div", { class: "gantt-detail", role: "status" });
    this.element = h("div", { class: "gantt" }, this.canvas, this.detail);
    this.hidden = new Set();
    this.compact = false;
    this.chosen = -1;
    this.hover = -1;
    listen(this);
    onTheme(() => this.draw());
  }

  show(data) {
    const same = this.data && this.data.from === data.from && this.data.to === data.to;
    this.data = data;
    this.begin = Math.min(...data.steps.map((step) => step.start_s), ...data.start.slice(0, 1), Infinity);
    let end = -Infinity;
    for (let i = 0; i < data.start.length; i++) {
      if (data.start[i] < this.begin) this.begin = data.start[i];
      if (data.end[i] > end) end = data.end[i];
    }
    for (const step of data.steps) end = Math.max(end, step.end_s);
    this.end = Number.isFinite(end) ? end : this.begin + 1;
    if (!Number.isFinite(this.begin)) [this.begin, this.end] = [0, 1];
    this.chosen = -1;
    fill(this.detail);
    this.layout();
    if (!same || this.from == null) this.reset();
    else this.draw();
  }

  // Slots can be many: their rows are thin. Folded, all slots share one row of how many were busy.
  layout() {
    const { lanes } = this.data;
    this.rows = [];
    let y = TOP;
    const add = (name, height, indices, kind) => {
      this.rows.push({ name, y, height, kind });
      for (const i of indices) this.rowOf[i] = this.rows.length - 1;
      y += height + (height > 12 ? 5 : 1);
    };
    this.rowOf = new Array(lanes.length);
    for (const [prefix, title] of [["slot ", "Generation"], ["reward ", "Rewards"]]) {
      const mine = lanes.map((_, i) => i).filter((i) => lanes[i].startsWith(prefix));
      if (!mine.length) continue;
      if (this.compact) add(`${title} (${mine.length})`, 34, mine, "sum");
      else mine.forEach((lane, k) => add(k ? "" : `${title} (${mine.length})`, mine.length > 48 ? 4 : mine.length > 20 ? 7 : mine.length > 10 ? 11 : 17, [lane], "slot"));
      y += 7;
    }
    lanes.forEach((name, i) => this.rowOf[i] == null && add(name, 22, [i], "lane"));
    this.height = y + PAD;
  }

  // Every slot has a row of its own while rows are still apart; more are folded until somebody asks for them.
  get numSlots() {
    return this.data ? this.data.lanes.filter((lane) => lane.startsWith("slot ")).length : 0;
  }

  setCompact(on) {
    this.compact = on;
    if (!this.data) return;
    this.layout();
    this.draw();
  }

  toggle(kind) {
    if (this.hidden.has(kind)) this.hidden.delete(kind);
    else this.hidden.add(kind);
    this.draw();
    return !this.hidden.has(kind);
  }

  reset() {
    [this.from, this.to] = [this.begin, this.end];
    this.draw();
  }

  goToStep(step) {
    const window = this.data.steps.find((one) => one.step === step);
    if (!window) return;
    const margin = (window.end_s - window.start_s) * 0.03;
    [this.from, this.to] = [window.start_s - margin, window.end_s + margin];
    this.draw();
    this.canvas.focus();
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.move(this.from + by, this.to + by);
  }

  zoomBy(factor, around = (this.from + this.to) / 2) {
    const size = Math.max(1e-4, (this.to - this.from) * factor);
    const left = ((around - this.from) / (this.to - this.from)) * size;
    this.move(around - left, around - left + size);
  }

  move(from, to) {
    const size = Math.min(to - from, this.end - this.begin);
    from = Math.max(this.begin, Math.min(this.end - size, from));
    [this.from, this.to] = [from, from + size];
    this.draw();
  }

  get width() {
    return this.canvas.clientWidth - LABELS - PAD;
  }

  x(time) {
    return LABELS + ((time - this.from) / (this.to - this.from)) * this.width;
  }

  time(x) {
    return this.from + ((x - LABELS) / this.width) * (this.to - this.from);
  }

  draw() {
    if (!this.data || !this.canvas.isConnected) return;
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const look = colors();
    canvas.style.height = `${this.height}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(this.height * ratio);
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = `11.5px ${look.font}`;
    ctx.textBaseline = "middle";
    this.drawRows(ctx, look);
    ctx.save();
    ctx.beginPath();
    ctx.rect(LABELS, 0, this.width, this.height);
    ctx.clip();
    this.drawSteps(ctx, look);
    this.drawBars(ctx, look);
    ctx.restore();
    canvas.dataset.window = `${this.from.toFixed(3)}~${this.to.toFixed(3)}`;
  }

  drawRows(ctx, look) {
    for (const row of this.rows) {
      ctx.fillStyle = look.lane;
      ctx.fillRect(LABELS, row.y, this.width, row.height);
      ctx.fillStyle = look.soft;
      if (row.name) ctx.fillText(short(ctx, row.name), 4, row.y + Math.max(6, Math.min(row.height, 22) / 2));
    }
  }

  drawSteps(ctx, look) {
    for (const step of this.data.steps) {
      const x = Math.round(this.x(step.start_s)) + 0.5;
      const end = this.x(step.end_s);
      if (end < LABELS || x > LABELS + this.width) continue;
      ctx.strokeStyle = look.range;
      ctx.globalAlpha = 0.6;
      ctx.beginPath();
      ctx.moveTo(x, 4);
      ctx.lineTo(x, this.height - PAD);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.fillStyle = look.muted;
      const text = `step ${step.step}  ${duration(step.end_s - step.start_s)}`;
      const left = Math.max(x, LABELS) + 6;
      if (end - left > 40) ctx.fillText(end - left > ctx.measureText(text).width ? text : String(step.step), left, 12);
    }
  }

  drawBars(ctx, look) {
    const { data } = this;
    const sums = new Map();
    for (let i = 0; i < data.start.length; i++) {
      if (data.end[i] < this.from || data.start[i] > this.to || this.hidden.has(data.kind[i])) continue;
      const row = this.rows[this.rowOf[data.lane[i]]];
      if (row.kind === "sum") {
        sums.set(row, [...(sums.get(row) || []), i]);
        continue;
      }
      this.drawBar(ctx, look, i, row);
    }
    for (const [row, bars] of sums) this.drawBusy(ctx, row, bars);
  }

  drawBar(ctx, look, i, row) {
    const { data } = this;
    const left = this.x(data.start[i]);
    const width = Math.max(0.8, this.x(data.end[i]) - left - 0.4);
    const inset = row.height > 12 ? 2 : row.height > 6 ? 0.5 : 0;
    ctx.fillStyle = KIND_COLORS[data.kind[i] % KIND_COLORS.length];
    ctx.globalAlpha = this.hover === -1 || this.hover === i ? 1 : 0.6;
    ctx.beginPath();
    ctx.roundRect(left, row.y + inset, width, row.height - 2 * inset, Math.min(3, width / 2, row.height / 4));
    ctx.fill();
    ctx.globalAlpha = 1;
    if (i === this.chosen) {
      ctx.strokeStyle = look.text;
      ctx.lineWidth = 1.5;
      ctx.stroke();
    }
  }

  // Share of the slots that were busy, in columns of two pixels.
  drawBusy(ctx, row, bars) {
    const { data } = this;
    const columns = Math.ceil(this.width / 2);
    const change = new Float64Array(columns + 2);
    const column = (time) => Math.max(0, Math.min(columns, ((time - this.from) / (this.to - this.from)) * columns));
    for (const i of bars) {
      change[Math.floor(column(data.start[i]))] += 1;
      change[Math.ceil(column(data.end[i]))] -= 1;
    }
    const slots = new Set(data.lane.filter((lane) => this.rows[this.rowOf[lane]] === row)).size || 1;
    ctx.fillStyle = KIND_COLORS[data.kind[bars[0]]];
    let busy = 0;
    for (let i = 0; i < columns; i++) {
      busy += change[i];
      const size = Math.min(1, busy / slots) * row.height;
      ctx.fillRect(LABELS + i * 2, row.y + row.height - size, 2, size);
    }
  }

  find(x, y) {
    if (!this.data || x < LABELS) return -1;
    const time = this.time(x);
    const slack = (this.to - this.from) / this.width;
    const { data } = this;
    for (let i = 0; i < data.start.length; i++) {
      const row = this.rows[this.rowOf[data.lane[i]]];
      if (row.kind !== "sum" && y >= row.y - 0.5 && y <= row.y + row.height + 0.5 && time >= data.start[i] - slack && time <= data.end[i] + slack && !this.hidden.has(data.kind[i])) return i;
    }
    return -1;
  }

  words(i) {
    const { data } = this;
    return h("div", {}, h("strong", {}, pretty(data.kinds[data.kind[i]])), h("div", { class: "muted" }, `${data.lanes[data.lane[i]]} · step ${data.step[i]}`), h("div", {}, duration(data.end[i] - data.start[i]), h("span", { class: "muted" }, ` from ${(data.start[i] - this.begin).toFixed(3)} s to ${(data.end[i] - this.begin).toFixed(3)} s`)), data.text[i] ? h("div", {}, data.text[i]) : null);
  }

  point(event) {
    const found = this.find(event.offsetX, event.offsetY);
    if (found >= 0) at(event.clientX, event.clientY + 8, this.words(found));
    else hide();
    if (found === this.hover) return;
    this.hover = found;
    this.draw();
  }

  // The bars one after the other, in the order of their start; the window follows.
  chooseNext(by) {
    if (!this.data?.start.length) return;
    const order = this.data.start.map((_, i) => i).filter((i) => !this.hidden.has(this.data.kind[i])).sort((a, b) => this.data.start[a] - this.data.start[b]);
    const at = order.indexOf(this.chosen);
    const next = order[Math.max(0, Math.min(order.length - 1, at < 0 ? 0 : at + by))];
    if (next == null) return;
    if (this.data.start[next] < this.from || this.data.end[next] > this.to) this.pan((this.data.start[next] - (this.from + this.to) / 2) / (this.to - this.from));
    this.choose(next);
  }

  choose(i) {
    this.chosen = i;
    fill(this.detail, i >= 0 ? this.words(i) : null);
    this.draw();
  }
}

function short(ctx, text) {
  if (ctx.measureText(text).width <= LABELS - 12) return text;
  let end = text.length;
  while (end > 1 && ctx.measureText(`${text.slice(0, end)}…`).width > LABELS - 12) end--;
  return `${text.slice(0, end)}…`;
}
