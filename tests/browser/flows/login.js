// With a token set: a form first, then the page that was asked for; the secret is in no address.

const { run, shot } = require("../harness.js");

run(async ({ open, assert, facts, found }) => {
  const page = await open("/metrics?q=entropy", { ready: false, allowed: ["401"] });
  await page.waitForSelector("form");
  await shot(page, "login");
  await page.fill("input[name=token]", "wrong");
  await page.click("button");
  await page.waitForSelector("text=That is not the token");
  await page.fill("input[name=token]", facts.token);
  await page.click("button");
  await page.waitForSelector('.tele[data-ready="true"]');
  assert.match(page.url(), /\/metrics\?q=entropy/);
  assert.ok(!page.url().includes(facts.token));
  assert.ok(!(await page.content()).includes(facts.token));
  assert.equal(await page.evaluate(() => document.cookie.includes("telescope")), false, "scripts cannot read the session");
  found.fine = true;
});
