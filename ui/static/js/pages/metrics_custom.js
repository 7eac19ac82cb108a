// The Custom view: people's own sections, groups and charts, kept on the server and shared by every browser.

import Sortable from "../../vendor/sortable/sortable.esm.js";
import { button, fill, h, iconButton } from "../core/dom.js";
import { pretty } from "../core/format.js";
import { Panel } from "../charts/panel.js";
import { menu, menuItem } from "../parts/controls.js";
import { askText, confirm } from "../parts/dialog.js";
import { empty } from "../parts/empty.js";
import { hide } from "../parts/hint.js";
import { say } from "../parts/toast.js";
import { findChart, groupsOf, makeChart, makeGroup, makeSection, moveChart, moveGroup, moveSection, removeChart } from "./layout.js";
import { LayoutStore } from "./layout_store.js";
import { layoutTools } from "./layout_tools.js";
import { openPicker, openRunChoice } from "./picker.js";
import { matcher } from "./metrics_tools.js";

const DIRECTIONS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
const WIDTHS = [1, 2, 3];

export class CustomView {
  constructor(page) {
    this.page = page;
    this.note = h("p", { class: "note" }, "A layout to start from. It is saved, for every browser, at your first change.");
    this.store = new LayoutStore(page.view.layout, () => this.isShown() && this.render());
  }

  get layout() {
    return this.store.layout;
  }

  isShown() {
    return this.page.current === this;
  }

  async open() {
    try {
      await this.store.load(this.page.session.catalog.byKey);
      this.render();
    } catch (error) {
      fill(this.page.body, empty("The layouts cannot be read", error.message, button("Try again", () => this.open())));
    }
  }

  tools() {
    return [];
  }

  // Change the data, show it, save it.
  change(action) {
    action(this.layout);
    this.render();
    this.store.save();
  }

  async pin(entries) {
    await this.store.load(this.page.session.catalog.byKey);
    if (!this.layout.sections.length) this.layout.sections.push(makeSection("Pinned"));
    const group = this.layout.sections[0].groups[0];
    group.charts.push(makeChart(entries.map((entry) => entry.key)));
    await this.store.save();
    say(`Added to “${this.layout.sections[0].title}”`, { label: "Open", run: () => this.page.show("custom") });
  }

  render() {
    const { page } = this;
    for (const sortable of this.sortables || []) sortable.destroy();
    this.sortables = [];
    page.board.clear();
    page.body.dataset.density = page.view.density;
    fill(page.side.extra);
    this.matches = matcher(page.view.search);
    this.bar ??= h("div", { class: "custom-bar" }, this.note, layoutTools(this));
    if (!this.layout.sections.length) return fill(page.body, this.bar, this.nothing());
    const list = h("div", { class: "custom" }, this.layout.sections.map((section) => this.section(section)));
    this.note.hidden = !this.store.isStarter;
    fill(page.body, this.bar, list);
    this.sort(list, ".custom-section", ".grip-section", "sections");
    this.showChosenRuns().catch((error) => say(error.message));
  }

  nothing() {
    return empty("An empty view", "Add a section, then pick metrics from the catalog. Charts, groups and sections can be dragged, or moved with the arrow keys while their handle has the focus.", button("Add metrics", () => this.pick(), { kind: "primary", icon: "plus" }));
  }

  grip(kind, item, name) {
    const label = `Move ${kind} ${name}: drag, or press an arrow key`;
    return iconButton("grip", label, null, {
      class: `grip grip-${kind}`,
      dataset: { grip: item.id },
      onkeydown: (event) => {
        const direction = DIRECTIONS[event.key];
        if (!direction) return;
        event.preventDefault();
        event.stopPropagation();
        this.move(kind, item.id, direction, name);
      },
    });
  }

