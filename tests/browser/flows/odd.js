// Values that are not finite: what is left of a line between them, and what is said of the newest.

const { run, painted } = require("../harness.js");

// Red, green and blue of the chart at a point of its axes, and of the colour of its line.
const colours = (card, x, y) => card.evaluate((one, [x, y]) => {
  const { plot } = one.panel;
  const [left, top] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)].map(Math.round);
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = one.panel.mains()[0].color;
  probe.fillRect(0, 0, 1, 1);
  const rgb = (context, ...place) => [...context.getImageData(...place, 1, 1).data].slice(0, 3);
  return [rgb(plot.ctx, left, top), rgb(probe, 0, 0)];
}, [x, y]);

const differ = ([one, other]) => Math.max(...one.map((value, i) => Math.abs(value - other[i])));

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/metrics?runs=${facts.run}`, { allowed: ["willReadFrequently"] });
  await painted(page);
  await page.fill(".search input", "^(lone|up|grad_norm)$");
  await page.waitForFunction(() => document.querySelectorAll(".card.chart").length === 3);
  await page.waitForFunction(() => [...document.querySelectorAll(".card.chart")].every((one) => one.panel.plot));
  const card = (key) => page.locator(`.card.chart[data-key="${key}"]`);
  assert.ok(differ(await colours(card("lone"), 2, 0.5)) < 30, "the value between two nan is painted");
  assert.ok(differ(await colours(card("lone"), 3, 0.55)) > 60, "no line leads over a nan");

  found.newest = {};
  for (const key of ["grad_norm", "up"]) {
    const value = card(key).locator(".vals .odd");
    found.newest[key] = await value.textContent();
    assert.notEqual(await value.evaluate((one) => getComputedStyle(one).color), await card("lone").locator(".vals span").evaluate((one) => getComputedStyle(one).color));
  }
  assert.equal(await card("lone").locator(".vals").textContent(), "0.9");
  const kpi = page.locator(".kpi", { hasText: "Gradient norm" }).locator(".kpi-value");
  assert.equal(await kpi.textContent(), "nan");

  await page.goto(page.url().replace(/metrics.*/, `overview?runs=${facts.run}`));
  await page.waitForSelector('.card.chart[data-key="grad_norm"] .vals .odd');
  assert.deepEqual(page.troubles, []);
});
