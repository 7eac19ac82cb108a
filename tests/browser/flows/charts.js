// What charts and cells say besides their lines: declared ranges, bands, gaps, marks, scales. And the keys of a page.

const { run, shot, painted } = require("../harness.js");

const ready = (page) => page.waitForFunction(() => document.querySelectorAll(".card.chart").length && [...document.querySelectorAll(".card.chart")].every((card) => card.panel.plot));
const card = (key) => `.card.chart[data-key="${key}"]`;
const y = (page, key) => page.$eval(card(key), ({ panel }) => [panel.plot.scales.y.min, panel.plot.scales.y.max]);
const bands = (page, key) => page.$eval(card(key), ({ panel }) => panel.current.lines.map((line) => line.band).filter(Boolean).sort());

// What a chart paints because of something in its runs: the picture without it has to differ.
const paints = (page, key, name, less) => page.$eval(card(key), ({ panel }, [what, value]) => {
  const { plot } = panel;
  const look = () => (plot.redraw(false, false), plot.ctx.canvas.toDataURL());
  return new Promise((resolve) => requestAnimationFrame(() => {
    const whole = look();
    requestAnimationFrame(() => {
      const owner = what === "range" ? panel.board.view : panel.mains()[0].run.series;
      const kept = owner[what];
      owner[what] = what === "nonfinite" ? new Map() : value;
      plot.redraw(false, false);
      requestAnimationFrame(() => {
        const without = plot.ctx.canvas.toDataURL();
        owner[what] = kept;
        resolve(whole !== without);
      });
    });
  }));
}, [name, less]);

async function charts({ open, assert, facts }) {
  const resumed = await open(`/overview?runs=${facts.mixed}`);
  await resumed.waitForSelector(".bins");
  assert.match(await resumed.textContent(".pair"), /started by attempt 2, every one in exactly one bin/);
  assert.match(await resumed.textContent(".bins"), /In flight.*not finished when the run ended/);
  await resumed.close();

  // The declared range is the y axis, per environment, whatever the values; without it the axis is the data's.
  const page = await open(`/metrics?runs=${facts.ranged}&q=${encodeURIComponent("^reward/.+/reward$")}`);
  await ready(page);
  const [coins, sums] = [await y(page, "reward/coins/reward"), await y(page, "reward/sums/reward")];
  assert.ok(coins[0] <= 0 && coins[1] >= 10 && coins[1] < 11, `coins ${coins}`);
  assert.ok(sums[0] <= 0 && sums[1] >= 1 && sums[1] < 1.1, `sums ${sums}`);
  assert.ok(await paints(page, "reward/coins/reward", "range", false), "dashed lines at the declared range");
  await page.click('.pill:text-is("Range")');
  await page.waitForFunction((selector) => document.querySelector(selector).panel.plot.scales.y.max < 9, card("reward/coins/reward"));
  await page.click('.pill:text-is("Range")');

  // Mean, ±σ and min–max are one chart; each band can be left out.
  const mixed = await open(`/metrics?runs=${facts.mixed}&q=${encodeURIComponent("^(reward/sums/reward|entropy|grad_norm)$")}`);
  await ready(mixed);
  assert.deepEqual(await bands(mixed, "reward/sums/reward"), ["minmax", "std"]);
  await mixed.click('.pill:text-is("±σ")');
  await mixed.waitForFunction((selector) => !document.querySelector(selector).panel.current.lines.some((line) => line.band === "std"), card("reward/sums/reward"));
  await mixed.click('.pill:text-is("min–max")');
  await mixed.waitForFunction((selector) => !document.querySelector(selector).panel.current.lines.some((line) => line.band), card("reward/sums/reward"));

  // A value that is not finite leaves a gap in the line and a mark; an attempt has its line.
  const around = await mixed.$eval(card("grad_norm"), ({ panel }) => {
    const [xs, ys] = [panel.plot.data[0], panel.mains()[0].main];
    return [6, 6.5, 7, 7.5, 8].map((x) => (xs.includes(x) ? ys[xs.indexOf(x)] : undefined));
  });
  assert.ok(around[0] != null && around[4] != null, String(around));
  assert.ok(around.slice(1, 4).every((value) => value == null) && around.slice(1, 4).includes(null), `a gap between steps 6 and 8: ${around}`);
  assert.ok(await paints(mixed, "grad_norm", "nonfinite"), "a mark at the value that is not finite");
  assert.ok(await paints(mixed, "entropy", "attempts", []), "a line where an attempt began");

  // Scales: logarithm, no first step, no outliers.
  const wide = await open(`/metrics?runs=${facts.wide}&q=${encodeURIComponent("^spike$")}`);
  await ready(wide);
  assert.ok((await y(wide, "spike"))[1] >= 500);
  const tick = async (name) => {
    await wide.click('.menu .pill:has-text("Display")');
    await wide.click(`.menu-panel label:has-text("${name}")`);
    await wide.keyboard.press("Escape");
  };
  await tick("Clip outliers");
  await wide.waitForFunction((selector) => document.querySelector(selector).panel.plot.scales.y.max < 20, card("spike"));
  await tick("Ignore the first step");
  await wide.waitForFunction((selector) => document.querySelector(selector).panel.plot.data[0][0] === 2, card("spike"));
  await tick("Logarithmic y");
  await wide.waitForFunction((selector) => document.querySelector(selector).panel.plot.scales.y.distr === 3, card("spike"));
  await wide.waitForFunction(() => ["clip=1", "skip1=1", "log=1"].every((part) => location.search.includes(part)));
  await mixed.waitForFunction(() => ["std=0", "minmax=0"].every((part) => location.search.includes(part)));
  return [page, mixed, wide];
}

