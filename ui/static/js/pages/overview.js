// Overview of a run: how far it is, whether it is well, and where its samples went.

import { button, fill, h, icon } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { age, count, day, duration, lastPart, middle, number, pretty } from "../core/format.js";
import { elapsed, isRunning, whyNoResume } from "../core/session.js";
import * as url from "../core/url.js";
import { Panel } from "../charts/panel.js";
import { clamped } from "../parts/controls.js";
import { FocusPage } from "../parts/focus_page.js";
import { openLogs } from "../parts/logs.js";
import { act } from "./run_actions.js";
import { LEDGER, ledgerCard } from "./ledger.js";

const STEP_TIME = "timing_step_total";
const CHARTS = { reward: "Reward", entropy: "Entropy", kl_divergence_inference: "KL to rollouts", grad_norm: "Gradient norm", tokens_completion: "Completion length", [STEP_TIME]: "Step time" };
const REWARD = "reward_mean";
const OF_ALL = "generated/reward_mean";
const METRICS_WAIT = "timing_waiting_for_metrics_total";
const UNSTORED = "metrics/unacknowledged";
const RECENT = 20;

export async function mount(main, session) {
  const page = new Overview(main, session);
  await page.frame.start();
}

class Overview {
  constructor(main, session) {
    this.session = session;
    this.acts = h("div", { class: "row" });
    this.frame = new FocusPage(main, session, { title: "Overview", open: (run) => this.open(run), beat: (run, changed) => this.beat(run, changed), tools: this.acts });
    this.board = this.frame.makeBoard();
    this.reason = h("div");
    this.facts = h("div", { class: "facts card" });
    this.cards = h("div", { class: "cards" });
    this.checks = h("section", { class: "card pad" });
    this.ledger = h("section", { class: "card pad" });
    this.config = h("section", { class: "card pad" });
  }

  async open(run) {
    fill(this.frame.body, this.reason, this.facts, h("h2", { class: "sr" }, "Charts"), this.cards, h("div", { class: "pair" }, h("div", { class: "stacked" }, this.checks, this.config), this.ledger));
    this.board.clear();
    const { byKey } = this.session.catalog;
    const known = Object.entries(CHARTS).filter(([key]) => byKey.has(key));
    fill(this.cards, known.map(([key, title]) => this.board.add(new Panel(this.board, [byKey.get(key)], { title })).element));
    this.cards.hidden = !known.length;
    await this.session.store.need(run.id, [STEP_TIME, REWARD, OF_ALL, ...LEDGER.map((bin) => `ledger/${bin.key}`), "ledger/started", METRICS_WAIT, UNSTORED]);
    await this.readDetail(run);
    this.show(run);
  }

  async readDetail(run) {
    this.detail = await getJson(`/runs/${run.id}`);
    this.readAt = Date.now();
  }

  async beat(run, changed) {
    if (!changed && !this.session.listed) return isRunning(run.row) && fill(this.facts, this.factList(run)); // time goes on
    if (changed && this.cards.hidden) return this.open(run);
    if (Date.now() - this.readAt > 5000) await this.readDetail(run);
    this.board.refresh();
    this.show(run);
  }

  show(run) {
    const { row } = run;
    const failed = row.reason && row.state !== "finished";
    fill(this.reason, failed ? h("div", { class: `banner ${row.state}`, role: "alert" }, icon("warn"), h("div", {}, h("strong", {}, row.state === "failed" ? "This run failed" : pretty(row.state)), clamped(row.reason, { class: "banner-text" }))) : null);
    fill(this.facts, this.factList(run));
    fill(this.checks, h("h2", {}, "Self-checks"), run.series.lastStep ? this.checkList() : h("p", { class: "muted" }, "No step has been checked yet."));
    fill(this.ledger, ledgerCard(run));
    fill(this.config, h("h2", {}, "Configuration"), this.configuration());
    this.actions(row);
  }

