// Logs of a run, following their end while it grows.

import { fill, h } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { bytes } from "../core/format.js";
import { checkbox, select } from "./controls.js";
import { openDialog } from "./dialog.js";

const POLL_MS = 1500;
const MOST_CHARS = 600000;

export function openLogs(row) {
  const text = h("pre", { class: "log scroll", tabindex: "0", "aria-label": "Log" });
  const names = h("span");
  const note = h("span", { class: "muted" });
  let follow = true;
  let name = "";
  let end = -1;
  let timer = 0;
  const read = async () => {
    try {
      const part = await getJson("/logs", { run: row.id, name, after: end });
      name = part.name || "";
      if (end < 0) fill(names, part.names.length > 1 ? select("Log", part.names.map((one) => [one, one]), name, (chosen) => restart(chosen)) : h("code", {}, name));
      if (!part.names.length) note.textContent = "This run has written no log yet";
      else note.textContent = part.start > 0 && end < 0 ? `the last ${bytes(part.end - part.start)} of ${bytes(part.end)}` : bytes(part.end);
      if (part.text) text.append(document.createTextNode(part.text));
      end = part.names.length ? part.end : -1;
      while (text.textContent.length > MOST_CHARS && text.childNodes.length > 1) text.firstChild.remove();
      if (follow && part.text) text.scrollTop = text.scrollHeight;
    } catch (error) {
      note.textContent = error.message;
    }
    timer = dialog.open ? setTimeout(read, POLL_MS) : 0;
  };
  const restart = (chosen) => {
    clearTimeout(timer);
    [name, end] = [chosen, -1];
    fill(text);
    read();
  };
  const reason = row.reason && row.state !== "finished" ? h("p", { class: `reason ${row.state}` }, row.reason) : null;
  const dialog = openDialog({ title: `Logs of ${row.title}`, className: "logs", body: [reason, h("div", { class: "row" }, names, note, h("span", { class: "grow" }), checkbox("Follow", true, (on) => (follow = on))), text], onClose: () => clearTimeout(timer) });
  read();
}
