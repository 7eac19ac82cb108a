// Small controls of tool bars.

import { fill, h, icon } from "../core/dom.js";

export function segments(label, options, current, choose) {
  const group = h("div", { class: "seg", role: "group", "aria-label": label });
  for (const [value, text, title] of options) {
    group.append(h("button", { type: "button", title, "aria-pressed": String(current === value), onclick: (event) => {
      for (const one of group.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      choose(value);
    } }, text));
  }
  group.select = (value) => [...group.children].forEach((one, i) => one.setAttribute("aria-pressed", String(options[i][0] === value)));
  return group;
}

export function toggle(text, on, change, title) {
  const element = h("button", { type: "button", class: "pill", title, "aria-pressed": String(on), onclick: () => {
    const next = element.getAttribute("aria-pressed") !== "true";
    element.setAttribute("aria-pressed", String(next));
    change(next);
  } }, text);
  return element;
}

export function checkbox(text, on, change, note) {
  const input = h("input", { type: "checkbox", onchange: () => change(input.checked) });
  input.checked = on;
  return h("label", { class: "check" }, input, h("span", {}, text, note ? h("small", {}, note) : null));
}

export function select(label, options, current, change) {
  const element = h("select", { "aria-label": label, onchange: () => change(element.value) }, options.map(([value, text]) => h("option", { value, selected: value === current }, text)));
  return element;
}

export function searchBox(placeholder, value, input, key = "/") {
  const field = h("input", { type: "search", placeholder, "aria-label": placeholder, oninput: () => input(field.value), value });
  field.value = value;
  const box = h("label", { class: "search" }, icon("search"), field, key ? h("kbd", {}, key) : null);
  box.field = field;
  return box;
}

// A button that opens a small panel; Escape, a click elsewhere or leaving it by Tab closes it.
export function menu(text, content, { icon: name, title } = {}) {
  const panel = h("div", { class: "menu-panel", hidden: true });
  const opener = h("button", { type: "button", class: "pill", title, "aria-expanded": "false", onclick: () => set(panel.hidden) }, name ? icon(name) : null, text, icon("chevron", 12));
  const box = h("div", { class: "menu" }, opener, panel);
  const outside = (event) => !box.contains(event.target) && set(false);
  const set = (open) => {
    panel.hidden = !open;
    // Only while it is open: a listener of the document outlives the row that the menu is in.
    document[open ? "addEventListener" : "removeEventListener"]("pointerdown", outside);
    opener.setAttribute("aria-expanded", String(open));
    if (open) fill(panel, content(() => set(false)));
  };
  box.addEventListener("keydown", (event) => event.key === "Escape" && !panel.hidden && (event.stopPropagation(), set(false), opener.focus()));
  box.addEventListener("focusout", (event) => event.relatedTarget && !box.contains(event.relatedTarget) && set(false));
  return box;
}

export function menuItem(text, action, { icon: name, kind = "" } = {}) {
  return h("button", { type: "button", class: `menu-item ${kind}`, onclick: action }, name ? icon(name) : null, text);
}

// What a run is, and while it starts also what it is doing.
export const stateOf = ({ state, phase }) => [h("span", { class: `badge ${state}` }, state), phase ? h("span", { class: "phase" }, phase) : null];

const LONG = 120;
const unfolded = new Set();

// A text in a few lines; a long one shows the rest after a click, also when the page is drawn again.
export function clamped(text, attrs = {}) {
  if (text.length <= LONG && !text.includes("\n")) return h("div", attrs, text);
  const element = h("button", { ...attrs, type: "button", class: `clamp ${attrs.class || ""}`, title: text, "aria-expanded": String(unfolded.has(text)), onclick: () => {
    if (!unfolded.delete(text)) unfolded.add(text);
    element.setAttribute("aria-expanded", String(unfolded.has(text)));
  } }, text);
  return element;
}

export function live() {
  const text = h("span", {}, "Live");
  const element = h("span", { class: "live ok", role: "status" }, h("i"), text);
  element.show = ({ ok, running, error, retry }) => {
    element.className = `live ${ok ? (running ? "ok" : "idle") : "bad"}`;
    text.textContent = ok ? (running ? "Live" : "Idle") : "Reconnecting";
    element.title = ok ? (running ? "New steps appear as they are made" : "Nothing shown is running; checked every 15 s") : `${error.message}. Next try in ${Math.round(retry / 1000)} s`;
  };
  return element;
}
