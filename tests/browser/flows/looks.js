// Several runs at a glance: the hovered one stands out, charts have a size, links are copied, long reasons unfold, and
// what a starting run does is said.

const { run, axe, shot, painted } = require("../harness.js");

// Pixels of a chart in the full colour of a run.
const inked = (page, id) => page.$eval('.card.chart[data-key="entropy"] canvas', (canvas, run) => {
  const line = canvas.closest(".card.chart").panel.mains().find((one) => one.run.id === run);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const probe = new OffscreenCanvas(1, 1).getContext("2d");
  probe.fillStyle = line.color;
  probe.fillRect(0, 0, 1, 1);
  const wanted = probe.getImageData(0, 0, 1, 1).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && [0, 1, 2].every((part) => Math.abs(data[i + part] - wanted[part]) < 30)) count++;
  return count;
}, id);
const heightOf = (page) => page.$eval('.card.chart[data-key="entropy"] .uplot', (plot) => plot.getBoundingClientRect().height);

async function metrics({ open, assert, facts, browser }) {
  const context = await browser.newContext({ viewport: { width: 1500, height: 950 }, permissions: ["clipboard-read", "clipboard-write"], reducedMotion: "reduce" });
  const page = await open(`/metrics?runs=${facts.first},${facts.second}&q=entropy`, { context });
  await painted(page);
  await page.waitForFunction(() => document.title === "Metrics · 2 runs · Telescope");
  const called = (id) => page.textContent(`.side .run[title="${id}"] .run-name`);
  for (const id of [facts.first, facts.second]) assert.equal(await called(id), `twin ${id.slice(-4)}`, "two of one name are told apart");
  assert.equal(await called(facts.failed), "broken");

  // The buttons of a chart leave its newest values readable, under the mouse and where there is none.
  const covered = (at) => at.$eval('.card.chart[data-key="entropy"]', (chart) => {
    const [acts, vals] = [".acts", ".vals"].map((part) => chart.querySelector(part).getBoundingClientRect());
    const shown = getComputedStyle(chart.querySelector(".acts")).opacity === "1";
    return shown ? acts.left < vals.right && acts.bottom > vals.top + 1 && acts.top < vals.bottom : "hidden";
  });
  await page.hover('.card.chart[data-key="entropy"]');
  await page.waitForTimeout(200);
  assert.equal(await covered(page), false);
  const touched = await open(`/metrics?runs=${facts.first}&q=entropy`, { context: await browser.newContext({ viewport: { width: 1500, height: 950 }, hasTouch: true, isMobile: true }) });
  await painted(touched);
  assert.equal(await covered(touched), false);
  await shot(touched, "metrics-touch");
  await touched.context().close();

  const before = [await inked(page, facts.first), await inked(page, facts.second)];
  assert.ok(Math.min(...before) > 20, `${before} pixels`);
  await page.hover(`.side .run[title="${facts.first}"]`);
  await page.waitForTimeout(200);
  assert.equal(await inked(page, facts.second), 0, "the other run is dimmed");
  assert.ok((await inked(page, facts.first)) >= before[0], "the hovered run is not");
  await page.mouse.move(700, 5);
  await page.waitForTimeout(200);
  assert.ok((await inked(page, facts.second)) >= before[1] / 2, "it comes back");

  const normal = await heightOf(page);
  for (const [size, density] of [["L", "large"], ["S", "compact"]]) {
    await page.click('.tools .menu button:has-text("Display")');
    await page.click(`[aria-label="Chart size"] button:text-is("${size}")`);
    await page.waitForFunction((wanted) => location.search.includes(`density=${wanted}`), density);
    await page.keyboard.press("Escape");
    await page.waitForFunction(([was, larger]) => {
      const { height } = document.querySelector('.card.chart[data-key="entropy"] .uplot').getBoundingClientRect();
      return larger ? height > was + 50 : height < was - 20;
    }, [normal, density === "large"]);
  }
  await page.click('button[aria-label="Copy a link to this view"]');
  await page.waitForSelector(".toast >> text=Link copied");
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, page.url());
  const again = await open(copied.slice(process.env.BASE.length), { context });
  await painted(again);
  assert.equal(await heightOf(again), await heightOf(page), "the link opens the same view");

  // One environment: its rewards are those of the section, so they are there once; a search finds them.
  await page.fill(".search input", "");
  await page.waitForFunction(() => document.querySelectorAll(".card.chart").length > 40);
  const keys = () => page.$$eval(".card.chart", (cards) => cards.map((card) => card.dataset.key));
  assert.ok((await keys()).includes("reward") && !(await keys()).includes("reward/sums/reward"));
  // Evaluations: a mean with its error is one chart, what is seldom asked for is folded away.
  const evals = await page.$$eval("#section-Evals .section-body > .cards .card.chart", (cards) => cards.map((card) => card.dataset.key));
  assert.ok(evals.length && evals.every((key) => !/_stderr|_requested_mean/.test(key)), evals.join());
  assert.equal(await page.$eval("#section-Evals details", (one) => one.open), false);
  await page.fill(".search input", "^reward/sums/reward$");
  await page.waitForFunction(() => document.querySelector(".card.chart")?.dataset.key === "reward/sums/reward");
  return [page, again];
}

