// Bars of time on one canvas: what is in them, which stretch of it is looked at, and which bar is chosen.

import { fill, h } from "../core/dom.js";
import { duration, pretty } from "../core/format.js";
import { onTheme } from "../core/theme.js";
import { at, hide } from "../parts/hint.js";
import { LABELS, PAD, TOP, paint } from "./gantt_paint.js";
import { listen } from "./gantt_input.js";

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
      if (this.compact) add(`${title} (${mine.length})`, 52, mine, "sum");
      else mine.forEach((lane, k) => add(k ? "" : `${title} (${mine.length})`, mine.length > 48 ? 4 : mine.length > 20 ? 7 : mine.length > 10 ? 11 : 17, [lane], "slot"));
      y += 7;
    }
    lanes.forEach((name, i) => this.rowOf[i] == null && add(name, 26, [i], "lane"));
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
    paint(this);
    this.canvas.dataset.window = `${this.from.toFixed(3)}~${this.to.toFixed(3)}`;
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
