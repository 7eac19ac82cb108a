// The Custom view: built by mouse and by keyboard, kept on the server, and two browsers that do not overwrite each other.

const { run, shot, painted } = require("../harness.js");

const layout = (page) => page.$$eval(".custom-section", (all) => all.map((one) => [one.querySelector("h2").textContent, [...one.querySelectorAll(".card")].map((card) => card.dataset.key)]));
const version = (page) => page.evaluate(() => Number(document.documentElement.dataset.layoutVersion));
const saved = (page, after) => page.waitForFunction((v) => Number(document.documentElement.dataset.layoutVersion) > v, after);

run(async ({ open, assert, facts, found }) => {
  const path = `/metrics?view=custom&runs=${facts.plain}`;
  const page = await open(path);
  await painted(page);
  const begin = await layout(page);
  assert.deepEqual(begin.map(([title]) => title), ["Learning", "Rollouts", "Speed"]);

  // Add two metrics as one chart, through the catalog.
  let v = await version(page);
  await page.click('button:text-is("Add metrics")');
  await page.fill("dialog .search input", "loss/policy|clip/high");
  await page.click('dialog label:has(code:text-is("loss/policy"))');
  await page.click('dialog label:has(code:text-is("clip/high_fraction"))');
  await page.click('dialog button:text-is("Add as one chart")');
  await saved(page, v);
  const joined = (await layout(page))[0][1].at(-1);
  assert.equal(joined.split("\n").length, 2);

  // Drag the first chart of the second section into the first one, with the mouse.
  v = await version(page);
  const second = page.locator(".custom-section").nth(1);
  const moved = await second.locator(".card").first().getAttribute("data-key");
  await second.locator(".card .grip").first().scrollIntoViewIfNeeded();
  const from = await second.locator(".card .grip").first().boundingBox();
  const to = await page.locator(".custom-section").first().locator(".card").last().boundingBox();
  await page.mouse.move(from.x + 8, from.y + 8);
  await page.mouse.down();
  await page.mouse.move(from.x + 20, from.y - 12, { steps: 6 });
  await page.mouse.move(to.x + to.width / 2, to.y + to.height / 2, { steps: 24 });
  await page.waitForTimeout(250);
  await page.screenshot({ path: `${process.env.SHOTS}/custom-dragging.png` });
  await page.mouse.up();
  await saved(page, v);
  let now = await layout(page);
  assert.ok(now[0][1].includes(moved), "the chart is in the first section");
  assert.ok(!now[1][1].includes(moved), "and no longer in the second");

  // The same by keyboard: left within the group, down into the next section.
  v = await version(page);
  const grip = page.locator(".custom-section").first().locator(".card .grip").nth(1);
  const name = await page.locator(".custom-section").first().locator(".card").nth(1).getAttribute("data-key");
  await grip.focus();
  await page.keyboard.press("ArrowLeft");
  await saved(page, v);
  assert.equal((await layout(page))[0][1][0], name);
  v = await version(page);
  await page.keyboard.press("ArrowDown");
  await saved(page, v);
  now = await layout(page);
  assert.equal(now[1][1][0], name);
  assert.ok(await page.evaluate(() => document.activeElement.classList.contains("grip")), "the handle keeps the focus");

  // Groups and sections move by keyboard too.
  v = await version(page);
  await page.locator(".grip-section").first().focus();
  await page.keyboard.press("ArrowDown");
  await saved(page, v);
  assert.equal((await layout(page))[1][0], "Learning");

  // Undo brings the order back.
  v = await version(page);
  await page.click('button[aria-label="Undo"]');
  await saved(page, v);
  assert.equal((await layout(page))[0][0], "Learning");

  // Another browser sees it; what it then changes makes the first one's next save a conflict.
  const other = await open(path);
  await painted(other);
  assert.deepEqual(await layout(other), await layout(page));
  v = await version(other);
  await other.click('button:text-is("Section")');
  await saved(other, v);
  await page.locator(".grip-section").first().focus();
  await page.keyboard.press("ArrowDown");
  await page.waitForSelector(".toast.on >> text=changed in another browser");
  assert.equal((await layout(page)).length, 4, "the other browser's section is shown");

  // Rename, duplicate, remove.
  v = await version(page);
  await page.locator(".custom-section").last().locator('button[aria-label^="More for Section"]').click();
  await page.click('.menu-item:text-is("Rename")');
  await page.fill("dialog input", "Mine <b>");
  await page.click('dialog button:text-is("Save")');
  await saved(page, v);
  assert.equal((await layout(page)).at(-1)[0], "Mine <b>");
  await shot(page, "custom-light");

  await page.reload();
  await painted(page);
  assert.equal((await layout(page)).at(-1)[0], "Mine <b>", "it survives a reload");
  assert.deepEqual(page.troubles.filter((text) => !text.includes("409")), []);
  found.sections = (await layout(page)).length;
});