  factList({ row, series }) {
    const times = (series.column(STEP_TIME) || []).filter((value) => value != null);
    const recent = times.slice(-RECENT).sort((a, b) => a - b);
    const step = recent.length ? recent[recent.length >> 1] : null;
    const left = row.steps && step ? Math.max(0, row.steps - series.lastStep) * step : null;
    const share = row.steps ? Math.min(1, series.lastStep / row.steps) : 0;
    const fact = (name, value, note) => h("div", { class: "fact" }, h("span", { class: "fact-name" }, name), h("span", { class: "fact-value" }, value), note ? h("span", { class: "fact-note", title: note }, note) : null);
    return [
      h("div", { class: "fact wide" }, h("span", { class: "fact-name" }, "Step"), h("span", { class: "fact-value" }, count(series.lastStep), h("span", { class: "muted" }, row.steps ? ` / ${count(row.steps)}` : "")), h("div", { class: `meter big ${row.state}`, role: "progressbar", "aria-label": "Steps done", "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { style: `width:${(share * 100).toFixed(1)}%` }))),
      isRunning(row) ? fact("Time left", left ? duration(left) : "–", share === 1 ? "all steps done" : left ? `ends about ${day(Date.now() / 1000 + left)}` : "known after a few steps") : fact("Ended", age(row.ended_at), row.ended_at ? day(row.ended_at) : ""),
      fact("Elapsed", duration(elapsed(row)), row.attempt > 1 ? `attempt ${row.attempt}` : "attempt 1"),
      fact("Step time", duration(step), recent.length ? `median of ${recent.length} ${recent.length === 1 ? "step" : "steps"}` : "no step yet"),
      fact("Reward", number(series.last(REWARD)), series.lastStep ? `trained samples; ${number(series.last(OF_ALL))} over all scored` : "no step yet"),
      series.last(METRICS_WAIT) == null ? null : fact("Metrics wait", duration(series.last(METRICS_WAIT)), series.last(UNSTORED) ? "a message was not stored" : "in the newest step"),
      modelFact(row),
    ];
  }

  checkList() {
    const checks = this.detail.checks || [];
    const failing = checks.filter((one) => !one.ok);
    const earlier = checks.filter((one) => one.ok && one.failures);
    const fine = checks.filter((one) => one.ok && !one.failures);
    const item = (one) => h("li", { class: one.ok ? (one.failures ? "was" : "ok") : one.level || "fail" },
      icon(one.ok ? "check" : "warn"),
      h("div", {}, h("strong", {}, pretty(one.check)), " ", h("span", {}, one.message), one.hint ? h("p", { class: "cause" }, "Likely cause: ", one.hint) : null,
        one.failures ? h("p", { class: "muted small" }, `failed ${one.failures === 1 ? "once" : `${one.failures} times`}, ${one.first_failed_step === one.last_failed_step ? `at step ${one.last_failed_step}` : `between steps ${one.first_failed_step} and ${one.last_failed_step}`}${one.ok ? "; fine since" : ""}`) : null));
    return [h("p", { class: failing.length ? "bad" : "good" }, failing.length ? `${failing.length} failing now` : "Nothing is failing now"), h("ul", { class: "checks" }, [...failing, ...earlier].map(item)),
      fine.length ? h("details", {}, h("summary", {}, `${fine.length} checks that never failed`), h("ul", { class: "checks" }, fine.map(item))) : null];
  }

  configuration() {
    const { config, run } = this.detail;
    const versions = Object.entries(run.versions || {}).map(([name, value]) => h("span", { class: "tag" }, `${name} ${value}`));
    return [h("div", { class: "row wrap" }, versions), h("details", {}, h("summary", {}, "config.yaml"), h("pre", { class: "log scroll", tabindex: "0", "aria-label": "Configuration" }, config || "not stored")), h("p", { class: "muted small" }, `${run.id}${run.host ? ` on ${run.host}` : ""}`)];
  }

  actions(row) {
    const { controls } = this.session;
    const page = { refresh: () => this.session.list(true).then(() => this.frame.choose()) };
    const main = isRunning(row) ? button("Stop", () => act(page, row, "stop"), { icon: "stop" }) : button("Resume", () => act(page, row, "resume"), { icon: "play" });
    const why = controls.on ? whyNoResume(row) : controls.why;
    main.disabled = Boolean(why);
    if (why) main.title = why;
    fill(this.acts, main, h("a", { class: "btn", href: url.href("/new", { from: row.id }) }, icon("copy"), "Duplicate"), button("Logs", () => openLogs(row), { icon: "logs" }));
  }
}

function modelFact({ model, algorithm, environments }) {
  const name = model ? lastPart(model) : "–";
  const note = [algorithm, (environments || []).join(", ")].filter(Boolean).join(" · ");
  return h("div", { class: `fact ${name.length > 13 ? "long" : ""}`, title: [model, note].filter(Boolean).join("\n") }, h("span", { class: "fact-name" }, "Model"), h("span", { class: "fact-value" }, middle(name, 26)), h("span", { class: "fact-note" }, note));
}
