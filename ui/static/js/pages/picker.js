// Choose metrics from the catalog: as charts of their own, together in one chart, or for a chart that is there.

import { button, fill, h } from "../core/dom.js";
import { pretty } from "../core/format.js";
import { MOST_SHOWN } from "../core/session.js";
import { searchBox, select } from "../parts/controls.js";
import { openDialog } from "../parts/dialog.js";
import { groupsOf, makeChart } from "./layout.js";
import { matcher } from "./metrics_tools.js";

export function openPicker(custom, groupId, chart) {
  const metrics = custom.page.session.catalog.metrics;
  const chosen = new Set(chart?.keys || []);
  const places = groupsOf(custom.layout);
  let target = groupId || places[0].group.id;
  const list = h("div", { class: "pick-list scroll", role: "group", "aria-label": "Metrics" });
  const search = searchBox("Find a metric", "", () => show(), null);
  const where = select("Where", places.map(({ section, group }) => [group.id, group.title ? `${section.title} / ${group.title}` : section.title]), target, (id) => (target = id));
  const add = (charts) => {
    custom.change((layout) => groupsOf(layout).find(({ group }) => group.id === target).group.charts.push(...charts));
    dialog.close();
  };
  const separate = button("Add as charts", () => add([...chosen].map((key) => makeChart([key]))), { kind: "primary" });
  const together = button("Add as one chart", () => add([makeChart([...chosen])]));
  const replace = button("Use these metrics", () => (custom.change(() => (chart.keys = [...chosen])), dialog.close()), { kind: "primary" });
  const update = () => {
    separate.disabled = replace.disabled = !chosen.size;
    together.disabled = chosen.size < 2;
    separate.textContent = chosen.size > 1 ? `Add ${chosen.size} charts` : "Add chart";
  };
  const show = () => {
    const found = metrics.filter(matcher(search.field.value));
    const sections = Map.groupBy ? Map.groupBy(found, (entry) => entry.section) : grouped(found);
    fill(list, [...sections].map(([name, entries]) => [h("h3", {}, pretty(name)), entries.map(item)]), found.length ? null : h("p", { class: "muted" }, "No metric matches"));
  };
  const item = (entry) => {
    const input = h("input", { type: "checkbox", onchange: () => (input.checked ? chosen.add(entry.key) : chosen.delete(entry.key), update()) });
    input.checked = chosen.has(entry.key);
    return h("label", { class: "check" }, input, h("span", {}, pretty(entry.name), h("small", {}, h("code", {}, entry.key), entry.kind === "distribution" ? " · mean, std, min, max" : "")));
  };
  const end = chart ? [replace] : [h("label", { class: "row" }, h("span", { class: "muted" }, "into"), where), h("span", { class: "grow" }), together, separate];
  const dialog = openDialog({ title: chart ? "Metrics of this chart" : "Add metrics", className: "medium picker", body: [search, list, h("div", { class: "row" }, end)] });
  show();
  update();
  search.field.focus();
}

function grouped(entries) {
  const found = new Map();
  for (const entry of entries) found.set(entry.section, [...(found.get(entry.section) || []), entry]);
  return found;
}

// The runs of one chart: those chosen at the left, like every other chart, or some of its own.
export function openRunChoice(custom, chart) {
  const { session } = custom.page;
  const chosen = new Set(chart.runs || session.selected);
  const list = h("div", { class: "pick-list scroll", role: "group", "aria-label": "Runs" });
  const search = searchBox("Find a run", "", () => show(), null);
  const use = button("Show these runs", () => save([...chosen]), { kind: "primary" });
  const follow = button("Follow the list at the left", () => save(undefined));
  follow.disabled = !chart.runs;
  const save = (runs) => {
    custom.change(() => (chart.runs = runs));
    dialog.close();
  };
  const item = (row) => {
    const input = h("input", { type: "checkbox", onchange: () => (input.checked ? chosen.add(row.id) : chosen.delete(row.id), update()) });
    input.checked = chosen.has(row.id);
    return h("label", { class: "check" }, input, h("span", {}, row.title, h("small", {}, `${row.state} · ${row.id}`)));
  };
  const update = () => {
    use.disabled = !chosen.size || chosen.size > MOST_SHOWN;
    use.textContent = chosen.size > MOST_SHOWN ? `${MOST_SHOWN} runs at most` : chosen.size === 1 ? "Show this run" : `Show these ${chosen.size} runs`;
  };
  const show = () => {
    const text = search.field.value.toLowerCase();
    const rows = session.rows.filter((row) => chosen.has(row.id) || (!row.archived && [row.label, row.name, row.id].some((one) => String(one || "").toLowerCase().includes(text))));
    fill(list, rows.slice(0, 200).map(item));
  };
  const dialog = openDialog({ title: "Runs of this chart", className: "medium picker", body: [search, list, h("div", { class: "row" }, follow, h("span", { class: "grow" }), use)] });
  show();
  update();
  search.field.focus();
}
