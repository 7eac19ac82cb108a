// No run at all: every page comes up and says what to type.

const { run, shot } = require("../harness.js");

run(async ({ open, assert, found }) => {
  for (const path of ["/", "/overview", "/metrics", "/rollouts", "/discarded", "/timeline", "/evals", "/infra"]) {
    const page = await open(path);
    await page.waitForSelector(".empty >> text=No runs yet");
    assert.match(await page.textContent(".tele"), /make demo/, path);
    assert.deepEqual(page.troubles, [], path);
    if (path === "/") await shot(page, "empty-light");
    await page.context().close();
  }
  found.fine = true;
});