// Cells stand at their share of the declared range of their environment, turned over where less is better.
async function cells({ open, assert, facts }) {
  const shares = (page) => page.$$eval(".cell", (all) => all.map((cell) => [Number(cell.getAttribute("aria-label").match(/(?:reward|tries) (-?[\d.]+)/)?.[1]), parseFloat(cell.style.getPropertyValue("--v"))]));
  const ranged = await open(`/rollouts?runs=${facts.ranged}&step=10&env=coins`);
  await ranged.waitForSelector(".cell");
  for (const [reward, share] of await shares(ranged)) assert.ok(Math.abs(share - 10 * reward) <= 1, `coins ${reward} of 10 stands at ${share} %`);
  await ranged.selectOption('select[aria-label="Environment"]', "sums");
  await ranged.waitForFunction(() => [...document.querySelectorAll(".grp .tag")].every((tag) => tag.textContent === "sums"));
  for (const [reward, share] of await shares(ranged)) assert.ok(Math.abs(share - 100 * reward) <= 1, `sums ${reward} of 1 stands at ${share} %`);
  const tries = await open(`/rollouts?runs=${facts.plain}&step=10&outcome=all&by=tries`);
  await tries.waitForSelector(".cell");
  const known = (await shares(tries)).filter(([value]) => Number.isFinite(value));
  assert.ok(known.length > 4);
  for (const [value, share] of known) assert.ok(Math.abs(share - 100 * (1 - value / 5)) <= 1, `${value} tries of 5, fewer are better, stand at ${share} %`);
  return [ranged, tries];
}

async function keys({ open, assert, facts }) {
  const page = await open(`/metrics?runs=${facts.plain}&q=entropy`);
  await painted(page);
  await page.keyboard.press("?");
  await page.waitForSelector("dialog .keys");
  assert.match(await page.textContent("dialog .keys"), /Full screen/);
  await page.keyboard.press("Escape");
  const dark = () => page.evaluate(() => document.documentElement.classList.contains("dark"));
  const before = await dark();
  await page.keyboard.press("d");
  assert.equal(await dark(), !before);
  await page.reload();
  await page.waitForSelector('.tele[data-ready="true"]');
  assert.equal(await dark(), !before, "the choice is kept");
  return [page];
}

run(async (tools) => {
  const pages = [...(await charts(tools)), ...(await cells(tools)), ...(await keys(tools))];
  await shot(pages[1], "charts-scales-light");
  tools.assert.deepEqual(pages.flatMap((page) => page.troubles), []);
  tools.found.pages = pages.length;
});
