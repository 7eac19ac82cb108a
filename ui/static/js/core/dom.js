// Elements are built from tags and text nodes only: nothing that comes from a run is ever parsed as markup.

export function h(tag, attrs, ...kids) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value == null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, kids);
  return element;
}

export function append(element, kids) {
  for (const kid of [kids].flat(Infinity)) {
    if (kid == null || kid === false) continue;
    element.append(kid.nodeType ? kid : document.createTextNode(String(kid)));
  }
  return element;
}

export function fill(element, ...kids) {
  element.replaceChildren();
  return append(element, kids);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attrs, ...kids) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attrs || {})) if (value != null) element.setAttribute(name, value);
  for (const kid of kids.flat()) if (kid) element.append(kid);
  return element;
}

// Each icon is a list of strokes in a 16 by 16 box; "." leads a filled dot "x,y".
const ICONS = {
  grip: [".5.5,4", ".10.5,4", ".5.5,8", ".10.5,8", ".5.5,12", ".10.5,12"],
  expand: ["M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3"],
  log: ["M2.5 2v11.5H14M5 11c4-1 6-4 7-8"],
  pin: ["M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4L8 11.4l-3.6 1.9.7-4L2.2 6.5l4-.6z"],
  down: ["M8 2.5v7M5 7l3 3 3-3M3 13.5h10"],
  up: ["M8 10.5v-7M5 6l3-3 3 3M3 13.5h10"],
  chevron: ["M4 6l4 4 4-4"],
  left: ["M10 3.5L5.5 8 10 12.5"],
  right: ["M6 3.5L10.5 8 6 12.5"],
  first: ["M11.5 3.5L7 8l4.5 4.5M4.5 3.5v9"],
  last: ["M4.5 3.5L9 8l-4.5 4.5M11.5 3.5v9"],
  close: ["M4 4l8 8M12 4l-8 8"],
  plus: ["M8 3v10M3 8h10"],
  check: ["M3.5 8.5l3 3 6-7"],
  search: ["M11.2 7a4.2 4.2 0 11-8.4 0 4.2 4.2 0 018.4 0zM10.2 10.2L14 14"],
  moon: ["M13.5 9.7A5.8 5.8 0 016.3 2.5a5.8 5.8 0 107.2 7.2z"],
  link: ["M6.8 9.2a2.6 2.6 0 003.7 0l2-2a2.6 2.6 0 00-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 00-3.7 0l-2 2a2.6 2.6 0 003.7 3.7l.9-.9"],
  stop: ["M4 4h8v8H4z"],
  play: ["M5 3.2v9.6l7.5-4.8z"],
  copy: ["M5.5 5.5h7v7h-7zM3.5 10.5v-7h7"],
  edit: ["M3 13l.6-2.7 7-7 2.1 2.1-7 7zM9.6 4.3l2.1 2.1"],
  archive: ["M2.5 3.5h11v3h-11zM3.5 6.5v6h9v-6M6.5 9h3"],
  undo: ["M3 7h7a3 3 0 010 6H7M3 7l3-3M3 7l3 3"],
  redo: ["M13 7H6a3 3 0 000 6h3M13 7l-3-3M13 7l-3 3"],
  help: ["M6 6a2 2 0 113 1.7c-.7.4-1 .8-1 1.6M8 11.6v.3M14 8A6 6 0 112 8a6 6 0 0112 0z"],
  wide: ["M2 8h12M4.5 5.5L2 8l2.5 2.5M11.5 5.5L14 8l-2.5 2.5"],
  more: [".3.5,8", ".8,8", ".12.5,8"],
  rows: ["M3 4h10M3 8h10M3 12h10"],
  compare: ["M3 3.5h4v9H3zM9 3.5h4v9H9z"],
  logs: ["M3 4.5h10M3 8h7M3 11.5h9"],
  fit: ["M2.5 4.5v-2h2M13.5 4.5v-2h-2M2.5 11.5v2h2M13.5 11.5v2h-2M5 8h6"],
  warn: ["M8 2.5l6 10.5H2zM8 6.5v3M8 11.3v.2"],
};

export function icon(name, size = 16) {
  const box = svg("svg", { viewBox: "0 0 16 16", width: size, height: size, class: "ic", "aria-hidden": "true" });
  for (const part of ICONS[name]) {
    if (part[0] === ".") {
      const [x, y] = part.slice(1).split(",");
      box.append(svg("circle", { cx: x, cy: y, r: 1.2, fill: "currentColor" }));
    } else {
      box.append(svg("path", { d: part, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linejoin": "round", "stroke-linecap": "round" }));
    }
  }
  return box;
}

export function iconButton(name, label, onclick, extra = {}) {
  const { class: cls, ...rest } = extra;
  return h("button", { type: "button", class: `ib ${cls || ""}`, "aria-label": label, title: label, onclick, ...rest }, icon(name));
}

export function button(label, onclick, { icon: name, kind = "", ...rest } = {}) {
  return h("button", { type: "button", class: `btn ${kind}`, onclick, ...rest }, name ? icon(name) : null, label);
}

export function clickable(element, action) {
  element.tabIndex = 0;
  element.addEventListener("click", action);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action(event);
    }
  });
  return element;
}

export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 2000);
}

export function debounce(action, ms) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), ms);
  };
}
