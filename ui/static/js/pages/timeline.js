// Timeline: what every slot, rank and push did in a stretch of steps, and where the time of each step went.

import { button, debounce, fill, h, iconButton } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { count, duration, pretty } from "../core/format.js";
import * as url from "../core/url.js";
import { checkbox } from "../parts/controls.js";
import { empty } from "../parts/empty.js";
import { FocusPage } from "../parts/focus_page.js";
import { setKeys } from "../parts/keys.js";
import { Gantt } from "./gantt.js";
import { KIND_COLORS } from "./gantt_colors.js";
import { TIMING_KEYS, timingTable } from "./timeline_table.js";

const SHOWN = 4;
const MOST = 40;
const MOST_ROWS = 48;

export async function mount(main, session) {
  const page = new Timeline(main, session);
  await page.start();
}

class Timeline {
  constructor(main, session) {
    this.session = session;
    this.from = Number(url.get("from")) || 0;
    this.size = Math.min(MOST, Number(url.get("steps")) || SHOWN);
    this.followed = !this.from;
    this.tools = h("div", { class: "step-bar" });
    this.frame = new FocusPage(main, session, { title: "Timeline", open: (run) => this.open(run), beat: (run, changed) => this.beat(run, changed), tools: this.tools });
    this.gantt = new Gantt();
    this.legend = h("div", { class: "gantt-legend" });
    this.table = h("section", { class: "card pad" });
    this.note = h("p", { class: "muted small" }, "Loading the spans …");
  }

  async start() {
    setKeys([
      ["ArrowLeft", "Earlier", () => this.gantt.pan(-0.2)],
      ["ArrowRight", "Later", () => this.gantt.pan(0.2)],
      ["+ =", "Zoom in", () => this.gantt.zoomBy(0.6)],
      ["-", "Zoom out", () => this.gantt.zoomBy(1.7)],
      ["n", "Next bar, with its details", () => this.gantt.chooseNext(1)],
      ["p", "Previous bar", () => this.gantt.chooseNext(-1)],
      ["r", "Whole stretch", () => this.gantt.reset()],
      ["[", "Earlier steps", () => this.move(-this.size)],
      ["]", "Later steps", () => this.move(this.size)],
    ]);
    await this.frame.start();
  }

  async open(run) {
    this.run = run;
    if (!run.series.lastStep) return fill(this.frame.body, empty("No step yet", "The timeline begins with the first step."));
    this.everySlot = checkbox("Every slot", true, (on) => {
      url.set({ slots: on ? "1" : "0" });
      this.gantt.setCompact(!on);
    });
    const zoom = [iconButton("plus", "Zoom in (+)", () => this.gantt.zoomBy(0.6)), iconButton("fit", "Whole stretch (r)", () => this.gantt.reset())];
    fill(this.frame.body, h("section", { class: "card gantt-card" }, h("div", { class: "gantt-head" }, this.legend, h("span", { class: "gantt-tools" }, this.everySlot, zoom)), this.gantt.element, this.note), this.table);
    await this.session.store.need(run.id, TIMING_KEYS);
    await this.move(0);
  }

  async beat(run, changed) {
    if (!changed) return;
    if (!this.run?.series.lastStep || !this.gantt.data) return this.open(run);
    if (this.followed) await this.move(0);
    else this.renderTools();
  }

  async move(by) {
    const last = this.run.series.lastStep;
    const newest = Math.max(1, last - this.size + 1);
    if (by) this.followed = false;
    this.from = this.followed ? newest : Math.max(1, Math.min(newest, this.from + by));
    url.set({ from: this.followed ? null : this.from, steps: this.size === SHOWN ? null : this.size });
    this.renderTools();
    await this.load();
  }

  async load() {
    const to = Math.min(this.run.series.lastStep, this.from + this.size - 1);
    try {
      const data = await getJson("/timeline", { run: this.run.id, from: this.from, to });
      this.gantt.show(data);
      const unfolded = url.flag("slots", this.gantt.numSlots <= MOST_ROWS);
      this.everySlot.querySelector("input").checked = unfolded;
      if (this.gantt.compact === unfolded) this.gantt.setCompact(!unfolded);
      this.renderLegend(data);
      this.renderTable(data);
      this.note.textContent = data.start.length ? "Drag to pan, Ctrl and wheel to zoom, click a bar for its details. Slots are numbered by the order in which they became free." : "No span was recorded for these steps.";
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  renderLegend(data) {
    const total = new Map();
    data.kind.forEach((kind, i) => total.set(kind, (total.get(kind) || 0) + data.end[i] - data.start[i]));
    const rows = [...total].sort((a, b) => b[1] - a[1]);
    fill(this.legend, rows.map(([kind, seconds]) => h("button", { type: "button", class: "legend-item", "aria-pressed": String(!this.gantt.hidden.has(kind)), title: "Show or hide", onclick: (event) => event.currentTarget.setAttribute("aria-pressed", String(this.gantt.toggle(kind))) }, h("i", { class: "dot", style: `background:${KIND_COLORS[kind % KIND_COLORS.length]}` }), pretty(data.kinds[kind]), h("b", {}, duration(seconds)))));
  }

  renderTable(data) {
    const { series } = this.run;
    const rows = [];
    for (let i = series.steps.length - 1; i >= 0; i--) if (series.steps[i] >= data.from && series.steps[i] <= data.to && Number.isInteger(series.steps[i])) rows.push(i);
    const place = rows.length ? timingTable(series, rows, data.kinds, (step) => this.gantt.goToStep(step)) : h("p", { class: "muted" }, "No timing metric for these steps");
    fill(this.table, h("h2", {}, "Where each step's time went"), place);
  }

  renderTools() {
    const last = this.run.series.lastStep;
    if (this.tools.contains(document.activeElement) && document.activeElement.matches("input[type=range]")) return;
    const input = h("input", { type: "number", min: 1, max: last, "aria-label": "First step", onchange: () => this.goTo(Number(input.value)) });
    input.value = this.from;
    const size = h("input", { type: "number", min: 1, max: MOST, "aria-label": "Number of steps", onchange: () => {
      this.size = Math.max(1, Math.min(MOST, Number(size.value) || SHOWN));
      this.move(0);
    } });
    size.value = this.size;
    const slider = h("input", { type: "range", min: 1, max: Math.max(1, last - this.size + 1), "aria-label": "First step, slider", oninput: () => this.slide(Number(slider.value)) });
    slider.value = this.from;
    fill(this.tools, h("span", { class: "muted" }, "Steps from"), iconButton("left", "Earlier steps ([)", () => this.move(-this.size)), input, h("span", { class: "muted" }, "show"), size, h("span", { class: "muted" }, `of ${count(last)}`), iconButton("right", "Later steps (])", () => this.move(this.size)), slider, button("Latest", () => {
      this.followed = true;
      this.move(0);
    }, { kind: this.followed ? "accent" : "", "aria-pressed": String(this.followed) }));
  }

  goTo(step) {
    this.followed = false;
    this.from = step;
    return this.move(0);
  }

  slide = debounce((step) => this.goTo(step), 160);
}
