// The many metrics of one evaluation as few charts.

import { pretty } from "../core/format.js";

// means: each with its standard error in one chart; families: pass@k and pass^k; rest: what is in neither.
export function evalCharts(metrics) {
  const [means, families] = [meanCharts(metrics), familyCharts(metrics)];
  const used = new Set([...means, ...families].flatMap(({ entries }) => entries.flatMap((entry) => [entry.key, ...Object.values(entry.stats || {})])));
  return { means, families, rest: metrics.filter((entry) => !used.has(entry.key)) };
}

function meanCharts(metrics) {
  const known = new Set(metrics.map((entry) => entry.key));
  const means = metrics.filter((entry) => entry.key.endsWith("_mean") && !entry.key.endsWith("_requested_mean"));
  const later = (entry) => Number(!entry.key.endsWith("/reward_mean")); // the reward leads
  return means.sort((a, b) => later(a) - later(b)).map((entry) => {
    const base = entry.key.slice(0, -"_mean".length);
    const stats = { mean: entry.key, std: known.has(`${base}_stderr`) ? `${base}_stderr` : undefined };
    return { title: pretty(base.split("/").pop()), entries: [{ ...entry, kind: "distribution", stats, shown: "mean as a line; the band is one standard error, clustered by problem" }] };
  });
}

function familyCharts(metrics) {
  const found = new Map();
  for (const entry of metrics) {
    const [, , kind, metric] = entry.key.split("/");
    if (!/^pass[@^]\d+$/.test(kind || "") || !metric) continue;
    const family = `${kind.slice(0, 5)}k of ${metric}`;
    found.set(family, [...(found.get(family) || []), { ...entry, name: kind }]);
  }
  return [...found].filter(([, entries]) => entries.length > 1).map(([title, entries]) => ({ title, entries: entries.sort((a, b) => a.key.localeCompare(b.key, "en", { numeric: true })) }));
}