  move(kind, id, direction, name) {
    const moved = { chart: moveChart, group: moveGroup, section: moveSection }[kind](this.layout, id, direction);
    if (!moved) return say(`${name} cannot go further ${direction}`);
    this.render();
    this.page.body.querySelector(`[data-grip="${CSS.escape(id)}"]`)?.focus();
    const where = kind === "chart" ? findChart(this.layout, id) : null;
    say(where ? `${name}: place ${where.at + 1} of ${where.group.charts.length} in ${where.section.title}` : `${name} moved ${direction}`);
    this.store.save();
  }

  section(section) {
    const groups = h("div", { class: "groups", dataset: { section: section.id } }, section.groups.map((group) => this.group(group, section)));
    const total = section.groups.reduce((sum, group) => sum + group.charts.length, 0);
    const element = h("section", { class: "section custom-section", dataset: { id: section.id } },
      h("div", { class: "section-bar" },
        this.grip("section", section, section.title),
        h("h2", {}, section.title), h("span", { class: "count" }, total), h("span", { class: "grow" }),
        this.menuOf([
          ["Rename", "edit", () => this.rename(section, "section")],
          ["Add metrics here", "plus", () => this.pick(section.groups[0].id)],
          ["Add group", "rows", () => this.change(() => section.groups.push(makeGroup("New group")))],
          ["Delete section", "close", () => this.remove(section, total), "danger"],
        ], `Section ${section.title}`)),
      groups);
    this.sort(groups, ".group", ".grip-group", "groups");
    return element;
  }

  group(group, section) {
    const cards = h("div", { class: "cards", dataset: { group: group.id } }, group.charts.map((chart) => this.card(chart)));
    if (!group.charts.length) cards.append(h("button", { type: "button", class: "drop", onclick: () => this.pick(group.id) }, "Drop charts here, or add metrics"));
    this.sort(cards, ".card", ".grip-chart", "charts");
    const named = group.title || section.groups.length > 1;
    const head = named ? h("div", { class: "group-bar" }, this.grip("group", group, group.title || "group"), h("h3", {}, group.title || "Untitled group"),
      this.menuOf([
        ["Rename", "edit", () => this.rename(group, "group")],
        ["Add metrics here", "plus", () => this.pick(group.id)],
        ["Delete group", "close", () => this.change(() => (section.groups = section.groups.filter((one) => one !== group))), "danger"],
      ], `Group ${group.title}`)) : null;
    return h("div", { class: "group", dataset: { id: group.id } }, head, cards);
  }

  card(chart) {
    const { page } = this;
    const known = chart.keys.map((key) => page.session.catalog.byKey.get(key)).filter(Boolean);
    const name = chart.title || chart.keys.map((key) => pretty(key.split("/").pop())).join(", ");
    const grip = this.grip("chart", chart, name);
    const more = () => this.menuOf(this.chartMenu(chart, name), name);
    const element = known.length ? page.board.add(new Panel(page.board, known, { title: chart.title, log: chart.log ?? null, runs: chart.runs, note: this.noteOf(chart), grip, actions: () => [more()] })).element
      : h("article", { class: "card chart missing" }, h("header", {}, grip, h("div", { class: "head" }, h("h3", {}, name), h("code", { class: "path" }, chart.keys.join(" + "))), h("div", { class: "acts" }, more())), h("div", { class: "nodata" }, "Not in the runs shown. Kept in the layout."));
    element.dataset.id = chart.id;
    element.classList.add(`width-${chart.width || 1}`);
    if (known.length && !known.some(this.matches)) element.hidden = true;
    return element;
  }

  noteOf(chart) {
    if (!chart.runs) return "";
    const there = this.page.session.views(chart.runs).length;
    return there === 1 ? this.page.session.views(chart.runs)[0].label : `${there} runs of its own`;
  }

  // Charts may show runs that are not selected at the left: those are loaded and followed as well.
  async showChosenRuns() {
    const { session } = this.page;
    const wanted = groupsOf(this.layout).flatMap(({ group }) => group.charts.flatMap((chart) => chart.runs || []));
    const before = session.also.join();
    session.showAlso([...new Set(wanted)]);
    if (session.also.join() === before) return;
    if (await session.catalog.load(this.page.ids)) this.render();
    await this.page.loadShown();
  }

