// Every page in light and dark: it comes up, complains about nothing, asks nobody else, and is accessible.

const { run, shot, axe, painted } = require("../harness.js");

const PAGES = [["runs", "/"], ["overview", "/overview"], ["metrics", "/metrics"], ["custom", "/metrics?view=custom"], ["rollouts", "/rollouts"], ["discarded", "/discarded"], ["timeline", "/timeline"], ["evals", "/evals"], ["infra", "/infra"], ["new", "/new"]];
const CHARTS = ["overview", "metrics", "custom", "rollouts", "discarded", "evals"];

run(async ({ open, assert, facts, found }) => {
  const wrong = [];
  for (const theme of ["light", "dark"]) {
    for (const [name, path] of PAGES) {
      const query = `${path.includes("?") ? "&" : "?"}runs=${facts.run}`;
      const page = await open(name === "runs" || name === "new" ? path : path + query, { theme });
      if (CHARTS.includes(name)) await painted(page);
      if (name === "new") await page.waitForSelector(".verdict.good");
      if (name === "timeline") await page.waitForSelector(".gantt canvas[data-window]");
      await shot(page, `${name}-${theme}`);
      const troubles = [...(await axe(page)), ...page.troubles];
      // Our styles count where Gradio's are as specific: a form element in its style would stand out.
      const sizes = await page.$$eval(".tele select, .tele .search input", (all) => all.map((one) => getComputedStyle(one).fontSize));
      if (sizes.some((size) => size !== "13px")) troubles.push(`form elements are ${sizes.join()}`);
      wrong.push(...troubles.map((text) => `${name}, ${theme}: ${text}`));
      await page.context().close();
    }
  }
  assert.deepEqual(wrong, []);
  found.pages = PAGES.length;
});
