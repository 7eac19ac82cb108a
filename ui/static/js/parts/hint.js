// One floating box for the whole page: definitions on hover or focus, values under the cursor.

import { fill, h } from "../core/dom.js";

const box = h("div", { class: "hint", role: "tooltip", id: "hint" });
let timer = 0;

export function startHints(root) {
  root.append(box);
  addEventListener("scroll", hide, { passive: true, capture: true });
}

export function hide() {
  clearTimeout(timer);
  box.classList.remove("on");
}

function place(rect, gap = 6) {
  const { offsetWidth: width, offsetHeight: height } = box;
  const below = rect.bottom + gap + height < innerHeight || rect.top < height;
  const x = Math.max(8, Math.min(rect.left, innerWidth - width - 8));
  const y = below ? rect.bottom + gap : rect.top - height - gap;
  box.style.transform = `translate(${Math.round(x)}px, ${Math.round(Math.max(8, y))}px)`;
}

// Show `content()` beside the element while it is pointed at or holds the focus.
export function attach(element, content) {
  const show = (wait) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (!element.isConnected) return;
      fill(box, content());
      place(element.getBoundingClientRect());
      box.classList.add("on");
    }, wait);
  };
  element.addEventListener("mouseenter", () => show(220));
  element.addEventListener("focus", () => element.matches(":focus-visible") && show(0));
  element.addEventListener("mouseleave", hide);
  element.addEventListener("blur", hide);
  element.setAttribute("aria-describedby", "hint");
}

// Values at a point of a chart: beside the point, on the side where there is room.
export function at(x, y, content) {
  fill(box, content);
  const width = box.offsetWidth;
  const left = x + 16 + width > innerWidth - 8 ? x - width - 16 : x + 16;
  const top = Math.max(8, Math.min(y, innerHeight - box.offsetHeight - 8));
  box.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(top)}px)`;
  box.classList.add("on");
}
