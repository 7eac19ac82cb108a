// The address is the state: a link opens the same view. Prefs that are a matter of taste also live in the browser.

import { debounce } from "./dom.js";

const listeners = new Set();

export const get = (name, fallback = "") => new URLSearchParams(location.search).get(name) ?? fallback;
export const flag = (name, fallback = false) => (new URLSearchParams(location.search).has(name) ? get(name) === "1" : fallback);
export const list = (name) => get(name).split(",").filter(Boolean);

let pending = null;
// Chromium refuses more than 200 history changes in 30 s, so a dragged slider writes once it rests.
const write = debounce(() => {
  if (pending == null) return;
  history.replaceState(history.state, "", pending);
  pending = null;
  for (const listener of listeners) listener();
}, 80);

export function set(values) {
  const base = pending == null ? location.href : new URL(pending, location.href).href;
  const url = new URL(base);
  for (const [name, value] of Object.entries(values)) {
    if (value == null || value === "" || value === false) url.searchParams.delete(name);
    else url.searchParams.set(name, value === true ? "1" : Array.isArray(value) ? value.join(",") : String(value));
  }
  pending = url.pathname + (url.searchParams.size ? `?${url.searchParams}` : "") + url.hash;
  write();
}

export const onChange = (listener) => listeners.add(listener);

export function href(page, values = {}) {
  const url = new URL(page, location.origin);
  for (const [name, value] of Object.entries(values)) if (value != null && value !== "") url.searchParams.set(name, value);
  return url.pathname + url.search;
}

export function recall(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`telescope.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`telescope.${name}`, JSON.stringify(value));
  } catch {
    // A browser without storage forgets tastes; nothing else depends on them.
  }
}
