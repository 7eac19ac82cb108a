// Evals: how the policy does on held-out problems, with error bars, and every completion behind a number.

import { command, empty } from "../parts/empty.js";
import { evalCharts } from "./eval_charts.js";
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

const nothingYet = () => empty("No evaluation yet", "No evaluation of this run has ended. What is evaluated, and how often, stands under evals in the configuration of a run.", command("python -m app.launch configs/demo.yaml"));

const evalMetrics = (page) => page.session.catalog.metrics.filter((entry) => entry.key.startsWith(PREFIX));
const columns = (page) => evalMetrics(page).map((entry) => entry.key);

// Steps at which anything was evaluated, from step 0 on.
function steps(page) {
  const { series } = page.run;
  const found = new Set();
  for (const key of columns(page)) series.column(key)?.forEach((value, i) => value != null && Number.isInteger(series.steps[i]) && found.add(series.steps[i]));
  return [...found].sort((a, b) => a - b);
}

// Each evaluation's means; one evaluation alone also shows pass@k and pass^k.
function charts(page) {
  const metrics = evalMetrics(page);
  const names = [...new Set(metrics.map((entry) => entry.key.split("/")[1]))];
  const shown = names.filter((name) => !page.filters.env || name === page.filters.env);
  return shown.flatMap((name) => {
    const { means, families } = evalCharts(metrics.filter((entry) => entry.key.split("/")[1] === name));
    return [...means, ...(shown.length === 1 ? families : [])].map(({ title, entries }) => ({ title: `${name}: ${title}`, entries }));
  });
}
