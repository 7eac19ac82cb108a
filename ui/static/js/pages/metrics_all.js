// The All view: sections in the order of the registry, groups inside them, one card a metric.

import { button, clickable, fill, h, icon, iconButton } from "../core/dom.js";
import { pretty } from "../core/format.js";
import * as url from "../core/url.js";
import { Panel } from "../charts/panel.js";
import { empty } from "../parts/empty.js";
import { evalCharts } from "./eval_charts.js";
import { environmentsOf, matcher, ofEnvironment } from "./metrics_tools.js";

const REWARD = "Reward";
const SAMPLE_METRICS = "Sample metrics";
const EVALS = "Evals";

export class AllView {
  constructor(page) {
    this.page = page;
    this.collapsed = new Set(url.recall("collapsed", []));
  }

  async open() {
    this.render();
  }

  tools() {
    return [];
  }

  render() {
    const { page } = this;
    page.board.clear();
    page.body.dataset.density = page.view.density;
    const sections = this.sections();
    fill(page.side.extra, sections.size > 1 ? this.index(sections) : null);
    if (!page.session.selected.length) return fill(page.body, empty("No run selected", "Choose one or more runs at the left."));
    if (!sections.size) return fill(page.body, page.session.catalog.metrics.length ? this.nothingFound() : empty("No metrics yet", "The first step of this run has not been logged. It appears here by itself."));
    fill(page.body, [...sections].map(([name, groups]) => this.section(name, groups)));
  }

  nothingFound() {
    return empty("No metric matches", "The filter is a regular expression over keys, names and sections.", button("Clear the filter", () => {
      this.page.tools.querySelector(".search input").value = "";
      this.page.search("");
    }));
  }

  sections() {
    const { view, session } = this.page;
    const matches = matcher(view.search);
    const names = environmentsOf(session.rows.map((row) => ({ row })));
    const repeats = view.search ? () => false : this.repeats();
    const sections = new Map();
    for (const entry of session.catalog.metrics) {
      if (!matches(entry) || !ofEnvironment(entry, view, names) || repeats(entry)) continue;
      if (!sections.has(entry.section)) sections.set(entry.section, new Map());
      const groups = sections.get(entry.section);
      if (!groups.has(entry.group || "")) groups.set(entry.group || "", []);
      groups.get(entry.group || "").push(entry);
    }
    return sections;
  }

  // With one environment its rewards are those of the section: they are shown once, and found by a search.
  repeats() {
    const { session } = this.page;
    const names = environmentsOf(session.shown());
    const { byKey } = session.catalog;
    return ({ section, group, key }) => names.length === 1 && group === names[0] && [REWARD, SAMPLE_METRICS].includes(section) && byKey.has(key.split("/").pop());
  }

  section(name, groups) {
    const total = [...groups.values()].reduce((sum, entries) => sum + entries.length, 0);
    const shut = this.collapsed.has(name) && !this.page.view.search;
    const body = h("div", { class: "section-body", hidden: shut }, [...groups].map(([group, entries]) => [
      group ? h("h3", { class: "group-name" }, pretty(group)) : null,
      name === EVALS && !this.page.view.search ? this.evaluation(entries) : h("div", { class: "cards" }, entries.map((entry) => this.card(entry)), name === REWARD && !group ? this.rewards(groups) : null),
    ]));
    const head = h("button", { type: "button", class: "section-head", "aria-expanded": String(!shut), onclick: () => this.collapse(name, element) }, icon("chevron"), h("h2", {}, pretty(name)), h("span", { class: "count" }, total));
    const element = h("section", { class: "section", id: anchor(name), dataset: { name } }, head, body);
    return element;
  }

  // What an evaluation found; how many were asked for, errors and the like are folded away.
  evaluation(metrics) {
    const { means, families, rest } = evalCharts(metrics);
    return [
      h("div", { class: "cards" }, [...means, ...families].map(({ entries, title }) => this.chart(entries, title))),
      rest.length ? h("details", { class: "more-cards", open: !means.length }, h("summary", {}, `${rest.length} more`), h("div", { class: "cards" }, rest.map((entry) => this.card(entry)))) : null,
    ];
  }

  card(entry) {
    return this.chart([entry]);
  }

  chart(entries, title) {
    const { page } = this;
    return page.board.add(new Panel(page.board, entries, { title, actions: () => [this.pinOf(entries)] })).element;
  }

  // The rewards of all environments in one chart; their scales differ, so it offers to normalise them.
  rewards(groups) {
    const { page } = this;
    const entries = [...groups.values()].flat().filter((entry) => /^reward\/.+\/reward$/.test(entry.key));
    if (entries.length < 2) return null;
    const { view } = page;
    const norm = button("0–1", () => {
      view.normalise = !view.normalise;
      page.changed();
      norm.setAttribute("aria-pressed", String(view.normalise));
    }, { kind: "tiny", "aria-pressed": String(view.normalise), "aria-label": "0–1: normalise rewards", title: "Each reward as (r − min) / (max − min) of its environment's declared range, or of its observed one" });
    const card = page.board.add(new Panel(page.board, entries, { title: "Reward by environment", tool: norm, actions: () => [this.pinOf(entries)] })).element;
    card.classList.add("merged");
    return card;
  }

  pinOf(entries) {
    return iconButton("pin", "Add to the Custom view", () => this.page.views.custom.pin(entries));
  }

  collapse(name, element) {
    const body = element.querySelector(".section-body");
    body.hidden = !body.hidden;
    element.querySelector(".section-head").setAttribute("aria-expanded", String(!body.hidden));
    if (body.hidden) this.collapsed.add(name);
    else this.collapsed.delete(name);
    url.remember("collapsed", [...this.collapsed]);
  }

  collapseAll() {
    const open = [...this.page.body.querySelectorAll(".section")].filter((one) => !one.querySelector(".section-body").hidden);
    const targets = open.length ? open : [...this.page.body.querySelectorAll(".section")];
    for (const element of targets) this.collapse(element.dataset.name, element);
  }

  index(sections) {
    const go = (name) => () => {
      const element = document.getElementById(anchor(name));
      if (element?.querySelector(".section-body").hidden) this.collapse(name, element);
      element?.scrollIntoView({ behavior: "smooth", block: "start" });
    };
    return h("div", { class: "index" }, h("div", { class: "index-head" }, h("h2", {}, "Sections"), h("button", { type: "button", class: "index-all", onclick: () => this.collapseAll() }, "Collapse all")), [...sections].map(([name, groups]) => clickable(h("div", { class: "index-item", role: "link" }, h("span", {}, pretty(name)), h("span", { class: "count" }, [...groups.values()].reduce((sum, entries) => sum + entries.length, 0))), go(name))));
  }
}

const anchor = (name) => `section-${encodeURIComponent(name)}`;
