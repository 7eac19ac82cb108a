// The Custom view: built by mouse and by keyboard, kept on the server, and two browsers that do not overwrite each other.

const { run, shot, painted } = require("../harness.js");

const layout = (page) => page.$$eval(".custom-section", (all) => all.map((one) => [one.querySelector("h2").textContent, [...one.querySelectorAll(".card")].map((card) => card.dataset.key)]));
const version = (page) => page.evaluate(() => Number(document.documentElement.dataset.layoutVersion));
const saved = (page, after) => page.waitForFunction((v) => Number(document.documentElement.dataset.layoutVersion) > v, after);

const groups = (page) => page.$$eval(".custom-section", (all) => all.map((one) => one.querySelectorAll(".group").length));

// Chooses from the menu of a section or a chart, and waits until the change is saved.
async function menu(page, place, item) {
  const before = await version(page);
  const owner = page.locator(place);
  await owner.scrollIntoViewIfNeeded();
  await owner.hover();
  await owner.locator('button[aria-label^="More for"]').click();
  await page.click(`.menu-item:text-is("${item}")`);
  await saved(page, before);
}

async function dragTo(page, grip, target, below) {
  await grip.scrollIntoViewIfNeeded();
  const from = await grip.boundingBox();
  await page.mouse.move(from.x + 8, from.y + 8);
  await page.mouse.down();
  await page.mouse.move(from.x + 20, from.y + 24, { steps: 6 });
  const to = await target.boundingBox();
  await page.mouse.move(to.x + 60, to.y + to.height / 2 + below, { steps: 24 });
  await page.waitForTimeout(250);
  await page.mouse.up();
}

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

  // Groups and sections move too: a group by keyboard, out of its section, and a section by mouse and by keyboard.
  await menu(page, ".custom-section >> nth=0 >> .section-bar", "Add group");
  assert.equal(await page.locator(".custom-section").first().locator(".group").count(), 2);
  v = await version(page);
  await page.locator(".custom-section").first().locator(".grip-group").last().focus();
  await page.keyboard.press("ArrowDown");
  await saved(page, v);
  assert.deepEqual(await groups(page), [1, 2, 1]);
  const order = (await layout(page)).map(([title]) => title);
  v = await version(page);
  await dragTo(page, page.locator(".grip-section").first(), page.locator(".custom-section").nth(1).locator(".section-bar"), 30);
  await saved(page, v);
  assert.deepEqual((await layout(page)).map(([title]) => title), [order[1], order[0], order[2]]);
  v = await version(page);
  await page.click('button[aria-label="Undo"]');
  await saved(page, v);
  assert.deepEqual((await layout(page)).map(([title]) => title), order);
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

  // A chart is made wider, doubled and removed.
  const first = page.locator(".custom-section").first();
  const cards = await first.locator(".card").count();
  await menu(page, ".custom-section >> nth=0 >> .card >> nth=0", "Width 2 of 3");
  assert.ok(await first.locator(".card").first().evaluate((card) => card.classList.contains("width-2")));
  await menu(page, ".custom-section >> nth=0 >> .card >> nth=0", "Duplicate");
  assert.equal(await first.locator(".card").count(), cards + 1);
  await menu(page, ".custom-section >> nth=0 >> .card >> nth=0", "Remove");
  assert.equal(await first.locator(".card").count(), cards);

  // Layouts have names; one leaves as a file and comes back from it.
  await page.click('button[aria-label="Layouts"]');
  await page.click('.menu-item:text-is("Duplicate this layout")');
  await page.fill("dialog input", "mine");
  await page.click('dialog button:text-is("Create")');
  await page.waitForFunction(() => location.search.includes("layout=mine"));
  const file = page.waitForEvent("download");
  await page.click('button[aria-label="Layouts"]');
  await page.click('.menu-item:text-is("Export as a file")');
  const kept = await (await file).path();
  const whole = await layout(page);
  await menu(page, ".custom-section >> nth=0 >> .card >> nth=0", "Remove");
  assert.notDeepEqual(await layout(page), whole);
  const chooser = page.waitForEvent("filechooser");
  await page.click('button[aria-label="Layouts"]');
  await page.click('.menu-item:text-is("Import a file")');
  await (await chooser).setFiles(kept);
  await page.waitForSelector(".toast.on >> text=Layout imported");
  assert.deepEqual(await layout(page), whole);
  await page.selectOption('select[aria-label="Layout"]', "default");
  await page.waitForFunction(() => !location.search.includes("layout="));

  await page.reload();
  await painted(page);
  assert.equal((await layout(page)).at(-1)[0], "Mine <b>", "it survives a reload");
  assert.deepEqual(page.troubles.filter((text) => !text.includes("409")), []);
  found.sections = (await layout(page)).length;
});
