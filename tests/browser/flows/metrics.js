// The All view: search, sections, zoom, cursor, smoothing, full screen, files, definitions, and the address as state.

const fs = require("node:fs");
const { run, shot, painted } = require("../harness.js");

const titles = (page) => page.$$eval(".card.chart .title", (all) => all.map((one) => one.textContent));
const zooms = (page) => page.$$eval(".card.chart", (all) => all.map((one) => one.panel.plot && one.panel.plot.scales.x).filter(Boolean).map((x) => [x.min, x.max].map((v) => Math.round(v * 10) / 10).join("~")));

async function drag(page, plot, from, to) {
  const box = await plot.boundingBox();
  await page.mouse.move(box.x + from * box.width, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + to * box.width, box.y + box.height / 2, { steps: 8 });
  await page.mouse.up();
}

run(async ({ open, assert, facts, found }) => {
  const runs = `${facts.plain},${facts.mixed}`;
  const page = await open(`/metrics?runs=${runs}`);
  await painted(page);
  const total = (await titles(page)).length;
  assert.ok(total > 60, `${total} charts`);

  // Search by pattern, and a half-typed pattern.
  await page.keyboard.press("/");
  await page.keyboard.type("^timing_.*_total$");
  await page.waitForFunction(() => {
    const names = [...document.querySelectorAll(".card.chart .title")].map((one) => one.textContent);
    return names.length && names.every((name) => /total/i.test(name));
  });
  assert.equal(await page.locator(".section").count(), 1);
  await page.waitForFunction(() => location.search.includes("q="));
  await page.fill(".search input", "(");
  await page.waitForTimeout(300);
  await page.fill(".search input", "^(entropy|grad_norm|learning_rate)$");
  await page.waitForFunction(() => document.querySelectorAll(".card.chart").length === 3);

  // Both runs have a line, with their values in the card and under the cursor.
  await page.waitForFunction(() => [...document.querySelectorAll(".card.chart")].every((one) => one.panel.plot));
  const lines = await page.$$eval(".card.chart", (all) => all.map((one) => one.panel.mains().length));
  assert.deepEqual(lines, [2, 2, 2]);
  const over = page.locator(".u-over").first();
  const box = await over.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 40);
  await page.waitForSelector(".hint.on .tip-v");
  assert.equal(await page.locator(".hint.on tr").count(), 2);
  const cursors = await page.$$eval(".card.chart", (all) => all.map((one) => one.panel.plot.cursor.left > 0));
  assert.deepEqual(cursors, [true, true, true], "the cursor is shared");

  // Zoom by drag: every chart follows, the address keeps it, a reload keeps it, a double click leaves it.
  await drag(page, over, 0.3, 0.6);
  await page.waitForFunction(() => location.search.includes("zoom="));
  const zoomed = await zooms(page);
  assert.equal(new Set(zoomed).size, 1);
  await page.reload();
  await page.waitForSelector('.tele[data-ready="true"]');
  await painted(page);
  await page.waitForFunction(() => [...document.querySelectorAll(".card.chart")].every((one) => one.panel.plot));
  const again = await zooms(page);
  assert.ok(Math.abs(parseFloat(again[0]) - parseFloat(zoomed[0])) < 0.2, `${again[0]} and ${zoomed[0]}`);
  await page.keyboard.press("r");
  await page.waitForFunction(() => !location.search.includes("zoom="));

  // The same by keyboard.
  await page.keyboard.press("+");
  await page.waitForFunction(() => location.search.includes("zoom="));
  const middle = (await zooms(page))[0].split("~").map(Number);
  await page.keyboard.press("]");
  await page.waitForFunction((from) => document.querySelector(".card.chart").panel.plot.scales.x.min > from, middle[0] + 0.5);
  await page.keyboard.press("-");
  await page.keyboard.press("-");
  await page.waitForFunction(() => !location.search.includes("zoom="));

  // Smoothing: the raw line stays behind, and the shown value is the raw one.
  const raw = await page.locator(".card.chart .vals").first().textContent();
  await page.locator('.slider input').fill("0.8");
  await page.waitForFunction(() => document.querySelector(".card.chart").panel.current.lines.some((line) => line.role === "raw"));
  assert.equal(await page.locator(".card.chart .vals").first().textContent(), raw);

  // Axes.
  for (const [name, query] of [["Relative", "x=rel"], ["Wall", "x=wall"]]) {
    await page.click(`.seg button:text-is("${name}")`);
    await page.waitForFunction((wanted) => location.search.includes(wanted), query);
  }
  await page.click('.seg button:text-is("Step")');

  // A NaN is a mark and not a hole in the page; a gap is a gap.
  const marks = await page.$$eval(".card.chart", (all) => all.map((one) => [one.dataset.key, one.panel.mains().map((line) => (line.run.series.nonfinite.get(one.dataset.key) || []).length)]));
  assert.deepEqual(Object.fromEntries(marks).grad_norm, [1, 1]);

  // Definition on hover.
  await page.hover('.card.chart[data-key="entropy"] .title');
  await page.waitForSelector(".hint.on .def");
  const said = await page.locator(".hint.on").textContent();
  assert.match(said, /Counted over/);
  assert.match(said, /Absent when/);

  // Full screen by key: statistics, data, files.
  await page.focus('.card.chart[data-key="entropy"]');
  await page.mouse.move(2, 300);
  await page.keyboard.press("f");
  await page.waitForSelector("dialog.full canvas");
  assert.equal(await page.locator("dialog .full-stats tbody tr").count(), 2);
  assert.ok((await page.locator("dialog .full-table tbody tr").count()) >= 60);
  await shot(page, "fullscreen-light");
  const csv = page.waitForEvent("download");
  await page.click('dialog >> text="CSV"');
  const text = fs.readFileSync(await (await csv).path(), "utf8").split("\n");
  assert.equal(text[0], "run,step,time,entropy");
  assert.ok(text.length > 60);
  const png = page.waitForEvent("download");
  await page.click('dialog >> text="PNG"');
  assert.match((await png).suggestedFilename(), /entropy\.png$/);
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });

  // Collapsed sections stay collapsed.
  await page.fill(".search input", "");
  await page.waitForFunction((n) => document.querySelectorAll(".card.chart").length === n, total);
  await page.click("#section-General .section-head");
  await page.reload();
  await page.waitForSelector("#section-General");
  assert.equal(await page.getAttribute("#section-General .section-head", "aria-expanded"), "false");

  // Hiding a run takes its line away; the address says so.
  await page.locator(".side .run.on").first().click();
  await page.waitForFunction(() => document.querySelectorAll(".side .run.on").length === 1);
  await page.waitForFunction((id) => !decodeURIComponent(location.search).includes(id), facts.mixed);

  // 240 metrics: the page holds them all and draws only what is seen.
  const wide = await open(`/metrics?runs=${facts.wide}`);
  await painted(wide);
  const cards = await wide.locator(".card.chart").count();
  const drawn = await wide.locator(".card.chart canvas").count();
  assert.ok(cards >= 240, `${cards} cards`);
  assert.ok(drawn < 60, `${drawn} drawn`);

  assert.deepEqual(page.troubles.concat(wide.troubles), []);
  Object.assign(found, { total, cards, drawn });
});
