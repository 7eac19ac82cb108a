// Where every sample went: each that was started ends in exactly one bin.

import { h } from "../core/dom.js";
import { count } from "../core/format.js";
import { isRunning } from "../core/session.js";

export const LEDGER = [
  { key: "trained", name: "Trained", note: "its tokens entered the loss" },
  { key: "zero_advantage", name: "Zero advantage", note: "all rewards of its group were equal" },
  { key: "max_async", name: "Too old", note: "too many weight updates behind when the batch was formed" },
  { key: "canceled", name: "Canceled", note: "stopped while generating" },
  { key: "error", name: "Error", note: "environment, tool or engine failed, or the reward was not finite" },
  { key: "filtered", name: "Filtered", note: "masked by a filter" },
  { key: "in_flight", name: "In flight", note: "not finished yet", after: "not finished when the run ended" },
];

export function ledgerCard({ row, series }) {
  const bins = LEDGER.map((bin) => ({ ...bin, value: series.last(`ledger/${bin.key}`) })).filter((bin) => bin.value != null);
  const total = bins.reduce((sum, bin) => sum + bin.value, 0);
  const started = series.last("ledger/started") ?? total;
  if (!bins.length) return [h("h2", {}, "Samples"), h("p", { class: "muted" }, "No step has been counted yet.")];
  const balanced = started === total;
  return [
    h("h2", {}, "Samples"),
    h("p", { class: balanced ? "good" : "bad" }, balanced ? `${count(started)} started${row.attempt > 1 ? ` by attempt ${row.attempt}` : ""}, every one in exactly one bin` : `${count(started)} started, but ${count(total)} in bins`),
    h("div", { class: "stack", role: "img", "aria-label": bins.map((bin) => `${bin.name} ${bin.value}`).join(", ") }, bins.filter((bin) => bin.value > 0).map((bin) => h("i", { class: `bin-${bin.key}`, style: `flex:${bin.value}`, title: `${bin.name}: ${count(bin.value)}` }))),
    h("table", { class: "bins" }, h("tbody", {}, bins.map((bin) => h("tr", { class: bin.value ? "" : "zero" }, h("td", {}, h("i", { class: `dot bin-${bin.key}` }), bin.name), h("td", {}, count(bin.value)), h("td", { class: "muted" }, total ? `${((100 * bin.value) / total).toFixed(1)} %` : ""), h("td", { class: "muted note-cell" }, (!isRunning(row) && bin.after) || bin.note))))),
  ];
}
