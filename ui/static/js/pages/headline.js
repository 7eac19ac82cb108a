// Six numbers that say how a run goes, each with its recent course and how far it moved.

import { fill, h, svg } from "../core/dom.js";
import { number } from "../core/format.js";
import { newestOdd } from "../core/store.js";

// better: 1 when more is better, -1 when less is, 0 when neither.
const NUMBERS = [
  { key: "reward_mean", name: "Reward", better: 1 },
  { key: "entropy", name: "Entropy", better: 0, unit: "nats" },
  { key: "kl_divergence_inference", name: "KL to rollouts", better: -1 },
  { key: "grad_norm", name: "Gradient norm", better: 0 },
  { key: "tokens_completion_mean", name: "Completion", better: 0, unit: "tokens" },
  { key: "timing_step_total", name: "Step time", better: -1, unit: "s" },
];
const RECENT = 10;
const POINTS = 90;

export class Headline {
  static keys = () => NUMBERS.map((one) => one.key);

  constructor() {
    this.element = h("div", { class: "kpis" });
  }

  render(run) {
    if (!run || !run.series.loaded || !run.series.steps.length) return fill(this.element);
    fill(this.element, NUMBERS.map((one) => this.card(one, run)));
  }

  card({ key, name, better, unit }, run) {
    const values = (run.series.column(key) || []).filter((value) => value != null);
    const odd = newestOdd(run.series, key);
    const now = average(values.slice(-RECENT));
    const before = average(values.slice(-6 * RECENT, -5 * RECENT));
    return h("div", { class: "kpi card", title: `${name}: mean of the last ${RECENT} steps; the arrow compares with 50 steps before` },
      h("div", { class: "kpi-name" }, name, unit ? h("span", { class: "unit" }, unit) : null),
      h("div", { class: "kpi-value" }, odd ? h("span", { class: "odd" }, odd) : number(now), odd || before == null || now == null ? null : change(now, before, better)),
      sparkline(values.slice(-POINTS), run.color, 100, 26));
  }
}

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function change(now, before, better) {
  const share = ((now - before) / Math.max(Math.abs(before), 1e-12)) * 100;
  if (!Number.isFinite(share) || Math.abs(share) > 9999) return null;
  const kind = better === 0 || Math.abs(share) < 0.05 ? "" : share * better > 0 ? "good" : "bad";
  return h("span", { class: `move ${kind}` }, `${share >= 0 ? "▲" : "▼"} ${Math.abs(share).toFixed(1)}%`);
}

export function sparkline(values, color, width, height) {
  const found = values.filter((value) => value != null);
  const box = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (found.length < 2) return box;
  const low = Math.min(...found);
  const high = Math.max(...found);
  const y = (value) => (high === low ? height / 2 : height - 2 - ((value - low) / (high - low)) * (height - 4));
  const x = (i) => (i / (values.length - 1)) * width;
  const points = values.map((value, i) => (value == null ? null : `${x(i).toFixed(1)},${y(value).toFixed(1)}`)).filter(Boolean);
  box.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: color, "stroke-width": 1.6, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" }));
  return box;
}
