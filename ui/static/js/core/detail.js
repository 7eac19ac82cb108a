// A stretch of a long run in more detail than its thinned columns have: what a zoom shows.

// Index of the first of the ascending values that is not below the wanted one.
export function firstFrom(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The steps to ask for when x lies between two values; null when nothing in between has been thinned.
export function thinnedSteps(series, xs, [low, high]) {
  const [bucket, thinTo] = series.grid || [1, 0];
  if (bucket <= 1 || !xs.length) return null;
  const first = Math.max(0, firstFrom(xs, low) - 1);
  const last = Math.min(xs.length - 1, firstFrom(xs, high));
  const from = Math.max(0, Math.floor(series.steps[first]) - bucket);
  const to = Math.min(thinTo, Math.ceil(series.steps[last]) + bucket);
  return from <= to ? { from, to } : null;
}

export class Detail {
  constructor({ from, to }) {
    Object.assign(this, { from, to, columns: new Map(), steps: null, edition: 0 });
  }

  covers({ from, to }) {
    return this.from === from && this.to === to;
  }

  accept(found, keys) {
    if (!this.steps) Object.assign(this, { steps: found.steps, times: found.times, grid: found.grid });
    for (const key of keys) this.columns.set(key, found.columns.get(key) || new Array(this.steps.length).fill(null));
    this.edition++;
  }

  has(keys) {
    return this.steps != null && keys.every((key) => this.columns.has(key));
  }

  // The run with this stretch in the place of its thinned points; steps that came since stay behind it.
  within(series) {
    const edition = `${series.edition}/${this.edition}`;
    if (this.whole?.edition === edition) return this.whole;
    const low = firstFrom(series.steps, this.from);
    const high = firstFrom(series.steps, this.to + 0.5);
    const joined = (coarse, fine) => [...coarse.slice(0, low), ...fine, ...coarse.slice(high)];
    const made = new Map();
    const column = (key) => {
      if (!series.columns.has(key) || !this.columns.has(key)) return series.column(key);
      if (!made.has(key)) made.set(key, joined(series.column(key), this.columns.get(key)));
      return made.get(key);
    };
    const { attempts, nonfinite, loaded, lastStep } = series;
    this.whole = { edition, attempts, nonfinite, loaded, lastStep, column, steps: joined(series.steps, this.steps), times: joined(series.times, this.times) };
    return this.whole;
  }
}
