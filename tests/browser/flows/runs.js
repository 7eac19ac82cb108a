// Runs: search, filter by configuration, reasons, logs that grow, notes, archive, and the form for a new run.

const fs = require("node:fs");
const { run, shot } = require("../harness.js");

const names = (page) => page.$$eval(".run-table tbody tr", (rows) => rows.map((row) => row.querySelector("a").textContent));

run(async ({ open, assert, facts, found }) => {
  const page = await open("/");
  await page.waitForSelector(".run-table tbody tr");
  const all = await names(page);
  assert.equal(all.length, 6);
  assert.match(await page.textContent(`tr[data-id="${facts.failed}"] .why`), /out of memory/);
  assert.equal(await page.locator(".row-acts button:disabled").count(), 6, "without a cluster nothing can be stopped");

  await page.fill(".search input", "steps=12");
  await page.waitForFunction(() => document.querySelectorAll(".run-table tbody tr").length === 1);
  assert.deepEqual(await names(page), ["failed"]);
  await page.fill(".search input", "");
  await page.click('.seg button:text-is("Finished")');
  await page.waitForFunction(() => document.querySelectorAll(".run-table tbody tr").length === 4);
  await page.click('.seg button:text-is("All")');

  // Logs: what is written while they are open appears.
  const row = page.locator(`tr[data-id="${facts.plain}"]`);
  await row.locator('button[aria-label^="Logs of"]').click();
  await page.waitForSelector("dialog .log");
  fs.appendFileSync(facts.log, "step 31 <b>done</b> 🎯\n");
  await page.waitForFunction(() => document.querySelector("dialog .log").textContent.includes("step 31 <b>done</b> 🎯"));
  await page.keyboard.press("Escape");

  // Name, tags, notes, colour.
  await row.locator('button[aria-label^="More for"]').click();
  await page.click('.menu-item:has-text("Rename")');
  await page.fill('dialog label:has-text("Name") input', "Baseline <i>");
  await page.fill('dialog label:has-text("Tags") input', "a, b");
  await page.fill("dialog textarea", "first line\nsecond");
  await page.click('dialog button[aria-label="Colour 4"]');
  await page.click('dialog button:text-is("Save")');
  await page.waitForSelector(`tr[data-id="${facts.plain}"] >> text=Baseline <i>`);
  assert.match(await row.textContent(), /first line/);

  // Archive and take it back.
  await row.locator('button[aria-label^="More for"]').click();
  await page.click('.menu-item:text-is("Archive")');
  await page.waitForFunction(() => document.querySelectorAll(".run-table tbody tr").length === 5);
  await page.click('.toast button:text-is("Undo")');
  await page.waitForFunction(() => document.querySelectorAll(".run-table tbody tr").length === 6);

  // Two chosen: their difference, then both in one chart.
  await row.locator("input").check();
  await page.locator(`tr[data-id="${facts.failed}"] input`).check();
  await page.click('button:has-text("Compare configurations")');
  await page.waitForSelector("dialog .diff");
  assert.match(await page.textContent("dialog"), /steps/);
  await page.keyboard.press("Escape");
  await shot(page, "runs-chosen-light");
  await page.click('a:has-text("Overlay in Metrics")');
  await page.waitForSelector('.page-metrics .side .run.on');
  assert.equal(await page.locator(".side .run.on").count(), 2);
  await page.click('.nav-holder a:has-text("Overview")');
  await page.waitForSelector(".page-overview .facts");
  assert.ok(page.url().includes(facts.plain), "the chosen runs go along");
  await page.waitForSelector('.page-overview .fact-name:has-text("Metrics")');
  assert.match(await page.textContent(".page-overview .facts"), /Metrics wait4 msin the newest step/);

  // The form: a valid text, then a misspelt key.
  const form = await open("/new");
  await form.waitForSelector(".verdict.good");
  assert.match(await form.textContent(".verdict"), /settings differ from their defaults/);
  await form.click("#config .cm-content");
  await form.keyboard.press("Control+End");
  await form.keyboard.type("\ngroup_sise: 4");
  await form.waitForSelector(".verdict.bad >> text=group_size");
  await shot(form, "new-invalid-light");
  const duplicate = await open(`/new?from=${facts.plain}`);
  await duplicate.waitForSelector("#verdict .verdict");
  assert.match(await duplicate.textContent("#config .cm-content"), /name: plain/);

  assert.deepEqual([...page.troubles, ...form.troubles, ...duplicate.troubles], []);
  found.runs = all.length;
});
