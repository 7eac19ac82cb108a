// Samples: filters on the server, texts that stay texts, tokens, two side by side, long texts.

const { run, shot, painted } = require("../harness.js");

const count = (page) => page.locator(".cell").count();

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/rollouts?runs=${facts.mixed}&step=30&outcome=all`);
  await page.waitForSelector(".cell");
  const all = await count(page);
  assert.equal(all, 48);

  // Filter by reward through the page; only matching samples stay.
  await page.fill('input[aria-label="Reward from"]', "0.5");
  await page.keyboard.press("Tab");
  await page.waitForFunction((n) => document.querySelectorAll(".cell").length < n, all);
  const labels = await page.$$eval(".cell", (cells) => cells.map((cell) => cell.getAttribute("aria-label")));
  assert.ok(labels.every((label) => /reward 1,/.test(label)), labels[0]);
  await page.click('button:text-is("Clear filters")');
  await page.waitForFunction((n) => document.querySelectorAll(".cell").length === n, all);

  // Keys go through samples and steps; the address follows.
  await page.locator(".cell").first().click();
  await page.waitForFunction(() => document.querySelector(".detail h2")?.textContent.startsWith("Sample"));
  const first = await page.textContent(".detail h2");
  const named = Object.fromEntries(await page.$$eval(".detail h3", (all) => all.map((one) => [one.textContent, one.parentElement.textContent])));
  assert.match(named["Golden answers"], /answer\s*\d+$/);
  assert.match(named.Tags, /difficulty\s*(easy|hard)$/);
  await page.keyboard.press("j");
  await page.waitForFunction((text) => document.querySelector(".detail h2").textContent !== text, first);
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => new URLSearchParams(location.search).get("step") === "31");

  // Tokens, with what is masked.
  await page.click('.seg button:has-text("Tokens")');
  await page.waitForSelector(".token");
  await page.hover(".tokens .token >> nth=1");
  await page.waitForSelector(".hint.on >> text=Rollout log p");
  await shot(page, "rollouts-tokens-light");

  // Side by side, across steps.
  await page.click('.detail button:has-text("Keep")');
  await page.keyboard.press("j");
  await page.waitForSelector('.detail button:has-text("Compare")');
  await page.click('.detail button:has-text("Compare")');
  await page.waitForSelector("dialog.compare");
  assert.equal(await page.locator("dialog .detail-column").count(), 2);
  await shot(page, "compare-light");
  await page.keyboard.press("Escape");

  // A click on the chart beside the samples jumps to that step.
  const plot = await page.locator(".u-over").first().boundingBox();
  await page.mouse.click(plot.x + plot.width * 0.25, plot.y + plot.height / 2);
  await page.waitForFunction(() => Number(new URLSearchParams(location.search).get("step")) < 20);

  // Discarded samples by reason, and whether selection is biased.
  const discarded = await open(`/discarded?runs=${facts.mixed}`);
  await discarded.waitForSelector(".bias tbody tr");
  await discarded.waitForSelector(".cell");
  assert.ok((await discarded.$$eval(".cell", (cells) => cells.map((cell) => cell.getAttribute("aria-label")))).every((label) => !/, trained$/.test(label)));

  // Hostile texts are inert wherever they are shown.
  const hostile = await open(`/rollouts?runs=${facts.hostile}&step=2&outcome=all`);
  await hostile.waitForSelector(".cell");
  for (let i = 0; i < 8; i++) {
    await hostile.locator(".cell").nth(i).click();
    await hostile.waitForFunction((n) => document.querySelectorAll(".cell")[n].getAttribute("aria-pressed") === "true", i);
    await hostile.waitForTimeout(120);
  }
  assert.equal(await hostile.evaluate(() => window.pwned), undefined);
  assert.equal(await hostile.evaluate(() => getComputedStyle(document.body).display !== "none"), true);
  assert.equal(await hostile.locator(".tele iframe, .tele script, .tele img, .tele style").count(), 0);
  await hostile.locator(".cell").first().click();
  await hostile.waitForSelector("pre.text >> text=<style>body{display:none}</style>");

  // Two million characters: shown in stretches, and the page answers meanwhile.
  await hostile.locator(".cell").nth(5).click();
  await hostile.waitForSelector('button:has-text("characters")');
  const begun = Date.now();
  await hostile.locator('button:has-text("characters")').last().click();
  await hostile.waitForFunction(() => [...document.querySelectorAll("pre.text")].some((one) => one.textContent.length >= 120000));
  found.long_ms = Date.now() - begun;
  assert.ok(found.long_ms < 2000, `${found.long_ms} ms`);
  for (const path of ["/metrics", "/overview", "/timeline", "/"]) {
    const other = await open(`${path}?runs=${facts.hostile}`);
    if (path === "/metrics") {
      await painted(other);
      const keys = await other.$$eval(".card.chart", (cards) => cards.map((card) => card.dataset.key));
      for (const key of facts.keys) assert.ok(keys.includes(key), `a chart for ${key}`);
    }
    assert.equal(await other.evaluate(() => window.pwned), undefined, path);
    assert.equal(await other.locator(".tele iframe, .tele script, .tele img, .tele style").count(), 0, path);
    assert.deepEqual(other.troubles, [], path);
    await other.context().close();
  }
  assert.deepEqual([...page.troubles, ...discarded.troubles, ...hostile.troubles], []);
  found.samples = all;
});
