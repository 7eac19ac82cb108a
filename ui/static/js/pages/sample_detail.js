// One sample with all its parts. Every text in it was written by a model, a user or a data set, and stays text.

import { button, fill, h, iconButton } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { count, duration, isMarker, number, shown } from "../core/format.js";
import { segments } from "../parts/controls.js";
import { openDialog } from "../parts/dialog.js";
import { say } from "../parts/toast.js";
import { tokenView } from "./sample_tokens.js";

const CHUNK = 100000;

export function showSample(place, sample, page) {
  fill(place, head(sample, page), content(sample, page));
  place.scrollTop = 0;
}

function head(sample, page) {
  const compare = page.pinned && page.pinned.sample_id !== sample.sample_id;
  return h("header", { class: "detail-head" },
    h("h2", {}, `Sample ${sample.sample_id}`), h("span", { class: "tag" }, sample.env), h("span", { class: `outcome bin-text-${sample.outcome}` }, sample.outcome.replace(/_/g, " ")),
    h("span", { class: "grow" }),
    button(compare ? "Compare" : "Keep", () => page.pin(sample), { icon: compare ? "compare" : "pin", title: compare ? "Side by side with the sample that was kept" : "Keep this sample to compare it with another" }),
    iconButton("left", "Previous sample (↑)", () => page.nextSample(-1)), iconButton("right", "Next sample (↓)", () => page.nextSample(1)));
}

function content(sample, page) {
  const body = h("div", { class: "detail-body" });
  const tabs = { text: () => texts(sample, page), tokens: () => tokenView(sample) };
  const show = (name) => {
    page.tab = name;
    fill(body, tabs[name]());
  };
  const chosen = page.tab || "text";
  show(chosen);
  return [facts(sample), segments("View", [["text", "Text"], ["tokens", `Tokens (${count(sample.num_token_ids)})`]], chosen, show), body];
}

// Ids of problems are often long digests: their beginning tells them apart, the rest is in the title.
const brief = (text) => (text && text.length > 13 ? h("span", { title: text }, `${text.slice(0, 10)}…`) : text);

function facts(sample) {
  const versions = (sample.versions || []).filter((one) => one != null && one >= 0); // -1: what an environment said
  const span = (from, to) => (from == null || to == null ? null : duration(to - from));
  const low = versions.length ? Math.min(...versions) : null;
  const high = versions.length ? Math.max(...versions) : null;
  const list = [
    ["Reward", shown(sample.reward), "strong"],
    ["Advantage", sample.advantage == null ? "–" : number(sample.advantage)],
    ["Completion", `${count(sample.completion_tokens)} tokens${sample.truncated_turns ? ", cut" : ""}`],
    ["Prompt", `${count(sample.prompt_tokens)} tokens`],
    ["Total", `${count(sample.total_tokens)} tokens`],
    ["Turns", count(sample.num_turns)],
    ["Stopped by", sample.stop_reason || "–"],
    ["Weights", low == null ? "–" : low === high ? `version ${low}` : `versions ${low} to ${high}`],
    ["Steps off", sample.off_policy_steps ?? "–"],
    ["Generated in", span(sample.generate_start_s, sample.generate_end_s)],
    ["Scored in", span(sample.reward_start_s, sample.reward_end_s)],
    ["Problem", brief(sample.problem_id)],
    ["Engine", brief(sample.engine)],
    ["Attempt", sample.attempt],
  ];
  return [
    sample.outcome_reason ? h("p", { class: `reason ${sample.outcome === "error" ? "failed" : ""}` }, sample.outcome_reason) : null,
    h("dl", { class: "fact-grid" }, list.filter(([, value]) => value != null && value !== "").map(([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind || "" }, value)))),
  ];
}

function texts(sample, page) {
  return [
    parts(sample, page),
    pairs("Golden answers", sample.golden_answers),
    pairs("Tags", sample.tags),
    h("section", {}, h("h3", {}, "Prompt"), sample.prompt.turns ? sample.prompt.turns.map((turn) => h("div", { class: "turn" }, h("span", { class: "role" }, turn.role || "message"), longText(turn.content))) : whole(sample, "prompt", page)),
    sample.turns.length ? conversation(sample) : h("section", {}, h("h3", {}, "Completion"), whole(sample, "completion", page)),
  ];
}

