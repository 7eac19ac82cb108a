// What every flow needs: a browser, pages that watch themselves, and a place for screenshots.

const assert = require("node:assert/strict");
const { chromium } = require("playwright-core");

const BASE = process.env.BASE;
const FACTS = JSON.parse(process.env.FACTS || "{}");
const AXE = require.resolve("axe-core/axe.min.js");
const WIDE = { width: 1500, height: 950 };

// Everything that a page must not do: errors in the console, requests elsewhere, answers that are not fine.
function watch(page, allowed = []) {
  page.troubles = [];
  const note = (text) => allowed.some((one) => text.includes(one)) || page.troubles.push(text);
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && note(`console: ${message.text()}`));
  page.on("pageerror", (error) => note(`error: ${error.stack}`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (["http:", "https:", "ws:", "wss:"].includes(url.protocol) && url.hostname !== "127.0.0.1") note(`outside: ${url}`);
  });
  page.on("response", (response) => response.status() >= 400 && note(`${response.status()}: ${response.url()}`));
  return page;
}

async function run(flow) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"] });
  const found = {};
  const open = async (path, { theme = "light", size = WIDE, context, allowed, ready = true, init } = {}) => {
    const where = context || (await browser.newContext({ viewport: size, colorScheme: theme, acceptDownloads: true, reducedMotion: "reduce" }));
    if (init) await where.addInitScript(init);
    const page = watch(await where.newPage(), allowed);
    page.setDefaultTimeout(30000);
    await page.goto(BASE + path);
    if (ready) await page.waitForSelector('.tele[data-ready="true"]');
    return page;
  };
  try {
    await flow({ open, assert, facts: FACTS, found, browser });
    console.log(JSON.stringify(found));
  } catch (error) {
    console.error(error.stack);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}

async function shot(page, name, options = {}) {
  await page.mouse.move(4, 4);
  await page.waitForTimeout(350);
  await page.screenshot({ path: `${process.env.SHOTS}/${name}.png`, ...options });
}

async function axe(page) {
  await page.addScriptTag({ path: AXE }).catch(async () => page.evaluate(require("node:fs").readFileSync(AXE, "utf8")));
  return page.evaluate(async () => {
    const found = await window.axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map((one) => `${one.id} (${one.impact}): ${one.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 140)} ${node.any[0]?.message || ""}`).join(" | ")}`);
  });
}

const painted = (page) => page.waitForFunction(() => document.querySelectorAll(".chart canvas").length > 0 && document.documentElement.dataset.painted);

module.exports = { run, shot, axe, painted, WIDE };
