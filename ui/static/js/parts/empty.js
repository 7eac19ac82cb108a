// What a page says when it has nothing to show: why, and what to type.

import { button, h } from "../core/dom.js";
import { Poll } from "../core/poll.js";
import { say } from "./toast.js";

export function empty(title, text, ...more) {
  return h("div", { class: "empty" }, h("div", { class: "empty-mark", "aria-hidden": "true" }), h("h2", {}, title), h("p", {}, text), more);
}

export function command(text) {
  return h("div", { class: "command" }, h("code", {}, text), button("Copy", async () => {
    await navigator.clipboard?.writeText(text);
    say("Copied");
  }, { kind: "quiet", icon: "copy", "aria-label": `Copy the command ${text}` }));
}

export const noRuns = (root) => empty("No runs yet", `Runs appear here as soon as they start. This dashboard looks in ${root || "the runs folder"}.`, command("make demo"), command("ray job submit --working-dir . -- python -m app.train configs/demo.yaml"));

// A page that has nothing to show begins by itself once the first run is there.
export function waitForRuns(session) {
  new Poll(async () => {
    await session.list(true);
    if (session.rows.length) location.reload();
    return true;
  }, () => {}).now();
}
