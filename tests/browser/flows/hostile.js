// A run whose every text is an attack, on every page and in every dialog: it is shown, and does nothing.

const { run, shot, axe } = require("../harness.js");

const PAGES = ["/", "/overview", "/metrics", "/metrics?view=custom", "/rollouts?step=2&outcome=all", "/discarded", "/timeline", "/evals", "/infra", "/new"];

run(async ({ open, assert, facts, found }) => {
  const inert = async (page, where) => {
    assert.equal(await page.evaluate(() => window.pwned), undefined, where);
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).display !== "none"), true, where);
    assert.equal(await page.locator(".tele iframe, .tele script, .tele img, .tele style, .tele b b, .tele u").count(), 0, where);
    assert.deepEqual(await page.$$eval(".tele a", (all) => all.map((one) => one.href).filter((href) => !/^(https?|blob):/.test(href))), [], where);
  };
  const seen = [];
  for (const path of PAGES) {
    const query = path === "/new" ? `from=${facts.hostile}` : `runs=${facts.hostile}${path.includes("custom") ? `&layout=${encodeURIComponent(facts.layout)}` : ""}`;
    const page = await open(`${path}${path.includes("?") ? "&" : "?"}${query}`);
    await page.waitForTimeout(500);
    if (path.startsWith("/rollouts")) {
      await page.locator(".cell").last().click();
      await page.waitForSelector(".turn .role.bad");
    }
    await inert(page, path);
    const text = await page.evaluate(() => document.body.textContent);
    assert.ok(text.includes("<img src=x onerror=window.pwned=1>"), `${path} shows the text as text`);
    const troubles = [...(await axe(page)), ...page.troubles];
    assert.deepEqual(troubles, [], path);
    await shot(page, `hostile-${path.replace(/[^a-z]+/g, "-").replace(/^-|-$/g, "") || "runs"}`);
    seen.push(path);
    await page.context().close();
  }

  // Dialogs and boxes of the list: logs, description, difference.
  const list = await open("/");
  const row = list.locator(`tr[data-id="${facts.hostile}"]`);
  await row.locator('button[aria-label^="Logs of"]').click();
  await list.waitForFunction(() => document.querySelector("dialog .log")?.textContent.includes("onerror"));
  await inert(list, "logs");
  await list.keyboard.press("Escape");
  await row.locator('button[aria-label^="More for"]').click();
  await list.click('.menu-item:has-text("Rename")');
  await inert(list, "description");
  await list.keyboard.press("Escape");
  await row.locator("input").check();
  await list.locator(`tr[data-id="${facts.plain}"] input`).check();
  await list.click('button:has-text("Compare configurations")');
  await list.waitForSelector("dialog .diff");
  await inert(list, "difference");
  await list.keyboard.press("Escape");

  // Definitions, full screen, the catalog, and the filters of samples.
  const metrics = await open(`/metrics?runs=${facts.hostile}&q=bold`);
  await metrics.waitForSelector(".card.chart canvas");
  await metrics.hover(".card.chart .title");
  await metrics.waitForSelector(".hint.on");
  await inert(metrics, "definition");
  await metrics.click(".card.chart .title");
  await metrics.waitForSelector("dialog.full canvas");
  await inert(metrics, "full screen");
  await metrics.keyboard.press("Escape");
  await metrics.goto(`${process.env.BASE}/rollouts?runs=${facts.hostile}&step=2&outcome=all&tag=${encodeURIComponent("<i>t</i>=<u>v</u>")}`);
  await metrics.waitForSelector(".cell");
  await metrics.hover(".cell");
  await metrics.waitForSelector(".hint.on");
  await inert(metrics, "a sample's box");
  assert.deepEqual([...list.troubles, ...metrics.troubles], []);
  found.pages = seen.length;
});