// What the policy and the environment said in turn; the results of tools under their names.
function conversation(sample) {
  const who = (turn) => (turn.role === "assistant" ? "policy" : turn.tool ? `${turn.role}: ${turn.tool}` : turn.role);
  return h("section", {}, h("h3", {}, "Conversation"), sample.turns.map((turn) => h("div", { class: `turn ${turn.role === "assistant" ? "policy" : ""}` },
    h("span", { class: `role ${turn.is_error ? "bad" : ""}` }, `${who(turn)}${turn.is_error ? ", failed" : ""}${turn.num_tokens ? ` · ${count(turn.num_tokens)} tokens` : ""}${turn.end_s == null ? "" : ` · ${duration(turn.end_s - turn.start_s)}`}`), longText(turn.text))));
}

// Reward parts, each within the range that its environment declares for it.
function parts(sample, page) {
  const entries = Object.entries(sample.sample_metrics);
  if (!entries.length) return null;
  const { byKey } = page.session.catalog;
  return h("section", {}, h("h3", {}, "Sample metrics"), h("table", { class: "parts" }, h("tbody", {}, entries.map(([name, value]) => {
    const entry = byKey.get(`${sample.env}/${name}`) || byKey.get(name);
    const [low, high] = entry?.range || [null, null];
    const share = typeof value === "number" && low != null && high != null && high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) : null;
    return h("tr", {}, h("td", {}, name), h("td", { class: isMarker(value) ? "bad" : "" }, shown(value)), h("td", { class: "share" }, share == null ? null : h("div", { class: "meter" }, h("i", { style: `width:${(100 * share).toFixed(1)}%` }))), h("td", { class: "muted" }, low == null && high == null ? "" : `${low == null ? "…" : number(low)} to ${high == null ? "…" : number(high)}${entry.invert ? ", lower is better" : ""}`));
  }))));
}

function pairs(title, values) {
  const entries = Object.entries(values || {});
  if (!entries.length) return null;
  return h("section", {}, h("h3", {}, title), h("table", { class: "parts pairs" }, h("tbody", {}, entries.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", {}, longText(String(value))))))));
}

// A text that has to be scrolled can be reached by keyboard.
const SHORT_CHARS = 600;
const SHORT_LINES = 18;
const longText = (text) => h("pre", { class: "text", tabindex: text.length > SHORT_CHARS || text.split("\n", SHORT_LINES + 1).length > SHORT_LINES ? "0" : null }, text);

// The beginning of a long text, and the way to the rest of it in stretches that a browser can lay out.
function whole(sample, field, page) {
  const { text, length } = sample[field];
  if (!length) return h("p", { class: "muted" }, "Empty");
  const body = longText(text);
  let have = text.length;
  if (have >= length) return body;
  const more = button("", async () => {
    more.disabled = true;
    try {
      const next = await getJson("/text", { run: page.run.id, step: sample.step, sample_id: sample.sample_id, outcome: sample.outcome === "eval" ? "eval" : null, field, offset: have, limit: CHUNK });
      body.append(document.createTextNode(next.text));
      have += next.text.length;
      label();
    } catch (error) {
      say(error.message);
    }
    more.disabled = false;
  });
  const label = () => {
    more.hidden = have >= length;
    more.textContent = `Show ${count(Math.min(CHUNK, length - have))} more of ${count(length)} characters`;
  };
  label();
  return [body, more];
}

export function openSideBySide(page, left, right) {
  const column = (sample) => h("div", { class: "detail-column" }, h("h3", {}, `Step ${sample.step}, sample ${sample.sample_id}`), content(sample, { ...page, tab: "text", session: page.session, run: page.run }));
  openDialog({ title: "Two samples", className: "compare", body: h("div", { class: "columns" }, column(left), column(right)), extra: [button("Keep the right one instead", () => ((page.pinned = right), say("Kept")))] });
}
