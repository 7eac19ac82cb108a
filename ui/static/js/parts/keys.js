// Keyboard: one list that is both what the keys do and what `?` shows.

import { h } from "../core/dom.js";
import { toggle } from "../core/theme.js";
import { openDialog } from "./dialog.js";

const COMMON = [
  ["/", "Search on this page", () => (document.querySelector(".tele .search input") || document.querySelector(".tele .side-search"))?.focus()],
  ["d", "Light or dark", toggle],
  ["?", "This list", () => help()],
];
let extra = [];

export function setKeys(keys) {
  extra = keys;
}

export function startKeys() {
  addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable], .cm-editor");
    if (typing) {
      if (event.key === "Escape" && event.target.matches('input[type="search"]')) event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") && event.key !== "Escape") return;
    const found = [...extra, ...COMMON].find(([key]) => key.split(" ").includes(event.key));
    if (!found) return;
    event.preventDefault();
    found[2](event);
  });
}

const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

function help() {
  const rows = [...COMMON, ...extra, ["Esc", "Close what is open"], ["drag", "Zoom into a stretch of a chart; double click to leave it"], ["Alt click", "Show only this run"]];
  openDialog({ title: "Keyboard", className: "small", body: h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", {}, key.split(" ").map((one) => h("kbd", {}, NAMES[one] || one))), h("dd", {}, text)])) });
}
