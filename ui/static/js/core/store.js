// The columns that the charts on screen need, one set per run, and a cursor to ask for what is new.
//
// Columns of a run share one list of steps. A column is fetched when a chart first asks for it; from then on polls
// append to it. Long histories come thinned on a fixed grid, so that columns fetched later line up with earlier ones.

import { getBytes, getJson, getKept } from "./api.js";
import { Detail } from "./detail.js";

const MAX_POINTS = 2000;
const RELOAD_ROWS = 5000;

export class Series {
  constructor(id) {
    this.id = id;
    this.forget();
  }

  forget() {
    this.rev = "";
    this.grid = null;
    this.steps = [];
    this.times = [];
    this.columns = new Map();
    this.nonfinite = new Map();
    this.keys = [];
    this.attempts = [];
    this.lastStep = 0;
    this.loaded = false;
    this.detail = null;
    this.edition = (this.edition || 0) + 1;
  }

  column(key) {
    return this.columns.get(key);
  }

  last(key) {
    const column = this.columns.get(key);
    if (!column) return null;
    for (let i = column.length - 1; i >= 0; i--) if (column[i] != null) return column[i];
    return null;
  }

  cursor() {
    return `${this.id}:${this.lastStep}:${this.rev}:${this.keys.length}`;
  }
}

// "nan", "inf" or "-inf" where the newest value of a key is no number that a line or a mean could show; else null.
export function newestOdd(series, key) {
  const points = series.nonfinite.get(key) || [];
  if (!points.length) return null;
  const [step, name] = points[points.length - 1];
  const at = (series.column(key) || []).findLastIndex((value) => value != null);
  return at < 0 || step > series.steps[at] ? name : null;
}

export function unpack(buffer) {
  const view = new DataView(buffer);
  const size = view.getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  let at = 4 + size;
  const steps = new Float64Array(buffer, at, head.rows);
  const times = new Float64Array(buffer, (at += 8 * head.rows), head.rows);
  at += 8 * head.rows;
  const Kind = head.type === "f64" ? Float64Array : Float32Array;
  const columns = new Map();
  head.keys.forEach((key, i) => columns.set(key, new Kind(buffer, at + i * head.rows * Kind.BYTES_PER_ELEMENT, head.rows)));
  return { ...head, steps, times, columns };
}

// NaN on the wire means absent; charts want null.
const plain = (values) => Array.from(values, (value) => (Number.isNaN(value) ? null : value));

export class Store {
  constructor() {
    this.series = new Map();
    this.version = 0;
    this.queue = Promise.resolve();
    this.bytes = 0;
  }

  run(id) {
    if (!this.series.has(id)) this.series.set(id, new Series(id));
    return this.series.get(id);
  }

  forget(id) {
    this.series.delete(id);
    this.version++;
  }

  // One request at a time: a poll and a fetch of columns must not see two different ends of a run.
  exclusively(action) {
    const next = this.queue.then(action, action);
    this.queue = next.catch(() => {});
    return next;
  }

  // Fetch the columns that are not held yet. Resolves to true when something arrived.
  need(id, keys) {
    return this.exclusively(async () => {
      const run = this.run(id);
      const missing = keys.filter((key) => !run.columns.has(key));
      if (!missing.length && run.loaded) return false;
      await this.fetch(run, missing);
      this.version++;
      return true;
    });
  }

  async fetch(run, keys) {
    const found = unpack(await getBytes("/series", this.ask(run, keys)));
    if (run.loaded && found.rev.split(".")[0] !== run.rev.split(".")[0]) {
      const all = [...run.columns.keys(), ...keys];
      run.forget();
      return this.fetch(run, all);
    }
    if (!run.loaded) {
      Object.assign(run, { rev: found.rev, steps: plain(found.steps), times: plain(found.times), keys: found.all_keys, attempts: found.attempts });
      run.grid = found.grid;
      run.lastStep = found.last_step;
      run.loaded = true;
    }
    for (const key of keys) {
      const column = found.columns.get(key);
      run.columns.set(key, column ? plain(column) : new Array(run.steps.length).fill(null));
    }
    for (const [key, points] of Object.entries(found.nonfinite)) run.nonfinite.set(key, points);
    run.edition++;
    return true;
  }

