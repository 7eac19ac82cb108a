// Discarded: samples that were generated but not trained, and whether they differ from those that were.

import { SamplesPage } from "./samples.js";

const ALL = "zero_advantage,max_async,error,filtered,canceled";

export async function mount(main, session) {
  const page = new SamplesPage(main, session, {
    title: "Discarded",
    outcomes: [[ALL, "Every reason"], ["zero_advantage", "Zero advantage"], ["max_async", "Too old"], ["error", "Error"], ["filtered", "Filtered"], ["canceled", "Canceled"]],
    fallback: ALL,
    nothing: "Nothing was discarded at this step. Every sample was trained.",
    discarded: true,
    columns: () => ["discarded_count"],
  });
  await page.start();
}
