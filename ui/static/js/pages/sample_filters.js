// Filters of the page of samples. They act on the server; what they offer comes from the step.

import { button, fill, h } from "../core/dom.js";
import { select, searchBox } from "../parts/controls.js";

const SORTS = [["group", "Arrival"], ["reward", "Mean reward"], ["spread", "Spread"], ["best", "Best reward"], ["worst", "Worst reward"], ["length", "Mean length"]];
const CLEARED = { env: "", stop: "", tag: "", search: "", low: "", high: "", shortest: "", longest: "" };

export function filterBar(page) {
  const { filters, filterPlace } = page;
  page.clearFilters ||= button("Clear filters", () => {
    document.activeElement.blur();
    page.change(CLEARED);
  }, { kind: "quiet" });
  page.clearFilters.hidden = !Object.keys(CLEARED).some((name) => filters[name]);
  // What is being typed stays: the bar is only made anew when nothing in it has the focus.
  if (filterPlace.contains(document.activeElement) && document.activeElement.matches("input")) return;
  const names = (counts) => Object.entries(counts).map(([name, amount]) => [name, `${name} (${amount})`]);
  const choice = (label, name, options) => (options.length > 1 || filters[name] ? select(label, [["", label], ...options], filters[name], (value) => page.change({ [name]: value })) : null);
  const between = (label, low, high) => h("span", { class: "between" }, h("span", { class: "muted" }, label), bound(page, `${label} from`, low), h("span", { class: "muted" }, "–"), bound(page, `${label} to`, high));
  fill(filterPlace,
    searchBox("Search texts", filters.search, (text) => page.changeSoon({ search: text })),
    select("Outcome", page.kind.outcomes, filters.outcome, (value) => page.change({ outcome: value })),
    choice("Environment", "env", names(page.page.envs)),
    choice("Stop reason", "stop", names(page.page.stops)),
    choice("Tag", "tag", page.page.tags.map((tag) => [tag, tag])),
    between("Reward", "low", "high"),
    between("Tokens", "shortest", "longest"),
    h("span", { class: "grow" }),
    page.page.metrics.length ? select("Colour by", [["", "Colour: reward"], ...page.page.metrics.map((name) => [name, `Colour: ${name}`])], filters.by, (value) => page.change({ by: value })) : null,
    select("Sort", SORTS.flatMap(([value, text]) => [[value, `Sort: ${text.toLowerCase()}`], [`${value}-`, `Sort: ${text.toLowerCase()}, reversed`]]), (filters.sort || "group") + (filters.desc ? "-" : ""), (value) => page.change({ sort: value.replace("-", ""), desc: value.endsWith("-") ? "1" : "" })),
    page.clearFilters);
}

function bound(page, label, name) {
  const input = h("input", { type: "number", step: "any", "aria-label": label, onchange: () => page.change({ [name]: input.value }) });
  input.value = page.filters[name];
  return input;
}
