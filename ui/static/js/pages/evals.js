// Evals: how the policy does on held-out problems, with error bars, and every completion behind a number.

import { pretty } from "../core/format.js";
import { command, empty } from "../parts/empty.js";
import { SamplesPage } from "./samples.js";

const PREFIX = "eval/";

export async function mount(main, session) {
  const page = new SamplesPage(main, session, {
    title: "Evals",
    evals: true,
    outcomes: [["eval", "Evaluated"]],
    fallback: "eval",
    nothing: "No completion was stored for this evaluation.",
    nothingYet,
    columns,
    steps,
    charts,
  });
  await page.start();
}

const nothingYet = () => empty("No evaluation yet", "This run has not evaluated its policy. List what to evaluate under evals in the configuration of a run.", command("python -m app.launch configs/demo.yaml"));

const evalMetrics = (page) => page.session.catalog.metrics.filter((entry) => entry.key.startsWith(PREFIX));
const columns = (page) => evalMetrics(page).map((entry) => entry.key);

// Steps at which anything was evaluated, from step 0 on.
function steps(page) {
  const { series } = page.run;
  const found = new Set();
  for (const key of columns(page)) series.column(key)?.forEach((value, i) => value != null && Number.isInteger(series.steps[i]) && found.add(series.steps[i]));
  return [...found].sort((a, b) => a - b);
}

// Means with their standard error as one chart each. One evaluation alone also shows pass@k and pass^k, as families.
function charts(page) {
  const metrics = evalMetrics(page);
  const byKey = new Map(metrics.map((entry) => [entry.key, entry]));
  const names = [...new Set(metrics.map((entry) => entry.key.split("/")[1]))];
  const shown = names.filter((name) => !page.filters.env || name === page.filters.env);
  return shown.flatMap((name) => [...means(name, metrics, byKey), ...(shown.length === 1 ? families(name, metrics) : [])]);
}

function means(name, metrics, byKey) {
  const ends = (entry) => entry.key.startsWith(`${PREFIX}${name}/`) && entry.key.endsWith("_mean") && !entry.key.endsWith("_requested_mean");
  return metrics.filter(ends).map((entry) => {
    const base = entry.key.slice(0, -"_mean".length);
    const stats = { mean: entry.key, std: byKey.has(`${base}_stderr`) ? `${base}_stderr` : undefined };
    return { title: `${name}: ${pretty(base.split("/").pop())}`, entries: [{ ...entry, kind: "distribution", stats, shown: "mean as a line; the band is one standard error, clustered by problem" }] };
  });
}

function families(name, metrics) {
  const found = new Map();
  for (const entry of metrics) {
    const [, owner, kind, metric] = entry.key.split("/");
    if (owner !== name || !/^pass[@^]\d+$/.test(kind || "") || !metric) continue;
    const family = `${kind.slice(0, 5)}k of ${metric}`;
    found.set(family, [...(found.get(family) || []), { ...entry, name: kind }]);
  }
  return [...found].filter(([, entries]) => entries.length > 1).map(([family, entries]) => ({ title: `${name}: ${family}`, entries: entries.sort((a, b) => a.key.localeCompare(b.key, "en", { numeric: true })) }));
}
