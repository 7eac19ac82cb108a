// A run that is removed from the disk while pages show it: they say so, go on with another, and begin anew with none.

const { run, painted } = require("../harness.js");

run(async ({ open, assert, facts, found }) => {
  const allowed = ["404"];
  const metrics = await open(`/metrics?runs=${facts.first},${facts.second}`, { allowed });
  const overview = await open(`/overview?runs=${facts.first}`, { allowed });
  const rollouts = await open(`/rollouts?runs=${facts.first}`, { allowed });
  await painted(metrics);
  // A link to a run that there is not, or no longer: what is shown instead is not passed off as it.
  const astray = await open(`/overview?runs=${facts.second},sums-20260101-000000-dead`);
  await astray.waitForSelector(".toast.on >> text=sums-20260101-000000-dead");
  assert.equal(await astray.locator(".page-head .name").textContent(), "b");
  assert.deepEqual(astray.troubles, []);
  await astray.close();
  console.log("REMOVE-A");
  const wake = (page) => page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  for (const page of [metrics, overview, rollouts]) await wake(page);
  await metrics.waitForSelector(".toast.on >> text=removed");
  await metrics.waitForFunction(() => document.querySelectorAll(".side .run").length === 1);
  await metrics.waitForFunction((id) => document.querySelector(".card.chart").panel.mains().every((line) => line.run.id === id), facts.second);
  for (const page of [overview, rollouts]) {
    await page.waitForSelector(".page-head .name >> text=b");
    assert.equal(await page.locator(".live.bad").count(), 0);
  }
  console.log("REMOVE-B");
  for (const page of [metrics, overview, rollouts]) {
    await wake(page);
    await page.waitForSelector(".empty >> text=No runs yet");
  }
  assert.deepEqual([...metrics.troubles, ...overview.troubles, ...rollouts.troubles], []);
  found.fine = true;
});
