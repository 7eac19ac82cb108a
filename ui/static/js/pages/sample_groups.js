// Groups of a step as rows; each sample is a cell whose colour AND height of fill say where it stands in its range.

import { h } from "../core/dom.js";
import { count, number, shown } from "../core/format.js";
import { scaleColor } from "../core/theme.js";
import { attach } from "../parts/hint.js";

const GLYPHS = { error: "!", canceled: "×", in_flight: "…" };

export function groupList(groups, range, page) {
  return groups.map((group) => row(group, range(group.env), page));
}

function row(group, range, page) {
  if (group.samples.length === 1) return alone(group, range, page);
  const spread = group.reward_std == null ? "" : ` ± ${number(group.reward_std)}`;
  return h("section", { class: "grp", "aria-label": `Group ${group.group_id}` },
    h("div", { class: "grp-head" },
      h("span", { class: "tag" }, group.env),
      h("span", { class: "grp-prompt", title: group.prompt }, group.prompt || h("em", { class: "muted" }, "empty prompt")),
      h("span", { class: "grp-mean" }, h("b", {}, shown(group.reward_mean)), h("span", { class: "muted" }, spread)),
      h("span", { class: "muted grp-len", title: "Mean completion length" }, `${count(group.length_mean)} tok`)),
    h("div", { class: "cells" }, group.samples.map((sample) => cell(sample, range, page)), h("span", { class: "muted grp-id" }, `group ${group.group_id}${group.problem_id ? ` · ${group.problem_id}` : ""}`)));
}

// A group of one sample, as evaluations of one answer a problem have them, takes one line.
function alone(group, range, page) {
  const [sample] = group.samples;
  return h("section", { class: "grp alone", "aria-label": `Group ${group.group_id}`, title: `group ${group.group_id}${group.problem_id ? ` · ${group.problem_id}` : ""}` },
    cell(sample, range, page),
    h("span", { class: "tag" }, group.env),
    h("span", { class: "grp-prompt" }, group.prompt || h("em", { class: "muted" }, "empty prompt")),
    h("b", {}, shown(sample.reward)),
    h("span", { class: "muted grp-len", title: "Completion length" }, `${count(sample.completion_tokens)} tok`));
}

export const shareOf = (value, { low, high, invert }) => {
  const share = (value - low) / (high - low);
  return invert ? 1 - share : share;
};

function cell(sample, range, page) {
  const { value } = sample;
  const known = typeof value === "number";
  const share = known ? shareOf(value, range) : null;
  const outside = known && (value < range.low || value > range.high);
  const classes = ["cell", known ? "" : "unknown", outside ? "outside" : "", sample.truncated_turns ? "cut" : "", sample.outcome === "trained" ? "" : "untrained"];
  const style = known ? `--v:${Math.round(100 * Math.max(0.06, Math.min(1, share)))}%;--k:${scaleColor(share)}` : null;
  const element = h("button", {
    type: "button",
    class: classes.join(" "),
    style,
    dataset: { id: sample.sample_id },
    "aria-pressed": String(sample.sample_id === page.sampleId),
    "aria-label": `Sample ${sample.sample_id}, ${page.filters.by || "reward"} ${shown(value)}, ${sample.outcome}`,
    onclick: () => page.chooseSample(sample.sample_id),
  }, GLYPHS[sample.outcome] || (known ? "" : "?"));
  attach(element, () => hint(sample, page, outside));
  return element;
}

function hint(sample, page, outside) {
  const line = (name, value) => (value == null || value === "" ? null : h("div", { class: "def-row" }, h("dt", {}, name), h("dd", {}, value)));
  const { by } = page.filters;
  return h("dl", {},
    line("Sample", sample.sample_id),
    line("Outcome", sample.outcome),
    line("Why", sample.outcome_reason),
    line("Reward", shown(sample.reward)),
    by ? line(by, shown(sample.value)) : null,
    outside ? line("Range", "outside the declared range") : null,
    line("Advantage", sample.advantage == null ? null : number(sample.advantage)),
    line("Tokens", `${sample.completion_tokens}${sample.truncated_turns ? ", cut by the token limit" : ""}`),
    line("Stopped by", sample.stop_reason));
}

