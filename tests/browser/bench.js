// Cost of the dashboard in a browser: CPU of the page's main thread, longest tasks, heap, nodes.

const fs = require("node:fs");
const { chromium } = require("playwright-core");

const facts = JSON.parse(process.env.FACTS);
const TALL = { width: 1600, height: 1500 };
const ROUNDS = 7;
const OURS = "telescope-asks";

async function measured(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  return {
    now: async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map((one) => [one.name, one.value])),
    heap: async () => {
      await session.send("HeapProfiler.collectGarbage");
      return (await session.send("Runtime.getHeapUsage")).usedSize / 1e6;
    },
  };
}

// Gradio starts every page alike, and our part of it begins with the first request for data.
function markOurs(name) {
  const fetched = window.fetch;
  window.fetch = (...asked) => {
    if (String(asked[0]?.url || asked[0]).includes("/data/")) performance.mark(name);
    return fetched(...asked);
  };
}

// CPU milliseconds of the longest task of the main thread while something is done, and of the longest one before our
// part began. The wall time of a task says on a busy machine how long it was kept waiting.
async function longestTask(page, doing) {
  const session = await page.context().newCDPSession(page);
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const complete = new Promise((resolve) => session.on("Tracing.tracingComplete", resolve));
  await session.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["toplevel", "blink.user_timing", "devtools.timeline"] } });
  await doing();
  await session.send("Tracing.end");
  await complete;
  const thread = (event) => `${event.pid}:${event.tid}`;
  const mains = new Set(events.filter((event) => event.name === "thread_name" && event.args.name === "CrRendererMain").map(thread));
  const tasks = events.filter((event) => event.name === "ThreadControllerImpl::RunTask" && mains.has(thread(event)) && event.tdur !== undefined);
  if (!tasks.length) throw new Error("the trace holds no task of the main thread");
  const begun = Math.min(...events.filter((event) => event.name === OURS).map((event) => event.ts));
  const isOurs = (event) => !Number.isFinite(begun) || event.ts + event.dur > begun;
  const longest = (some) => some.reduce((most, event) => (event.tdur > most.tdur ? event : most), { tdur: 0 });
  const ours = longest(tasks.filter(isOurs));
  return { longest_ms: ours.tdur / 1000, longest_what: largestPart(events, ours), start_ms: longest(tasks.filter((event) => !isOurs(event))).tdur / 1000 };
}

// What most of a task was: a script by its file's name, or what the browser did by itself.
function largestPart(events, task) {
  const within = events.filter((event) => event.pid === task.pid && event.tid === task.tid && event.cat === "devtools.timeline" && event.name !== "RunTask" && event.ts >= task.ts && event.ts + event.dur <= task.ts + task.dur);
  const part = within.sort((a, b) => b.dur - a.dur)[0];
  const url = part?.args.data?.url || part?.args.data?.fileName || "";
  return part ? `${part.name} ${url.split("/").pop().split("?")[0]}`.trim() : "";
}

async function open(browser, path, ready, size = TALL) {
  const context = await browser.newContext({ viewport: size, reducedMotion: "reduce" });
  await context.addInitScript(markOurs, OURS);
  const page = await context.newPage();
  page.setDefaultTimeout(90000);
  const probe = await measured(page);
  const longest = await longestTask(page, async () => {
    await page.goto(process.env.BASE + path);
    await ready(page);
  });
  return { page, probe, longest };
}

const drawn = (page, wanted) => page.waitForFunction((n) => [...document.querySelectorAll(".card.chart")].filter((one) => one.panel?.plot).length >= n, wanted);

async function load(browser, path, wanted) {
  const { page, probe, longest } = await open(browser, path, (opened) => drawn(opened, wanted));
  const cost = await probe.now();
  const result = { cpu_s: cost.TaskDuration, script_s: cost.ScriptDuration, nodes: cost.Nodes, cards: await page.locator(".card.chart").count(), ...longest, heap_mb: await probe.heap() };
  return { page, probe, result };
}