  // Fetch a stretch of a thinned run as exactly as the number of points allows. True when something arrived.
  refine(id, stretch, keys) {
    return this.exclusively(async () => {
      const run = this.run(id);
      if (!run.detail?.covers(stretch)) run.detail = new Detail(stretch);
      const { detail } = run;
      const missing = keys.filter((key) => !detail.columns.has(key));
      if (!missing.length) return false;
      const grid = detail.grid?.join(":");
      const found = unpack(await getBytes("/series", { run: id, keys: missing.join("\n"), ...stretch, max: MAX_POINTS, fmt: "f32", grid }));
      // A rewritten past is for the next poll to notice, which reloads the run.
      if (found.rev.split(".")[0] !== run.rev.split(".")[0]) return false;
      const columns = new Map([...found.columns].map(([key, values]) => [key, plain(values)]));
      detail.accept({ steps: plain(found.steps), times: plain(found.times), grid: found.grid, columns }, missing);
      this.version++;
      return true;
    });
  }

  ask(run, keys) {
    // No key at all would mean every key; a blank one matches none.
    const joined = keys.length ? keys.join("\n") : " ";
    const values = { run: run.id, keys: joined, max: MAX_POINTS, fmt: "f32" };
    return run.loaded ? { ...values, to: run.lastStep, grid: run.grid.join(":") } : values;
  }

  // Ask for what is new in the given runs. Resolves to the ids of the runs that changed.
  poll(ids) {
    return this.exclusively(async () => {
      const known = ids.filter((id) => this.run(id).loaded);
      if (!known.length) return [];
      const answer = await getJson("/delta", { c: known.map((id) => this.run(id).cursor()).join(",") });
      const changed = [];
      for (const part of answer.runs) if (await this.apply(part)) changed.push(part.run);
      if (changed.length) this.version++;
      return changed;
    });
  }

  async apply(part) {
    const run = this.run(part.run);
    if (part.gone) {
      run.gone = true;
      return true;
    }
    run.state = part.state;
    run.phase = part.phase;
    if (part.reset || run.steps.length > RELOAD_ROWS) {
      const keys = [...run.columns.keys()];
      run.forget();
      await this.fetch(run, keys);
      return true;
    }
    run.rev = part.rev;
    run.edition++;
    run.keys.push(...part.new_keys);
    if (!part.steps.length) return part.new_keys.length > 0;
    if (part.steps[0] <= run.lastStep) run.detail = null;
    const rows = part.steps.map((step, i) => this.row(run, step, part.times[i]));
    for (const [at, values] of Object.entries(part.columns)) {
      const column = run.columns.get(run.keys[at]);
      if (column) values.forEach((value, i) => rows[i] >= 0 && value != null && (column[rows[i]] = value));
    }
    for (const [key, points] of Object.entries(part.nonfinite)) run.nonfinite.set(key, [...(run.nonfinite.get(key) || []), ...points]);
    run.lastStep = Math.max(run.lastStep, part.last_step);
    return true;
  }

  // Where a step stands; a step after the last one gets a new row, one that was thinned away has none (-1).
  row(run, step, time) {
    const end = run.steps.length - 1;
    if (end < 0 || step > run.steps[end]) {
      run.steps.push(step);
      run.times.push(time);
      for (const column of run.columns.values()) column.push(null);
      return end + 1;
    }
    for (let i = end; i >= 0 && run.steps[i] >= step; i--) if (run.steps[i] === step) return i;
    return -1;
  }
}

export class Catalog {
  constructor() {
    this.metrics = [];
    this.byKey = new Map();
  }

  async load(ids) {
    const found = ids.length ? (await getKept("/catalog", { runs: ids.join(",") })).metrics : [];
    if (found === this.source) return false;
    this.source = found;
    this.metrics = found;
    this.byKey = new Map(found.map((entry) => [entry.key, entry]));
    return true;
  }

  columnsOf(entry) {
    if (entry.kind !== "distribution") return [entry.key];
    return ["mean", "std", "min", "max"].map((stat) => entry.stats[stat]).filter(Boolean);
  }
}
