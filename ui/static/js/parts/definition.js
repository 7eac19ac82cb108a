// What a metric is, as the registry says it.

import { h } from "../core/dom.js";
import { number, pretty } from "../core/format.js";

const row = (name, value) => (value ? h("div", { class: "def-row" }, h("dt", {}, name), h("dd", {}, value)) : null);

const between = (low, high) => (high == null ? `${number(low)} or more` : low == null ? `${number(high)} or less` : `${number(low)} to ${number(high)}`);

export function definition(entry) {
  const [low, high] = entry.range || [null, null];
  const healthy = entry.healthy ? between(...entry.healthy) : "";
  const source = { declared: "declared", observed: "observed in this run", none: "" }[entry.range_source] ?? "";
  const range = low == null && high == null ? "" : `${between(low, high)}${source ? ` (${source})` : ""}${entry.invert ? ", lower is better" : ""}`;
  return h("div", { class: "def" },
    h("strong", {}, pretty(entry.name)),
    h("code", {}, entry.key),
    h("p", {}, entry.definition || "A metric of this run's own code; it has no definition in the registry."),
    h("dl", {},
      row("Reduced by", entry.reduction),
      row("Counted over", entry.population),
      row("Absent when", entry.absent_when),
      row("Unit", entry.unit),
      row("Healthy", healthy),
      row("Range", range),
      entry.kind === "distribution" ? row("Shown", entry.shown || "mean as a line, ±1 standard deviation and min–max as bands") : null));
}
