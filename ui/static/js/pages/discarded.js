// Discarded: samples that were generated but not trained, and whether they differ from those that were.

import { empty } from "../parts/empty.js";
import { SamplesPage } from "./samples.js";

const COUNTS = ["discarded_count", "canceled_count"];
const CHARTS = [["discarded_count", "Discarded samples"], ["discarded_pct_of_generated", "Share of what was made"]];

// Steps at which something was discarded; the others have nothing to show here.
function steps(page) {
  const { series } = page.run;
  const lost = (i) => COUNTS.some((key) => series.column(key)?.[i] > 0);
  return series.steps.filter((step, i) => Number.isInteger(step) && lost(i));
}

const ALL = "zero_advantage,max_async,error,filtered,canceled";

export async function mount(main, session) {
  const page = new SamplesPage(main, session, {
    title: "Discarded",
    outcomes: [[ALL, "Every reason"], ["zero_advantage", "Zero advantage"], ["max_async", "Too old"], ["error", "Error"], ["filtered", "Filtered"], ["canceled", "Canceled"]],
    fallback: ALL,
    nothing: "Nothing was discarded at this step. Every sample was trained.",
    discarded: true,
    columns: () => COUNTS,
    steps,
    nothingYet: (page) => (page.run.series.lastStep ? empty("Nothing was discarded", "Every sample of this run has been trained so far. Discarded ones appear here by themselves.") : empty("No step yet", "Discarded samples appear here when the first step of this run has been trained.")),
    charts: (page) => CHARTS.map(([key, title]) => ({ title, entries: [page.session.catalog.byKey.get(key)].filter(Boolean) })).filter(({ entries }) => entries.length),
  });
  await page.start();
}
