// Tokens as they were sampled: masked ones hatched, the others shaded by how unlikely the rollout policy found them.

import { fill, h } from "../core/dom.js";
import { isMarker, number, shown } from "../core/format.js";
import { checkbox } from "../parts/controls.js";
import { attach } from "../parts/hint.js";

const FIRST = 2000;

export function tokenView(sample) {
  const ids = sample.token_ids || [];
  if (!ids.length) return h("p", { class: "muted" }, "No token was stored for this sample");
  const box = h("div", { class: "tokens" });
  let numbers = !sample.pieces;
  const show = () => fill(box, ids.slice(0, FIRST).map((id, i) => token(sample, i, numbers)));
  show();
  const trained = (sample.trained_mask || []).filter(Boolean).length;
  return [
    h("div", { class: "row token-tools" }, h("span", { class: "muted" }, `${trained} of ${ids.length} trained`), legend(), h("span", { class: "grow" }), sample.pieces ? checkbox("Ids", numbers, (on) => ((numbers = on), show())) : h("span", { class: "muted" }, "This run keeps no tokenizer, so tokens are shown by number")),
    box,
    ids.length > FIRST ? h("p", { class: "muted" }, `The first ${FIRST} of ${sample.num_token_ids} tokens`) : null,
  ];
}

function legend() {
  return h("span", { class: "legend" }, h("span", { class: "token t0" }, "likely"), h("span", { class: "token t3" }, "unlikely"), h("span", { class: "token masked" }, "masked"));
}

function token(sample, i, numbers) {
  const rollout = sample.rollout_logprobs?.[i];
  const masked = sample.trained_mask?.[i] === false;
  const text = numbers ? String(sample.token_ids[i]) : visible(sample.pieces[i]);
  const odd = isMarker(rollout);
  const element = h("span", { class: `token ${masked ? "masked" : odd ? "odd" : level(rollout)} ${!numbers && sample.pieces[i].includes("\n") ? "newline" : ""}` }, text);
  attach(element, () => hint(sample, i, masked));
  return element;
}

const visible = (piece) => (piece === "" ? "∅" : piece.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/ /g, "\u00b7"));

// Shades at 90, 50 and 10 % probability.
function level(logprob) {
  if (logprob == null) return "t0";
  return logprob > -0.105 ? "t0" : logprob > -0.693 ? "t1" : logprob > -2.303 ? "t2" : "t3";
}

function hint(sample, i, masked) {
  const line = (name, value) => (value == null ? null : h("div", { class: "def-row" }, h("dt", {}, name), h("dd", {}, value)));
  const rollout = sample.rollout_logprobs?.[i];
  const trainer = sample.trainer_logprobs?.[i];
  const percent = (value) => (typeof value === "number" ? ` (${(100 * Math.exp(value)).toFixed(1)} %)` : "");
  return h("dl", {},
    line("Token", `${i + 1}: id ${sample.token_ids[i]}${sample.pieces ? ` “${sample.pieces[i]}”` : ""}`),
    line("Rollout log p", rollout == null ? "not stored" : shown(rollout) + percent(rollout)),
    line("Trainer log p", trainer == null ? null : shown(trainer) + percent(trainer)),
    line("Difference", typeof trainer === "number" && typeof rollout === "number" ? number(trainer - rollout) : null),
    line("Weights", sample.versions?.[i] == null ? null : `version ${sample.versions[i]}`),
    line("Trained", masked ? "no: masked out of the loss" : "yes"));
}
