// A phone: nothing wider than the window, everything reachable.

const { run, shot, painted } = require("../harness.js");

const PAGES = ["/", "/overview", "/metrics", "/metrics?view=custom", "/rollouts", "/discarded", "/timeline", "/evals", "/infra", "/new"];

run(async ({ open, assert, facts, found }) => {
  for (const path of PAGES) {
    const page = await open(`${path}${path.includes("?") ? "&" : "?"}runs=${facts.run}`, { size: { width: 390, height: 844 } });
    if (/metrics|overview/.test(path)) await painted(page);
    await page.waitForTimeout(400);
    const wide = await page.evaluate(() => {
      const limit = document.documentElement.clientWidth;
      const inScroll = (element) => element.parentElement && (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(element.parentElement).overflowX) || inScroll(element.parentElement));
      const out = [...document.querySelectorAll(".tele *")].filter((element) => element.getBoundingClientRect().right > limit + 2 && !inScroll(element) && getComputedStyle(element).visibility !== "hidden");
      return [document.documentElement.scrollWidth - limit, ...out.slice(0, 3).map((element) => element.outerHTML.slice(0, 90))];
    });
    assert.ok(wide[0] <= 1, `${path} is ${wide[0]} px too wide: ${wide.slice(1).join(" ")}`);
    const seen = await page.$$eval(".nav-holder nav a.active", (links) => links.every((one) => one.getBoundingClientRect().left >= 0 && one.getBoundingClientRect().right <= innerWidth));
    assert.ok(seen, `${path}: the page that is shown is in sight in the navigation`);
    const cut = await page.$$eval(".facts .fact-value", (values) => values.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
    assert.deepEqual(cut, [], path);
    await shot(page, `phone-${path.replace(/[^a-z]+/g, "-").replace(/^-|-$/g, "") || "runs"}`);
    assert.deepEqual(page.troubles, [], path);
    await page.context().close();
  }
  found.pages = PAGES.length;
});
