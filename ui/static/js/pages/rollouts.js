// Rollouts: from a step to its groups, from a group to a sample, from a sample to its tokens.

import { SamplesPage } from "./samples.js";

export async function mount(main, session) {
  const page = new SamplesPage(main, session, {
    title: "Rollouts",
    outcomes: [["trained", "Trained"], ["", "Every outcome"], ["zero_advantage", "Zero advantage"], ["max_async", "Too old"], ["error", "Error"], ["canceled", "Canceled"], ["filtered", "Filtered"], ["in_flight", "In flight"]],
    fallback: "trained",
    nothing: "No sample of this kind at this step. Look at another step, or at every outcome.",
  });
  await page.start();
}