async function reasons({ open, assert, facts }) {
  const page = await open("/");
  await page.waitForFunction(() => document.title === "Runs · Telescope");
  const why = page.locator(`tr[data-id="${facts.failed}"] .why`);
  const height = async () => (await why.boundingBox()).height;
  const folded = await height();
  assert.ok(folded < 70, `${folded} px`);
  await why.click();
  assert.ok((await height()) > 2 * folded);
  assert.equal(await why.textContent(), facts.reason);
  await why.press("Enter");
  assert.equal(await height(), folded);
  assert.match(await page.textContent(`tr[data-id="${facts.young}"]`), /starting the engines/);
  const overview = await open(`/overview?runs=${facts.failed}`);
  const banner = overview.locator(".banner-text");
  assert.equal(await banner.getAttribute("aria-expanded"), "false");
  const short = (await banner.boundingBox()).height;
  await banner.click();
  assert.ok((await banner.boundingBox()).height > short);
  // A long model keeps its end, which tells checkpoints apart; the whole path is in its title.
  const model = overview.locator(".fact.long .fact-value");
  assert.match(await model.textContent(), /^policy-of-.+….+step-000120$/);
  assert.ok(await model.evaluate((one) => one.scrollWidth <= one.clientWidth), "it is not cut");
  assert.ok((await overview.getAttribute(".fact.long", "title")).startsWith(facts.model));
  await shot(overview, "overview-failed-light");
  return [page, overview];
}

async function start({ open, assert, facts, found }) {
  const page = await open(`/overview?runs=${facts.young}`);
  await page.waitForFunction(() => document.title === "Overview · young · Telescope");
  assert.equal(await page.textContent(".subject .phase"), "starting the engines");
  const elapsed = () => page.evaluate(() => [...document.querySelectorAll(".fact")].find((one) => one.querySelector(".fact-name").textContent === "Elapsed").textContent);
  const before = await elapsed();
  await page.waitForTimeout(3500);
  assert.notEqual(await elapsed(), before, "time goes on while no file of the run changes");
  assert.match(await page.textContent(".side .run.on small"), /starting the engines/);
  assert.deepEqual(await axe(page), []);
  await shot(page, "overview-starting-light");
  console.log("NEXT-PHASE");
  await page.waitForFunction(() => document.querySelector(".subject .phase")?.textContent === "loading the trainer");
  found.phase = await page.textContent(".subject .phase");
  return [page];
}

run(async (tools) => {
  const pages = [...(await metrics(tools)), ...(await reasons(tools)), ...(await start(tools))];
  tools.assert.deepEqual(pages.flatMap((page) => page.troubles), []);
});
