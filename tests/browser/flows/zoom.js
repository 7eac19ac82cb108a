// A zoom into a long run: every step of the stretch is fetched, the spike stays, and a live run does not move the window.

const { run, painted } = require("../harness.js");

const CARD = '.card.chart[data-key="entropy"]';
const drawn = (page) => page.$eval(CARD, (card) => {
  const [xs, ys] = [card.panel.plot.data[0], card.panel.mains()[0].raw];
  const { min, max } = card.panel.plot.scales.x;
  return { count: xs.length, inside: xs.filter((x) => x >= 3300 && x <= 3400).length, highest: Math.max(...ys.filter((y) => y != null)), scale: [min, max], last: card.panel.mains()[0].run.series.lastStep };
});
const isNear = (page) => page.waitForFunction((selector) => {
  const plot = document.querySelector(selector)?.panel.plot;
  return plot && plot.data[0].filter((x) => x >= 3300 && x <= 3400).length >= 101;
}, CARD);

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/metrics?runs=${facts.run}&q=${encodeURIComponent("^(entropy|reward)$")}`);
  await painted(page);
  const whole = await drawn(page);
  assert.ok(whole.count <= 2000, `${whole.count} points`);
  assert.ok(whole.inside < 60, `${whole.inside} points of 101 steps`);
  assert.ok(Math.abs(whole.highest - facts.spike[1]) < 1e-5, "the spike is in the thinned curve");

  await page.evaluate((selector) => document.querySelector(selector).panel.board.onZoom([3300, 3400]), CARD);
  await isNear(page);
  const near = await drawn(page);
  assert.deepEqual(near.scale, [3300, 3400]);
  assert.equal(near.inside, 101, "every step of the stretch");
  assert.ok(Math.abs(near.highest - facts.spike[1]) < 1e-5, "the spike is in the exact curve");
  assert.ok(near.count > near.inside && near.count < 2300, "outside of the stretch the thinned curve goes on");

  // The run grows: the window stays, and so does what is in it.
  for (const more of [1, 2]) {
    console.log("GROW");
    await page.waitForFunction(([selector, last]) => document.querySelector(selector).panel.mains()[0].run.series.lastStep > last, [CARD, near.last + more - 1]);
  }
  await isNear(page);
  const later = await drawn(page);
  assert.deepEqual([later.scale, later.inside], [[3300, 3400], 101]);

  // A link opens the same window, in the same detail.
  await page.waitForFunction(() => location.search.includes("zoom="));
  await page.reload();
  await page.waitForSelector('.tele[data-ready="true"]');
  await isNear(page);

  await page.keyboard.press("r");
  await page.waitForFunction(([selector, count]) => document.querySelector(selector).panel.plot.data[0].length <= count + 5, [CARD, whole.count]);
  const back = await drawn(page);
  assert.ok(back.scale[0] <= 1 && back.scale[1] >= 5000, String(back.scale));
  assert.ok(Math.abs(back.highest - facts.spike[1]) < 1e-5);

  assert.deepEqual(page.troubles, []);
  Object.assign(found, { whole: whole.count, near: near.inside });
});
