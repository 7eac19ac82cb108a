// What every page shares: the list of runs, which of them are looked at, their colours and their columns.

import { getKept } from "./api.js";
import { Catalog, Store } from "./store.js";
import { RUN_COLORS, colors } from "./theme.js";
import * as url from "./url.js";

const LIST_MS = 8000;
export const MOST_SHOWN = 10;
const ALL_DONE = "All steps are done. To train for longer, duplicate the run with more steps.";
const NO_CHECKPOINT = "It has no checkpoint to go on from (checkpoint_every is 0). Duplicate it to start again.";
export const isRunning = (row) => ["pending", "starting", "running"].includes(row.state);
/** Seconds since the start, up to the end or to now: the list of runs is made anew only when a file of theirs changes. */
export const elapsed = (row) => (isRunning(row) && row.started_at ? Math.max(0, Date.now() / 1000 - row.started_at) : row.elapsed_s);
/** Why a run that has ended cannot be resumed; empty where it can go on. */
export const whyNoResume = (row) => {
  if (row.state === "finished") return ALL_DONE;
  return !isRunning(row) && row.resumable === false ? NO_CHECKPOINT : "";
};

/** What runs are called: as people call them, else by their name; those of one name by the end of their ids as well. */
const named = (rows) => {
  const called = (row) => row.label || row.name;
  const times = new Map();
  for (const row of rows) times.set(called(row), (times.get(called(row)) || 0) + 1);
  for (const row of rows) row.title = times.get(called(row)) > 1 ? `${called(row)} ${row.id.slice(-4)}` : called(row);
  return rows;
};

export class Session {
  constructor() {
    this.store = new Store();
    this.catalog = new Catalog();
    this.rows = [];
    this.controls = { on: false, why: "" };
    this.root = "";
    this.problems = [];
    this.listedAt = 0;
    this.also = [];
  }

  async list(force = false) {
    if (!force && Date.now() - this.listedAt < LIST_MS) return false;
    const found = await getKept("/runs");
    this.listedAt = Date.now();
    if (found === this.source) return false;
    this.source = found;
    this.rows = named(found.runs);
    this.controls = found.controls;
    this.root = found.root;
    this.problems = found.problems || [];
    this.lost = this.forgetMissing();
    this.paint();
    return true;
  }

  // Runs that were looked at and have been removed; what is looked at instead is chosen.
  forgetMissing() {
    if (!this.selected) return [];
    const lost = [...new Set([...this.selected, this.focus])].filter((id) => id && !this.row(id));
    if (!lost.length) return lost;
    for (const id of lost) this.store.forget(id);
    this.selected = this.selected.filter((id) => !lost.includes(id));
    if (lost.includes(this.focus)) this.focus = this.selected[0] || this.rows[0]?.id || null;
    if (!this.selected.length && this.focus) this.selected = [this.focus];
    this.keep();
    return lost;
  }

  // The runs of the address; without any, the one that runs, else the newest. Returns those that there are not.
  choose() {
    const known = new Set(this.rows.map((row) => row.id));
    const listed = url.list("runs");
    this.selected = listed.filter((id) => known.has(id)).slice(0, MOST_SHOWN);
    const asked = url.get("run");
    if (!this.selected.length) {
      const first = known.has(asked) ? this.row(asked) : this.rows.find((row) => row.state === "running" && !row.archived) || this.rows.find((row) => !row.archived) || this.rows[0];
      this.selected = first && url.get("runs") !== "none" ? [first.id] : [];
    }
    this.focus = known.has(asked) ? asked : this.selected[0] || this.rows[0]?.id || null;
    this.paint();
    return [...new Set([...listed, asked])].filter((id) => id && id !== "none" && !known.has(id));
  }

  // A run that is looked at takes the first free colour and keeps it; people may choose another one.
  paint() {
    const slots = url.recall("colors", {});
    const taken = new Set(this.rows.filter((row) => row.color != null).map((row) => row.color));
    const looked = [...new Set([...(this.selected || []), ...this.also])];
    for (const id of looked) if (slots[id] != null && this.row(id)?.color == null) taken.add(slots[id]);
    const kept = {};
    for (const id of looked) {
      const row = this.row(id);
      if (!row) continue;
      if (row.color == null && slots[id] == null) {
        slots[id] = [...Array(RUN_COLORS).keys()].find((slot) => !taken.has(slot)) ?? 0;
        taken.add(slots[id]);
      }
      kept[id] = slots[id];
    }
    for (const row of this.rows) row.colorIndex = row.color ?? kept[row.id] ?? null;
    url.remember("colors", kept);
  }

  row(id) {
    return this.rows.find((row) => row.id === id);
  }

  view(id) {
    const row = this.row(id);
    return {
      id,
      row,
      label: row.title,
      color: colors().runs[row.colorIndex ?? 0],
      running: isRunning(row),
      startedAt: row.started_at || row.created_at,
      series: this.store.run(id),
    };
  }

  views(ids) {
    return ids.filter((id) => this.row(id)).map((id) => this.view(id));
  }

  shown() {
    return this.views(this.selected);
  }

  // Runs that charts of their own choice show besides the selected ones.
  showAlso(ids) {
    this.also = ids.filter((id) => this.row(id) && !this.selected.includes(id));
    this.paint();
  }

  toggle(id) {
    const on = this.selected.includes(id);
    this.selected = on ? this.selected.filter((one) => one !== id) : [...this.selected, id].slice(-MOST_SHOWN);
    this.focus = this.selected.includes(this.focus) ? this.focus : this.selected[0] || this.focus;
    this.keep();
  }

  setFocus(id) {
    this.focus = id;
    if (!this.selected.includes(id)) this.selected = [id];
    this.keep();
  }

  keep() {
    this.paint();
    url.set({ runs: this.selected.length ? this.selected : "none", run: this.focus !== this.selected[0] ? this.focus : null });
  }

  // One round: what is new in the given runs. True when one of them still runs.
  async beat(wanted) {
    this.lost = [];
    const changed = await this.store.poll(wanted.filter((id) => this.row(id)));
    if (changed.some((id) => this.store.run(id).gone)) this.listedAt = 0;
    const listed = await this.list();
    const ids = wanted.filter((id) => this.row(id));
    for (const id of ids) {
      const row = this.row(id);
      const series = this.store.run(id);
      if (row && series.state && (row.state !== series.state || row.phase !== series.phase)) this.listedAt = 0;
      if (row && series.state) Object.assign(row, { state: series.state, last_step: Math.max(row.last_step || 0, series.lastStep) });
    }
    this.changed = changed.filter((id) => this.row(id));
    this.listed = listed;
    return ids.some((id) => this.row(id) && isRunning(this.row(id)));
  }
}
