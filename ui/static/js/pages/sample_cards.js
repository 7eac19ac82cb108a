// Small cards beside the charts of the page of samples.

import { fill, h, svg } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { count, number, pretty } from "../core/format.js";
import { scaleColor } from "../core/theme.js";
import { clamped } from "../parts/controls.js";
import { histogram } from "../charts/maths.js";
import { shareOf } from "./sample_groups.js";

const BINS = 20;
const BIAS_MS = 30000;

// Rewards of the step by environment; a click on a bar shows only its samples.
export function histogramCard(page, rangeOf, choose) {
  const envs = Object.entries(page.rewards);
  const plots = h("div", { class: "histograms" });
  const card = h("section", { class: "card mini" }, h("h3", {}, "Reward at this step"), envs.length ? plots : h("p", { class: "muted" }, "No scored sample"));
  for (const [env, values] of envs.slice(0, 3)) {
    const range = rangeOf(env);
    const low = Math.min(range.low, ...values);
    const high = Math.max(range.high, ...values);
    const { counts, width } = histogram(values, low, high, BINS);
    const most = Math.max(...counts, 1);
    const bars = svg("svg", { viewBox: `0 0 ${BINS * 10} 60`, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": `Rewards of ${env}: ${values.length} samples between ${number(Math.min(...values))} and ${number(Math.max(...values))}` });
    counts.forEach((amount, i) => {
      const size = amount ? Math.max(2, (amount / most) * 58) : 0;
      const bar = svg("rect", { x: i * 10 + 1, y: 60 - size, width: 8, height: size, rx: 1.5, fill: scaleColor(shareOf(low + (i + 0.5) * width, range)), class: "bar-mark" });
      const edges = [low + i * width, low + (i + 1) * width];
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = `${number(edges[0])} to ${number(edges[1])}: ${amount}`;
      bar.append(title);
      bar.addEventListener("click", () => choose(edges[0].toFixed(6), edges[1].toFixed(6)));
      bars.append(bar);
    });
    plots.append(h("div", { class: "histogram" }, h("span", { class: "muted small" }, envs.length > 1 ? `${env} · ${count(values.length)}` : `${count(values.length)} samples`), bars, h("div", { class: "axis" }, h("span", {}, number(low)), h("span", {}, number(high)))));
  }
  return card;
}

export function outcomeCard(page) {
  return h("section", { class: "card mini" }, h("h3", {}, "Shown at this step"), outcomeTable(page.by_outcome));
}

function outcomeTable(rows) {
  if (!rows.length) return h("p", { class: "muted" }, "Nothing");
  if (rows.length === 1) return oneOutcome(rows[0]);
  return h("table", { class: "grid-table tight" }, h("thead", {}, h("tr", {}, ["Outcome", "n", "reward", "tokens", "cut"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map((row) => h("tr", {}, h("td", {}, h("i", { class: `dot bin-${row.outcome}` }), pretty(row.outcome)), h("td", {}, count(row.count)), h("td", {}, number(row.reward)), h("td", {}, number(row.length)), h("td", {}, `${Math.round(row.truncated_pct)} %`)))));
}

function oneOutcome(row) {
  const line = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("dl", { class: "fact-grid pair-grid" }, line(h("span", {}, h("i", { class: `dot bin-${row.outcome}` }), pretty(row.outcome)), count(row.count)), line("Mean reward", number(row.reward)), line("Mean tokens", number(row.length)), line("Cut by the limit", `${Math.round(row.truncated_pct)} %`));
}

// Drop rates are counted over all samples of the run: once in a while is enough while it grows.
export function askBias(page) {
  if (page.biasRun !== page.run.id || Date.now() - page.biasAt > BIAS_MS) {
    const rows = getJson("/bias", { run: page.run.id }).then((found) => found.rows);
    rows.catch(() => (page.biasAt = 0)); // said by the card; the next one asks again
    Object.assign(page, { biasRun: page.run.id, biasAt: Date.now(), biasRows: rows });
  }
  return page.biasRows;
}

// Does selection by filters change what is learnt from?
export function biasCard(page) {
  const body = h("div", {}, h("p", { class: "muted" }, "Counting…"));
  askBias(page).then((rows) => fill(body, biasTable(rows), reasons(page.page.reasons)), (error) => fill(body, h("p", { class: "bad" }, error.message)));
  return h("section", { class: "card mini" }, h("h3", {}, "What selection throws away, whole run"), body);
}

function biasTable(rows) {
  if (!rows.length) return h("p", { class: "muted" }, "No sample yet");
  return h("div", { class: "scroll bias", tabindex: "0", role: "region", "aria-label": "Drop rates" }, h("table", { class: "grid-table tight" }, h("thead", {}, h("tr", {}, ["", "made", "dropped", "reward", "of trained"].map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Part"))))), h("tbody", {}, rows.map((row) => h("tr", {}, h("td", {}, row.by === "all" ? h("b", {}, "All samples") : row.by === "length" ? `${row.bucket} tokens` : row.bucket), h("td", {}, count(row.generated)), h("td", { class: "dropped", style: `--share:${Math.min(100, row.drop_pct || 0).toFixed(1)}%` }, `${percent(row.drop_pct)} %`), h("td", {}, number(row.reward_mean_generated)), h("td", {}, number(row.reward_mean_trained)))))));
}

const percent = (value) => (value == null ? "–" : value.toFixed(1));

function reasons(found) {
  const list = Object.entries(found || {});
  if (!list.length) return null;
  return h("div", { class: "reasons" }, h("h3", {}, "Reasons at this step"), list.slice(0, 6).map(([text, amount]) => h("div", { class: "reason-row" }, h("b", {}, amount), clamped(text))));
}

