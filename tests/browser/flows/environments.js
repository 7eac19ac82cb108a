// Several environments: their rewards in one chart, normalised when asked; one environment alone; charts with runs of their own.

const { run, shot, painted } = require("../harness.js");

const MERGED = ".card.merged";
const lasts = (page) => page.$eval(MERGED, (card) => card.panel.mains().map((line) => line.raw.at(-1)));
const keys = (page) => page.$$eval(".card.chart", (cards) => cards.map((card) => card.dataset.key));
const version = (page) => page.evaluate(() => Number(document.documentElement.dataset.layoutVersion));

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/metrics?runs=${facts.ranged}`);
  await painted(page);
  await page.locator(MERGED).scrollIntoViewIfNeeded();
  await page.waitForFunction((selector) => document.querySelector(selector).panel.plot, MERGED);
  assert.deepEqual(await page.$$eval(`${MERGED} .lines span`, (all) => all.map((one) => one.textContent)), ["Coins", "Sums"]);
  const raw = await lasts(page);
  await page.click(`${MERGED} button[aria-label="0–1: normalise rewards"]`);
  await page.waitForFunction(([selector, before]) => document.querySelector(selector).panel.mains()[0].raw.at(-1) !== before, [MERGED, raw[0]]);
  const normalised = await lasts(page);
  assert.ok(Math.abs(normalised[0] - raw[0] / 10) < 1e-6, `${normalised[0]} of ${raw[0]}`);
  assert.ok(Math.abs(normalised[1] - raw[1]) < 1e-6);
  await page.waitForFunction(() => location.search.includes("norm=1"));
  await shot(page, "environments-light");

  // One environment: metrics of the other leave, those of none stay.
  await page.selectOption('select[aria-label="Environment"]', "coins");
  await page.waitForFunction((selector) => !document.querySelector(selector), MERGED);
  const some = await keys(page);
  assert.ok(some.includes("reward/coins/reward") && some.includes("entropy"));
  assert.ok(!some.includes("reward/sums/reward"));
  await page.waitForFunction(() => location.search.includes("env=coins"));

  // A chart with a run of its own: followed although it is not selected at the left, and kept.
  const custom = await open(`/metrics?view=custom&layout=chosen&runs=${facts.ranged}`);
  await painted(custom);
  const entropy = custom.locator('.card.chart[data-key="entropy"]');
  let v = await version(custom);
  await entropy.hover();
  await entropy.locator('button[aria-label^="More for"]').click();
  await custom.click('.menu-item:text-is("Choose its runs")');
  await custom.fill("dialog .search input", facts.plain);
  await custom.click(`dialog label:has-text("${facts.plain}")`);
  await custom.fill("dialog .search input", "");
  await custom.click(`dialog label:has-text("${facts.ranged}")`);
  await custom.click('dialog button:text-is("Show this run")');
  await custom.waitForFunction((n) => Number(document.documentElement.dataset.layoutVersion) > n, v);
  const own = (p) => p.waitForFunction((id) => {
    const panel = document.querySelector('.card.chart[data-key="entropy"]')?.panel;
    return panel?.plot && panel.mains().length === 1 && panel.mains()[0].run.id === id;
  }, facts.plain);
  await own(custom);
  assert.ok(await entropy.locator(".own").textContent(), "the card says whose run it shows");
  const others = await custom.$eval('.card.chart[data-key="reward"]', (card) => card.panel.mains().map((line) => line.run.id));
  assert.deepEqual(others, [facts.ranged]);
  await custom.reload();
  await painted(custom);
  await own(custom);
  await shot(custom, "custom-own-runs-light");
  v = await version(custom);
  await entropy.hover();
  await entropy.locator('button[aria-label^="More for"]').click();
  await custom.click('.menu-item:text-is("Choose its runs")');
  await custom.click('dialog button:text-is("Follow the list at the left")');
  await custom.waitForFunction((n) => Number(document.documentElement.dataset.layoutVersion) > n, v);
  await custom.waitForFunction((id) => document.querySelector('.card.chart[data-key="entropy"]').panel.mains()[0]?.run.id === id, facts.ranged);

  assert.deepEqual([...page.troubles, ...custom.troubles], []);
  Object.assign(found, { raw, normalised: normalised[0] });
});
