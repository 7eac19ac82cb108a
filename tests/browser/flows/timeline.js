// Timeline: zoom, pan, details, and a table that is the metrics.

const { run, shot } = require("../harness.js");

const frame = (page) => page.$eval(".gantt canvas", (canvas) => canvas.dataset.window.split("~").map(Number));

run(async ({ open, assert, facts, found }) => {
  const page = await open(`/timeline?runs=${facts.plain}&from=10&steps=4`);
  await page.waitForSelector(".gantt canvas[data-window]");
  const whole = await frame(page);
  await page.focus(".gantt canvas");
  await page.keyboard.press("+");
  const near = await frame(page);
  assert.ok(near[1] - near[0] < 0.7 * (whole[1] - whole[0]), "zoomed in");
  await page.keyboard.press("ArrowRight");
  assert.ok((await frame(page))[0] > near[0], "panned");
  await page.keyboard.press("r");
  assert.deepEqual(await frame(page), whole);

  await page.keyboard.press("n");
  const first = await page.textContent(".gantt-detail");
  await page.keyboard.press("n");
  assert.ok(first && first !== (await page.textContent(".gantt-detail")), "bars are reached by keyboard");

  // A click on a bar of the trainer shows what it is.
  const point = await page.evaluate(() => {
    const canvas = document.querySelector(".gantt canvas");
    const box = canvas.getBoundingClientRect();
    return [box.x, box.y, box.width, box.height];
  });
  let hit = false;
  for (let y = point[3] - 90; y < point[3] - 10 && !hit; y += 6) {
    for (let share = 0.2; share < 0.5 && !hit; share += 0.02) {
      await page.mouse.click(point[0] + 118 + share * (point[2] - 130), point[1] + y);
      hit = /forward|backward|waiting/i.test(await page.textContent(".gantt-detail"));
    }
  }
  assert.ok(hit, "a bar tells its kind");

  // The table agrees with the metric.
  const cells = await page.$$eval(".page-timeline table.grid-table", (tables) => {
    const head = [...tables[0].querySelectorAll("thead tr:last-child th")].map((one) => one.dataset.key || one.textContent);
    return [...tables[0].querySelectorAll("tbody tr")].map((row) => Object.fromEntries([...row.children].map((cell, i) => [head[i], cell.textContent])));
  });
  assert.deepEqual(cells.map((row) => row.Step), ["13", "12", "11", "10"]);
  const series = await page.evaluate(async (id) => (await fetch(`/data/series?run=${id}&keys=timing_forward_total`)).json(), facts.plain);
  const value = series.columns.timing_forward_total[series.steps.indexOf(12)];
  const shown = parseFloat(cells[1].timing_forward_total);
  assert.ok(Math.abs(shown - value) < 0.0006, `${shown} and ${value}`);
  // Each part of the bar beside it is as wide as its share of the step.
  const whole12 = parseFloat(cells[1].timing_step_total);
  const forward = await page.$eval(".timing tbody tr:nth-child(2) .shares", (bar) => {
    const at = bar.getAttribute("aria-label").split(", ").findIndex((one) => one.startsWith("Forward"));
    return bar.children[at].getBoundingClientRect().width / bar.getBoundingClientRect().width;
  });
  assert.ok(Math.abs(forward - value / whole12) < 0.02, `${forward} and ${value / whole12}`);
  assert.ok(await page.$eval(".timing", (table) => table.scrollWidth <= table.parentElement.clientWidth), "the table fits");
  await shot(page, "timeline-light");
  assert.deepEqual(page.troubles, []);
  found.rows = cells.length;
});
