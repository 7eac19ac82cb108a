// Arithmetic of charts: no elements, no colours.

// Debiased exponential average; absent values stay absent and do not count.
export function ema(values, weight) {
  if (!weight) return values;
  const out = new Array(values.length);
  let sum = 0;
  let norm = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value == null) {
      out[i] = value;
      continue;
    }
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    out[i] = sum / norm;
  }
  return out;
}

// Middle value of numbers; the typed array sorts by value, and natively.
function median(numbers) {
  return numbers.length ? Float64Array.from(numbers).sort()[numbers.length >> 1] : 0;
}

// Rows of a run where the metric is present, with one empty row wherever it is missing for longer than its usual
// stride: an evaluation every ten steps is a line, a lost stretch is a gap.
export function presentRows(steps, column, skipFirst) {
  const rows = [];
  const skipped = skipFirst ? steps.find((step) => step > 0) : null; // step 0 is an evaluation before the first
  for (let i = 0; i < column.length; i++) if (column[i] != null && steps[i] !== skipped) rows.push(i);
  const strides = new Array(Math.max(0, rows.length - 1));
  for (let i = 1; i < rows.length; i++) strides[i - 1] = steps[rows[i]] - steps[rows[i - 1]];
  const usual = median(strides) || 1;
  const out = [];
  for (let i = 0; i < rows.length; i++) {
    if (i && strides[i - 1] > 1.5 * usual) out.push(-1 - rows[i - 1]);
    out.push(rows[i]);
  }
  return { rows: out, sparse: usual > 1.5 * Math.max(1, median(lastStrides(steps))), count: rows.length };
}

function lastStrides(steps) {
  const out = [];
  for (let i = Math.max(1, steps.length - 200); i < steps.length; i++) out.push(steps[i] - steps[i - 1]);
  return out;
}

// Tables [x, column, …] with ascending x as one table. `undefined` says that a table has no row at an x; a null of a
// table's own stays a gap.
export function joined(tables) {
  if (tables.length === 1) return tables[0];
  const at = tables.map(() => 0);
  const xs = [];
  const places = tables.map((table) => new Array(table[0].length));
  for (;;) {
    let least = Infinity;
    for (let t = 0; t < tables.length; t++) if (at[t] < tables[t][0].length && tables[t][0][at[t]] < least) least = tables[t][0][at[t]];
    if (least === Infinity) break;
    for (let t = 0; t < tables.length; t++) if (at[t] < tables[t][0].length && tables[t][0][at[t]] === least) places[t][at[t]++] = xs.length;
    xs.push(least);
  }
  const out = [xs];
  tables.forEach((table, t) => {
    for (let c = 1; c < table.length; c++) {
      const column = new Array(xs.length);
      for (let i = 0; i < table[c].length; i++) column[places[t][i]] = table[c][i];
      out.push(column);
    }
  });
  return out;
}

// x of each row in the wanted unit; `from` is the unix time at which the run began.
export function xOf(run, mode, from) {
  if (mode === "step") return run.steps;
  if (mode === "wall") return run.times;
  return run.times.map((time) => time - from);
}

export function xOfStep(run, step, xs) {
  let low = 0;
  let high = run.steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return high < 0 ? null : xs === run.steps ? step : xs[low];
}

// One row with nothing in it, just after row `i`, is how a gap is drawn.
export function pick(values, rows) {
  return rows.map((row) => (row < 0 ? null : values[row]));
}

export function pickX(xs, rows) {
  return rows.map((row) => {
    if (row >= 0) return xs[row];
    const i = -1 - row;
    return i + 1 < xs.length ? xs[i] + (xs[i + 1] - xs[i]) / 2 : xs[i] + 1e-6;
  });
}

export function statistics(values) {
  const found = values.filter((value) => value != null);
  if (!found.length) return { count: 0 };
  let low = Infinity;
  let high = -Infinity;
  let sum = 0;
  for (const value of found) {
    if (value < low) low = value;
    if (value > high) high = value;
    sum += value;
  }
  const mean = sum / found.length;
  const tail = found.slice(-20);
  const spread = found.reduce((total, value) => total + (value - mean) ** 2, 0);
  return {
    count: found.length,
    first: found[0],
    last: found[found.length - 1],
    min: low,
    max: high,
    mean,
    std: found.length > 1 ? Math.sqrt(spread / (found.length - 1)) : null,
    recent: tail.reduce((total, value) => total + value, 0) / tail.length,
  };
}

export function histogram(values, low, high, bins) {
  const counts = new Array(bins).fill(0);
  let outside = 0;
  const width = (high - low) / bins || 1;
  for (const value of values) {
    if (value < low || value > high) outside++;
    else counts[Math.min(bins - 1, Math.floor((value - low) / width))]++;
  }
  return { counts, width, outside };
}

export function quantileRange(values) {
  const sorted = values.filter((value) => value != null).sort((a, b) => a - b);
  if (sorted.length < 8) return null;
  const low = sorted[Math.floor(sorted.length * 0.02)];
  const high = sorted[Math.floor(sorted.length * 0.98)];
  const margin = (high - low) * 0.3 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}
