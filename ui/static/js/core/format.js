// Numbers, times and names as people read them.

export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1e6) return trim((value / 1e6).toFixed(2)) + "M";
  if (size >= 1e4) return trim((value / 1e3).toFixed(1)) + "k";
  if (size >= 100) return trim(value.toFixed(size >= 1000 ? 0 : 1));
  if (size >= 10) return trim(value.toFixed(2));
  return trim(value.toFixed(3));
}

const trim = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text);

// A value of a JSON reply: a number, a text, or the marker of a non-finite number.
export const isMarker = (value) => value != null && typeof value === "object" && "nonfinite" in value;
export const shown = (value) => (isMarker(value) ? value.nonfinite : typeof value === "number" ? number(value) : value == null ? "–" : String(value));
export const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// Digits after the point that a multiple of `step` needs, no more.
function decimals(step) {
  for (let d = 0; d < 8; d++) {
    const scaled = step * 10 ** d;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * Math.max(1, scaled)) return d;
  }
  return 8;
}

export function axisNumber(value, step) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return trim((value / 1e6).toFixed(3)) + "M";
  if (size >= 1e4) return trim((value / 1e3).toFixed(2)) + "k";
  if (size < 1e-3 || step < 5e-4) {
    const exponent = Math.floor(Math.log10(size));
    return `${trim((value / 10 ** exponent).toFixed(Math.min(4, decimals(step / 10 ** exponent))))}e${exponent}`;
  }
  return value.toFixed(Math.min(4, decimals(step)));
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${trim(s.toFixed(s < 10 ? 1 : 0))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${pad(Math.floor(s % 60))} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${pad(Math.floor((s % 3600) / 60))} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const pad = (n) => String(n).padStart(2, "0");

export function age(unix) {
  if (!unix) return "–";
  const s = Date.now() / 1000 - unix;
  if (s < 0) return s < -5 ? "clock ahead" : "now";
  if (s < 60) return "now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

export function wall(unix, long = false) {
  const d = new Date(unix * 1000);
  const clock = `${pad(d.getHours())}:${pad(d.getMinutes())}`;
  return long ? `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${clock}:${pad(d.getSeconds())}` : clock;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// A moment in few characters: the time alone today, else the day with it.
export function day(unix) {
  const d = new Date(unix * 1000);
  return d.toDateString() === new Date().toDateString() ? wall(unix) : `${d.getDate()} ${MONTHS[d.getMonth()]} ${wall(unix)}`;
}

export function bytes(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; count >= 1024 && at < units.length - 1; at++) count /= 1024;
  return `${count.toFixed(count < 10 && at ? 1 : 0)} ${units[at]}`;
}

export const count = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en-US"));

const WORDS = { kl: "KL", lr: "LR", gpu: "GPU", cpu: "CPU", ess: "ESS", pct: "%", ppo: "PPO", kv: "KV" };

export function pretty(name) {
  const text = name.replace(/_/g, " ").trim();
  const worded = text.replace(/\b[a-z]+\b/gi, (word) => WORDS[word.toLowerCase()] || word);
  return worded ? worded[0].toUpperCase() + worded.slice(1) : name;
}

// A model may be a path: its last part says which, the whole belongs into a tooltip. Other names are whole: a slash in
// them need not part anything.
export function lastPart(name) {
  const parts = name.split("/").filter(Boolean);
  return name.startsWith("/") && parts.length > 1 ? parts.at(-1) : name;
}

// A long name without its middle: checkpoints of one run differ at their ends.
export function middle(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

// Inside the group or section that already says it, a name need not repeat it: "timing_forward_total" → "Forward total".
export function shortName(entry) {
  const strip = entry.name.replace(/^timing_/, "").replace(/^discarded_(?=.)/, "");
  return pretty(entry.section === "Timeline" || entry.section === "Discarded" ? strip || entry.name : entry.name);
}

// Names by key for metrics of one chart: where two are alike, their group or section tells them apart.
export function distinctNames(entries) {
  const names = entries.map(shortName);
  const alike = (name) => names.filter((one) => one === name).length > 1;
  return new Map(entries.map((entry, i) => [entry.key, alike(names[i]) ? pretty(entry.group || entry.section) || entry.key : names[i]]));
}

export function axisX(mode) {
  if (mode === "rel") return (s) => (s >= 86400 * 2 ? `${trim((s / 86400).toFixed(1))}d` : s >= 7200 ? `${trim((s / 3600).toFixed(1))}h` : s >= 120 ? `${trim((s / 60).toFixed(1))}m` : `${trim(s.toFixed(1))}s`);
  if (mode === "wall") return (t) => wall(t);
  return (v) => (v >= 1e6 ? `${trim((v / 1e6).toFixed(2))}M` : v >= 1e4 ? `${trim((v / 1e3).toFixed(1))}k` : Number.isInteger(v) ? String(v) : "");
}