  chartMenu(chart, name) {
    const next = WIDTHS[(WIDTHS.indexOf(chart.width || 1) + 1) % WIDTHS.length];
    return [
      ["Rename", "edit", () => this.rename(chart, "chart", name)],
      [`Width ${next} of 3`, "wide", () => this.change(() => (chart.width = next))],
      ["Choose its metrics", "rows", () => this.pick(findChart(this.layout, chart.id).group.id, chart)],
      ["Choose its runs", "compare", () => openRunChoice(this, chart)],
      ["Duplicate", "copy", () => this.change((layout) => {
        const { group, at } = findChart(layout, chart.id);
        group.charts.splice(at + 1, 0, makeChart([...chart.keys], { title: chart.title, width: chart.width, runs: chart.runs }));
      })],
      ["Remove", "close", () => this.change((layout) => removeChart(layout, chart.id)), "danger"],
    ];
  }

  menuOf(items, name) {
    const box = menu("", (close) => items.map(([text, icon, action, kind]) => menuItem(text, () => (close(), action()), { icon, kind })), { icon: "more", title: `More for ${name}` });
    box.classList.add("bare", "right");
    box.querySelector("button").setAttribute("aria-label", `More for ${name}`);
    return box;
  }

  sort(element, draggable, handle, name) {
    this.sortables.push(Sortable.create(element, {
      group: name,
      draggable,
      handle,
      animation: 150,
      ghostClass: "ghost",
      forceFallback: true,
      fallbackClass: "dragged",
      onStart: () => this.lift(),
      onEnd: () => {
        this.page.body.classList.remove("dragging");
        this.readBack();
      },
    }));
  }

  // What is dragged is a copy of the element, and copies of canvases are empty.
  lift() {
    hide();
    this.page.body.classList.add("dragging");
    const from = this.page.body.querySelectorAll(".ghost canvas");
    Sortable.ghost?.querySelectorAll("canvas").forEach((canvas, i) => from[i] && canvas.getContext("2d").drawImage(from[i], 0, 0));
  }

  // After a drag the page is the truth: read sections, groups and charts back in the order in which they stand.
  readBack() {
    const charts = new Map(groupsOf(this.layout).flatMap(({ group }) => group.charts.map((chart) => [chart.id, chart])));
    const groups = new Map(groupsOf(this.layout).map(({ group }) => [group.id, group]));
    const sections = new Map(this.layout.sections.map((section) => [section.id, section]));
    const ids = (root, selector) => [...root.querySelectorAll(selector)].map((one) => one.dataset.id);
    this.layout.sections = [...this.page.body.querySelectorAll(".custom-section")].map((element) => ({
      ...sections.get(element.dataset.id),
      groups: [...element.querySelectorAll(".group")].map((one) => ({ ...groups.get(one.dataset.id), charts: ids(one, ".card").map((id) => charts.get(id)) })),
    }));
    for (const section of this.layout.sections) if (!section.groups.length) section.groups.push(makeGroup());
    this.render();
    this.store.save();
  }

  async rename(item, kind, current) {
    const title = await askText({ title: `Rename ${kind}`, label: "Name", value: item.title || current || "", check: (text) => (text.trim().length > 80 ? "80 characters at most" : kind !== "chart" && kind !== "group" && !text.trim() ? "A section needs a name" : "") });
    if (title != null) this.change(() => (item.title = title.trim()));
  }

  async remove(section, total) {
    const sure = !total || (await confirm({ title: "Delete this section?", text: `“${section.title}” has ${total} charts. Undo brings it back.`, action: "Delete", kind: "danger" }));
    if (sure) this.change((layout) => (layout.sections = layout.sections.filter((one) => one !== section)));
  }

  addSection() {
    this.change((layout) => layout.sections.push(makeSection("New section")));
    this.page.body.querySelector(".custom-section:last-child")?.scrollIntoView({ block: "center" });
  }

  pick(groupId, chart = null) {
    if (!this.layout.sections.length) this.layout.sections.push(makeSection("My section"));
    openPicker(this, groupId, chart);
  }
}
