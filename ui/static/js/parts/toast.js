// A sentence at the bottom of the window, also read out; optionally with one action.

import { button, fill, h } from "../core/dom.js";

const READ_MS = 70; // for a character
const box = h("div", { class: "toast", role: "status", "aria-live": "polite" });
let timer = 0;

export const startToasts = (root) => root.append(box);

export function say(text, action) {
  fill(box, h("span", {}, text), action ? button(action.label, () => (box.classList.remove("on"), action.run())) : null);
  box.classList.add("on");
  clearTimeout(timer);
  timer = setTimeout(() => box.classList.remove("on"), Math.max(action ? 7000 : 2600, READ_MS * text.length));
}
