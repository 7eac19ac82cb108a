// A run that grows while it is looked at: new steps appear, the zoom stays, and a lost server is said and recovered from.

const { run, painted } = require("../harness.js");

const last = (page) => page.evaluate(() => document.querySelector('.card.chart[data-key="entropy"]').panel.mains()[0].run.series.lastStep);

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/metrics?runs=${facts.run}`, { allowed: ["ERR_CONNECTION_REFUSED", "Failed to load resource", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"] });
  await painted(page);
  const begin = await last(page);
  await page.waitForFunction((n) => document.querySelector('.card.chart[data-key="entropy"]').panel.mains()[0].run.series.lastStep > n, begin);
  assert.match(await page.textContent(".live"), /Live/);

  // Zoom, then two more steps: the window has not moved, the data has grown.
  await page.evaluate(() => document.querySelector(".card.chart").panel.board.onZoom([2, 6]));
  const zoomed = await last(page);
  await page.waitForFunction((n) => document.querySelector('.card.chart[data-key="entropy"]').panel.mains()[0].run.series.lastStep >= n + 2, zoomed);
  const scale = await page.evaluate(() => {
    const { min, max } = document.querySelector('.card.chart[data-key="entropy"]').panel.plot.scales.x;
    return [min, max];
  });
  assert.deepEqual(scale, [2, 6]);

  // The overview says the reward of the newest step, and not the one that it was opened with.
  const overview = await open(`/overview?runs=${facts.run}`, { context: page.context() });
  await painted(overview);
  const said = () => overview.evaluate(() => [...document.querySelectorAll(".fact")].find((one) => one.querySelector(".fact-name").textContent === "Reward").textContent);
  const [opened, chart] = [await said(), () => overview.textContent('.card.chart[data-key="reward"] .vals')];
  await overview.waitForFunction((text) => [...document.querySelectorAll(".fact")].find((one) => one.querySelector(".fact-name").textContent === "Reward").textContent !== text, opened);
  const reward = (await said()).match(/^Reward(.*)trained samples; .* over all scored$/)[1];
  assert.equal(reward, await chart());
  await overview.close();

  // The server goes away and comes back; the test around this flow does both when it is told to.
  console.log("STOP");
  await page.waitForSelector(".live.bad >> text=Reconnecting", { timeout: 60000 });
  console.log("START");
  await page.waitForSelector(".live.ok", { timeout: 120000 });
  const after = await last(page);
  await page.waitForFunction((n) => document.querySelector('.card.chart[data-key="entropy"]').panel.mains()[0].run.series.lastStep > n, after);
  assert.deepEqual(page.troubles, []);
  Object.assign(found, { begin, after });
});