async function scrolled(page) {
  for (let y = 0; y < 40000; y += 1100) {
    const end = await page.evaluate((to) => (window.scrollTo(0, to), to > document.documentElement.scrollHeight), y);
    await page.waitForTimeout(140);
    if (end) break;
  }
  await page.waitForTimeout(800);
  await page.evaluate(() => window.scrollTo(0, 0));
}

// CPU seconds that the server has used; Linux counts them in hundredths.
function serverCpu() {
  const fields = fs.readFileSync(`/proc/${facts.server_pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

// Opening a page until what it is about is there.
async function shown(browser, path, selector) {
  const begun = Date.now();
  const before = serverCpu();
  let wall_s = 0;
  const { page, probe, longest } = await open(browser, path, async (opened) => {
    await opened.waitForSelector(selector);
    wall_s = (Date.now() - begun) / 1000;
  });
  const result = { wall_s, cpu_s: (await probe.now()).TaskDuration, server_s: serverCpu() - before, ...longest };
  await page.context().close();
  return result;
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
  const found = {};
  // Once through everything, so that files are cached by the server and compiled code by the browser.
  await (await load(browser, `/metrics?runs=${facts.runs[0]}`, 12)).page.context().close();

  const first = await load(browser, `/metrics?runs=${facts.runs[0]}`, 16);
  found.paint_16 = first.result;
  await first.page.context().close();

  for (const [name, run] of [["charts_60", facts.runs[0]], ["charts_240", facts.wide]]) {
    const one = await load(browser, `/metrics?runs=${run}`, 8);
    await scrolled(one.page);
    const cost = await one.probe.now();
    found[name] = { cards: one.result.cards, cpu_s: cost.TaskDuration, nodes: cost.Nodes, heap_mb: await one.probe.heap() };
    await one.page.context().close();
  }

  // Three runs, one of them growing: what a refresh costs, and whether any task is long.
  const live = await load(browser, `/metrics?runs=${[facts.live, ...facts.runs.slice(0, 2)].join(",")}`, 16);
  await live.page.waitForTimeout(3000);
  const version = () => live.page.evaluate((id) => document.querySelector(".card.chart").panel.board.store.run(id).lastStep, facts.live);
  const [cpu, steps, heap] = [(await live.probe.now()).TaskDuration, await version(), await live.probe.heap()];
  const { longest_ms } = await longestTask(live.page, () => live.page.waitForTimeout(facts.soak_s * 1000));
  const refreshes = (await version()) - steps;
  found.live = { refreshes, cpu_ms: (1000 * ((await live.probe.now()).TaskDuration - cpu)) / Math.max(1, refreshes), longest_ms, heap_mb: [heap, await live.probe.heap()] };
  await live.page.context().close();

  const many = await load(browser, `/metrics?runs=${facts.runs.join(",")}`, 8);
  await scrolled(many.page);
  found.ten_runs = { heap_mb: await many.probe.heap(), columns: await many.page.evaluate(() => [...document.querySelector(".card.chart").panel.board.store.series.values()].reduce((sum, run) => sum + run.columns.size, 0)) };
  await many.page.context().close();

  const rounds = [];
  for (let i = 0; i < ROUNDS; i++) rounds.push(await shown(browser, `/rollouts?runs=${facts.big}&step=1`, ".cell"));
  found.step_of_10000 = { ...rounds[0], longest_ms: rounds.map((one) => one.longest_ms), longest_what: rounds.map((one) => one.longest_what), start_ms: rounds.map((one) => one.start_ms) };
  found.many = await shown(browser, `/rollouts?runs=${facts.many}&step=2500`, ".cell");
  found.discarded = await shown(browser, `/discarded?runs=${facts.many}&step=2500`, ".bias tbody tr");
  await browser.close();
  console.log(JSON.stringify(found));
}

main().catch((error) => {
  console.error(error.stack);
  process.exit(1);
});
