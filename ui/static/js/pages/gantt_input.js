// Wheel, drag and click on the bars of time. Keys are the page's.

import { hide } from "../parts/hint.js";

export function listen(gantt) {
  const { canvas } = gantt;
  let held = null;
  canvas.addEventListener("wheel", (event) => {
    // A plain wheel scrolls the page; with Ctrl, or sideways, it is ours.
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) gantt.zoomBy(event.deltaY > 0 ? 1.18 : 1 / 1.18, gantt.time(event.offsetX));
    else gantt.pan(event.deltaX / gantt.width);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.offsetX, from: gantt.from, to: gantt.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = ((event.offsetX - held.x) / gantt.width) * (held.to - held.from);
      held.moved ||= Math.abs(event.offsetX - held.x) > 3;
      if (held.moved) gantt.move(held.from - by, held.to - by);
      return;
    }
    gantt.point(event);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) gantt.choose(gantt.find(event.offsetX, event.offsetY));
    held = null;
  });
  canvas.addEventListener("pointerleave", () => {
    gantt.hover = -1;
    hide();
    gantt.draw();
  });
  new ResizeObserver(() => gantt.draw()).observe(canvas);
}
