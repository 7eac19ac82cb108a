// Long names and words stay within their cards, names that are no paths are whole, and nothing is said twice.

const { run, shot } = require("../harness.js");

const LONG = "accelerator_type:a-name-with-many-words-that-somebody-gave-to-a-resource-of-a-cluster";

// What a cluster with a long resource and long actors would say of itself.
async function crowd(route) {
  const answer = await route.fetch();
  const total = { CPU: 2, [LONG]: 1000, memory: 16e9 };
  const actors = [{ class: "ActorLocationTracker", name: "_ray_internal_job_actor_of_a_run_with_a_long_name", state: "ALIVE", pid: 26969 }];
  const nodes = [{ name: "192.0.2.7", alive: true, resources: { CPU: 16, GPU: 2, memory: 64e9 } }, { name: "a-node-with-a-very-long-name-of-its-own.example.org", alive: false, resources: { CPU: 16 } }];
  const found = [{ name: "NVIDIA H200", busy_percent: 93, memory_used: 100e9, memory_total: 150e9 }, { name: "A slice of one", busy_percent: null, memory_used: null, memory_total: null }];
  const said = await answer.json();
  await route.fulfill({ response: answer, json: { ...said, host: { ...said.host, gpus: { found, problem: null } }, ray: { total, available: { CPU: 1 }, nodes, actors } } });
}

async function infra({ open, assert, facts, browser }) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 950 }, reducedMotion: "reduce" });
  await context.route("**/data/infra", crowd);
  const page = await open(`/infra?runs=${facts.closing}`, { context });
  const name = page.locator(`.resources td[title="${LONG}"]`);
  await name.waitFor();
  const right = (selector) => page.$eval(selector, (one) => one.getBoundingClientRect().right);
  const actors = await page.$eval(".actors", (one) => one.getBoundingClientRect().left);
  assert.ok((await right(".resources table")) < actors, "the tables are beside each other");
  assert.ok((await right(".resources .meter")) < actors, "so are their bars");
  assert.ok((await right(".nodes")) < actors, "the nodes are below the resources");
  const rows = (selector) => page.$$eval(`${selector} tbody tr`, (found) => found.map((one) => [...one.cells].map((cell) => cell.textContent)));
  assert.deepEqual(await rows(".nodes"), [["192.0.2.7", "16", "2", "60 GB", "alive"], ["a-node-with-a-very-long-name-of-its-own.example.org", "16", "–", "–", "dead"]]);
  assert.deepEqual(await rows(".gpus"), [["0 · NVIDIA H200", "93 %", "", "93 GB", "140 GB", ""], ["1 · A slice of one", "–", "", "–", "–", ""]]);
  assert.ok(await name.evaluate((one) => one.scrollWidth > one.clientWidth), "the long name is cut");
  await shot(page, "infra-crowded-light");
  return page;
}

async function overview({ open, assert, facts }) {
  const page = await open(`/overview?runs=${facts.closing}`);
  await page.waitForSelector(".checks .cause >> text=yyyy");
  const out = await page.$$eval(".card.pad", (cards) => cards.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent.slice(0, 60)));
  assert.deepEqual(out, [], "words run out of their card");
  const left = page.locator('.fact:has(.fact-name:text-is("Time left"))');
  assert.equal(await left.locator(".fact-value").textContent(), "–");
  assert.equal(await left.locator(".fact-note").textContent(), "all steps done");
  await shot(page, "overview-crowded-light");
  const failed = await open(`/overview?runs=${facts.failed}`);
  await failed.waitForSelector(".banner.failed");
  assert.equal(await failed.locator('button:has-text("Logs")').count(), 1);
  return [page, failed];
}

async function models({ open, assert, facts }) {
  const page = await open("/");
  for (const [id, model] of Object.entries(facts.models)) {
    const cell = page.locator(`tr[data-id="${id}"] td.clip`);
    assert.equal(await cell.getAttribute("title"), model);
    const shown = await cell.evaluate((one) => one.firstChild.textContent);
    const [start, end] = shown.split("…");
    assert.ok(model.startsWith(start) && model.endsWith(end ?? model), `${model} is shown as ${shown}`);
  }
  return page;
}

run(async (tools) => {
  const pages = [await infra(tools), ...(await overview(tools)), await models(tools)];
  tools.assert.deepEqual(pages.flatMap((page) => page.troubles), []);
  tools.found.fine = true;
});
