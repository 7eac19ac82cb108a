// Where the time of each step went, as numbers and as one bar a step. The numbers are the timing_* metrics.

import { button, h } from "../core/dom.js";
import { duration, pretty } from "../core/format.js";
import { KIND_COLORS } from "./gantt_colors.js";

// Parts that lie one after the other on the trainer, so that they add up to the step.
const IN_TURN = ["waiting_for_data", "prepare_tensors", "data_to_device", "forward", "loss_computation", "compute_kl", "compute_entropy", "backward", "optimizer", "weight_sync_trainer", "waiting_for_metrics"];
const total = (part) => (part === "waiting_for_data" ? "timing_waiting_for_data" : `timing_${part}_total`);
const GROUPS = [
  ["Step, s", { timing_step_total: "whole", timing_step_active: "active", timing_waiting_for_data: "waiting" }],
  ["Trainer, s", { [total("forward")]: "forward", [total("loss_computation")]: "loss", [total("backward")]: "backward", [total("optimizer")]: "optimizer", [total("compute_kl")]: "KL", [total("compute_entropy")]: "entropy", [total("prepare_tensors")]: "tensors", [total("data_to_device")]: "to device" }],
  ["Weights, s", { [total("weight_sync_trainer")]: "trainer", [total("weight_sync_inference")]: "engines" }],
  ["Beside the steps, s", { [total("checkpoint")]: "checkpoint", [total("eval")]: "eval", [total("waiting_for_metrics")]: "metrics" }],
  ["Slots, %", { timing_generation_pct: "generating", timing_reward_pct: "scoring", timing_idle_pct: "idle" }],
];

export const TIMING_KEYS = [...GROUPS.flatMap(([, columns]) => Object.keys(columns))];

// rows: places in the series, in the order in which they are shown; kinds: as the server numbers them.
export function timingTable(series, rows, kinds, goToStep) {
  const at = (key, i) => series.column(key)?.[i] ?? null;
  const groups = GROUPS.map(([title, columns]) => [title, Object.entries(columns).filter(([key]) => rows.some((i) => at(key, i) != null))]).filter(([, columns]) => columns.length);
  const first = new Set(groups.map(([, columns]) => columns[0][0]));
  const edge = (key) => (first.has(key) ? "edge" : "");
  const columns = groups.flatMap(([, found]) => found);
  const titles = h("tr", {}, h("td", {}), h("td", {}), groups.map(([title, found]) => h("th", { scope: "colgroup", colspan: found.length, class: "edge" }, title)));
  const heads = h("tr", {}, h("th", { scope: "col" }, "Step"), h("th", { scope: "col", class: "share-head" }, "share"), columns.map(([key, name]) => h("th", { scope: "col", class: edge(key), title: key, dataset: { key } }, name)));
  const line = (i) => h("tr", {},
    h("td", {}, button(String(series.steps[i]), () => goToStep(series.steps[i]), { kind: "quiet", title: "Show this step" })),
    h("td", { class: "share-cell" }, shares(at, i, kinds)),
    columns.map(([key]) => h("td", { class: edge(key) }, written(key, at(key, i)))));
  return h("div", { class: "scroll" }, h("table", { class: "grid-table timing" }, h("thead", {}, titles, heads), h("tbody", {}, rows.map(line))));
}

function written(key, value) {
  if (value == null) return "–";
  if (key.endsWith("_pct")) return value.toFixed(1);
  return value.toFixed(value < 100 ? 3 : 1);
}

function shares(at, i, kinds) {
  const whole = at("timing_step_total", i);
  if (!whole) return null;
  const parts = IN_TURN.map((part) => [part, at(total(part), i) || 0]).filter(([, seconds]) => seconds > 0);
  const rest = Math.max(0, whole - parts.reduce((sum, [, seconds]) => sum + seconds, 0));
  const words = parts.map(([part, seconds]) => `${pretty(part)} ${duration(seconds)}`);
  return h("div", { class: "shares", role: "img", "aria-label": words.join(", "), title: [...words, `Rest ${duration(rest)}`].join("\n") },
    parts.map(([part, seconds]) => h("i", { style: `flex:${seconds};background:${KIND_COLORS[kinds.indexOf(part) % KIND_COLORS.length]}` })), h("i", { style: `flex:${rest}` }));
}
