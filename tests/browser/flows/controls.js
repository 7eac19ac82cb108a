// The controls of runs with a real cluster behind them: start, logs, stop, resume, duplicate, and why a run failed.

const { run, shot } = require("../harness.js");

const LONG = { timeout: 300000 };
const badge = (page, state) => page.waitForSelector(`.page-head .badge.${state}`, LONG);
const step = (page) => page.$eval(".fact.wide .fact-value", (one) => parseInt(one.textContent.replace(/,/g, ""), 10));
const beyond = (page, n) => page.waitForFunction((than) => parseInt(document.querySelector(".fact.wide .fact-value")?.textContent.replace(/,/g, "") || "0", 10) > than, n, LONG);

// Replaces the whole text of the editor, as somebody who pastes would.
async function write(page, text) {
  await page.click("#config .cm-content");
  await page.keyboard.press("Control+A");
  await page.evaluate((value) => navigator.clipboard.writeText(value), text);
  await page.keyboard.press("Control+V");
}

run(async ({ open, assert, facts, found, browser }) => {
  const context = await browser.newContext({ viewport: { width: 1500, height: 950 }, reducedMotion: "reduce", permissions: ["clipboard-read", "clipboard-write"] });
  // Gradio says so itself when a page is left while its event stream is open.
  const page = await open("/new", { context, allowed: ["AbortError: signal is aborted without reason"] });

  // Validation: a misspelt key by its name, and nothing is started.
  await page.waitForSelector(".verdict.good");
  await write(page, `${facts.config}\ngroup_sise: 4\n`);
  await page.waitForSelector(".verdict.bad >> text=group_size");
  await page.click("#start");
  await page.waitForSelector(".verdict.bad >> text=Not started");
  assert.equal((await (await page.request.get(`${process.env.BASE}/data/runs`)).json()).runs.length, 0);

  // The difference from the defaults, then the start leads to the run.
  await write(page, facts.config);
  await page.waitForSelector(".verdict.good");
  assert.match(await page.textContent(".verdict"), /checkpoint_every/);
  await shot(page, "new-ready-light");
  await page.click("#start");
  await page.waitForURL(/\/overview\?runs=browser-/, LONG);
  found.first = new URL(page.url()).searchParams.get("runs");
  await page.waitForSelector(".page-head .badge");
  await badge(page, "running");

  // Logs are live: the first line stands while later ones come.
  await page.click('.page-head button:text-is("Logs")');
  await page.waitForFunction(() => document.querySelector("dialog .log").textContent.length > 0, null, LONG);
  const before = await page.$eval("dialog .log", (log) => log.textContent.length);
  await page.waitForFunction((n) => document.querySelector("dialog .log").textContent.length > n, before, LONG);
  await shot(page, "logs-light");
  await page.keyboard.press("Escape");
  await beyond(page, 1);
  await shot(page, "overview-running-light");

  await page.click('.page-head button:text-is("Stop")');
  await page.click('dialog button:text-is("Stop")');
  await badge(page, "stopped");
  found.stopped_at = await step(page);
  assert.match(await page.textContent(".banner"), /stopped on request/);

  await page.click('.page-head button:text-is("Resume")');
  await page.fill("dialog textarea", "keep_last=3\n");
  await shot(page, "resume-light");
  await page.click('dialog button:text-is("Resume")');
  await badge(page, "running");
  await page.waitForSelector(".fact >> text=attempt 2");
  await beyond(page, found.stopped_at + 1);
  found.resumed_at = await step(page);
  await page.click('.page-head button:text-is("Stop")');
  await page.click('dialog button:text-is("Stop")');
  await badge(page, "stopped");

  // A duplicate, changed so that it fails: the reason is the first thing on its pages.
  await page.click('.page-head a:has-text("Duplicate")');
  await page.waitForSelector("#verdict .verdict.good");
  assert.match(await page.textContent(".page-head"), /New run from browser/);
  assert.match(await page.textContent("#config .cm-content"), /name: browser/);
  await page.click("#config .cm-content");
  await page.keyboard.press("Control+End");
  const text = facts.config.replace(/^name: browser$/m, "name: dies").replace(/^steps: 400$/m, "steps: 5");
  await write(page, `${text}\nbackend: ${facts.backend}\n`);
  await page.waitForSelector(".verdict.good >> text=DiesInStepThree");
  await page.click("#start");
  await page.waitForURL(/\/overview\?runs=dies-/, LONG);
  found.second = new URL(page.url()).searchParams.get("runs");
  await badge(page, "failed");
  const banner = await page.waitForSelector(".banner.failed >> text=step 3 is my last");
  assert.equal(await banner.evaluate((one) => one.textContent.split("\n")[0]), "ArithmeticError: step 3 is my last");
  assert.ok((await page.locator(".focus-body > :first-child .banner").count()) === 1, "the reason leads the page");
  await shot(page, "overview-failed-light");
  const list = await open("/", { context });
  await list.waitForSelector(`tr[data-id="${found.second}"] .why >> text=step 3 is my last`);
  await shot(list, "runs-after-controls-light");
  const infra = await open(`/infra?runs=${found.first}`, { context });
  await infra.waitForSelector(".actors tbody tr", LONG); // a busy cluster is slow to say its state
  await shot(infra, "infra-cluster-light");
  assert.deepEqual([...page.troubles, ...list.troubles, ...infra.troubles], []);
});
