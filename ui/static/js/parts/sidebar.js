// The list of runs at the left: several at once where charts overlay, one where a page is about one run.

import { fill, h, icon } from "../core/dom.js";
import { age, count } from "../core/format.js";
import { MOST_SHOWN, isRunning } from "../core/session.js";
import { say } from "./toast.js";

const MANY = 12;

export class Sidebar {
  // single: clicking chooses one run; else it shows or hides. onChange() after a choice, onHover(id|null).
  constructor(session, { single = false, onChange, onHover }) {
    Object.assign(this, { session, single, onChange, onHover });
    this.filter = "";
    this.all = false;
    this.items = h("div", { class: "runs", role: "group", "aria-label": single ? "Choose a run" : "Show or hide runs" });
    this.total = h("span", { class: "count" });
    this.search = h("input", { type: "search", class: "side-search", placeholder: "Find a run", "aria-label": "Find a run", oninput: (event) => this.find(event.target.value) });
    this.extra = h("div", { class: "side-extra" });
    this.element = h("nav", { class: "side", "aria-label": "Runs" }, h("div", { class: "side-head" }, h("h2", {}, "Runs"), this.total), this.search, this.items, this.extra);
  }

  find(text) {
    this.filter = text.toLowerCase();
    this.render();
  }

  render() {
    const { session } = this;
    const wanted = session.rows.filter((row) => (!row.archived || session.selected.includes(row.id)) && this.matches(row));
    // Those looked at come first, else the newest: a list of hundreds stays short until it is asked for.
    const shown = this.all || this.filter ? wanted : short(wanted, session);
    fill(this.items, shown.map((row) => this.item(row)), wanted.length > shown.length ? h("button", { type: "button", class: "more-runs", onclick: () => ((this.all = true), this.render()) }, `${wanted.length - shown.length} more`) : null);
    this.search.hidden = session.rows.length <= 6;
    this.total.textContent = this.single ? String(session.rows.length) : `${session.selected.length}/${session.rows.length}`;
  }

  matches(row) {
    return !this.filter || [row.label, row.name, row.id, row.model, row.state, ...(row.environments || []), ...(row.tags || [])].some((text) => String(text || "").toLowerCase().includes(this.filter));
  }

  item(row) {
    const { session } = this;
    const on = this.single ? session.focus === row.id : session.selected.includes(row.id);
    const element = h("button", {
      type: "button",
      class: `run ${on ? "on" : "off"} ${this.single ? "single" : ""}`,
      "aria-pressed": String(on),
      title: row.id,
      onclick: (event) => this.choose(row.id, event),
      onmouseenter: () => on && this.onHover?.(row.id),
      onmouseleave: () => this.onHover?.(null),
    },
    h("i", { class: "sw", style: `--c:${row.colorIndex == null ? "var(--t-range)" : `var(--t-run-${row.colorIndex})`}` }, on && !this.single ? icon("check", 10) : null),
    h("span", { class: "run-text" }, h("span", { class: "run-name" }, row.title), h("small", {}, h("em", { class: `state ${row.state}` }, row.state), ` · ${row.phase || `step ${count(row.last_step ?? 0)}`}`, isRunning(row) ? "" : ` · ${age(row.ended_at || row.created_at)}`)));
    return element;
  }

  choose(id, event) {
    const { session } = this;
    if (this.single) session.setFocus(id);
    else if (event.altKey || event.metaKey) {
      session.selected = [id];
      session.focus = id;
      session.keep();
    } else {
      if (!session.selected.includes(id) && session.selected.length >= MOST_SHOWN) say(`${MOST_SHOWN} runs at most are overlaid; the first one gave way`);
      session.toggle(id);
    }
    this.render();
    this.onChange();
  }
}

function short(rows, session) {
  const looked = rows.filter((row) => session.selected.includes(row.id) || row.id === session.focus);
  const others = rows.filter((row) => !looked.includes(row));
  const kept = new Set([...looked, ...others.slice(0, Math.max(0, MANY - looked.length))]);
  return rows.filter((row) => kept.has(row));
}
