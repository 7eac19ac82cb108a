// Light and dark: one class, one set of custom properties; canvases ask for the colours when the class changes.

export const RUN_COLORS = 10;
const listeners = new Set();
let choice = null;

export const isDark = () => document.documentElement.classList.contains("dark");

export function setDark(dark) {
  document.documentElement.classList.toggle("dark", dark);
  document.body.classList.toggle("dark", dark);
  for (const listener of listeners) listener();
}

export function toggle() {
  choice = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("telescope.theme", choice);
  } catch {
    // See url.js: without storage the choice lasts as long as the page.
  }
  setDark(!isDark());
}

export function startTheme() {
  try {
    choice = localStorage.getItem("telescope.theme");
  } catch {
    // As above.
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => setDark(choice ? choice === "dark" : media.matches);
  apply();
  // Gradio sets its own class when it mounts; ours is the one that counts.
  new MutationObserver(() => {
    if (document.body.classList.contains("dark") !== isDark()) document.body.classList.toggle("dark", isDark());
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  media.addEventListener("change", () => {
    if (!choice) setDark(media.matches);
  });
}

export const onTheme = (listener) => listeners.add(listener);

export function colors() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--t-${name}`).trim();
  const names = ["bg", "card", "line", "text", "soft", "muted", "grid", "range", "accent", "bad", "warn", "good", "lane"];
  const found = Object.fromEntries(names.map((name) => [name, read(name)]));
  found.runs = Array.from({ length: RUN_COLORS }, (_, i) => read(`run-${i}`));
  found.font = "'Inter Variable', ui-sans-serif, system-ui, sans-serif";
  return found;
}

export const alpha = (hex, a) => hex + Math.round(Math.max(0, Math.min(1, a)) * 255).toString(16).padStart(2, "0");

// Orange to blue through grey: the ends stay apart for every kind of colour vision.
const SCALE = ["#bf5a17", "#df9650", "#c3c8d4", "#7c9cf6", "#2f5ce2"];

const channel = (hex, at) => parseInt(hex.slice(1 + 2 * at, 3 + 2 * at), 16);

export function scaleColor(share) {
  const at = Math.max(0, Math.min(1, share)) * (SCALE.length - 1);
  const low = Math.floor(at);
  const high = Math.min(SCALE.length - 1, low + 1);
  const mix = (c) => Math.round(channel(SCALE[low], c) + (at - low) * (channel(SCALE[high], c) - channel(SCALE[low], c)));
  return `rgb(${mix(0)} ${mix(1)} ${mix(2)})`;
}
