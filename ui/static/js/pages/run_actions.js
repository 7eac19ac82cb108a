// What can be done to a run from the list.

import { button, fill, h } from "../core/dom.js";
import { getJson, send } from "../core/api.js";
import { RUN_COLORS } from "../core/theme.js";
import { askText, confirm, openDialog } from "../parts/dialog.js";
import { say } from "../parts/toast.js";

// Each answers with the run as it is after it, or with null when it was left.
const ACTS = {
  async stop(row) {
    if (!(await confirm({ title: "Stop this run?", text: `“${row.title}” stops after it has closed its files. It can be resumed from its last checkpoint.`, action: "Stop", kind: "danger" }))) return null;
    say("Stopping; this takes until the run has closed its files");
    return send("POST", `/runs/${row.id}/stop`);
  },
  async resume(row) {
    let found = null;
    const resume = async (text) => {
      const overrides = text.split("\n").map((line) => line.trim()).filter(Boolean);
      try {
        found = await send("POST", `/runs/${row.id}/resume`, { overrides });
        return "";
      } catch (error) {
        return error.message;
      }
    };
    await askText({ title: "Resume this run?", text: `“${row.title}” goes on from its last checkpoint as attempt ${(row.attempt || 1) + 1}.`, label: "Changes to what it runs on, one key=value a line; empty for none", placeholder: "seq_len=1024\nnum_workers=2", action: "Resume", long: true, check: resume });
    return found;
  },
};

export async function act(page, row, action) {
  try {
    const found = await ACTS[action](row);
    if (found) say(`${row.title} is ${found.state}`);
  } catch (error) {
    say(error.message, { label: "Close", run: () => {} });
  }
  await page.refresh();
}

export async function archive(page, ids, on) {
  for (const id of ids) await page.save(id, { archived: on });
  page.chosen.clear();
  page.render();
  say(on ? `${ids.length} archived` : "Back in the list", on ? { label: "Undo", run: () => archive(page, ids, false) } : null);
}

export function describe(page, row) {
  const label = h("input", { type: "text", maxlength: 120, placeholder: row.name });
  label.value = row.label || "";
  const tags = h("input", { type: "text", placeholder: "baseline, sweep-3" });
  tags.value = (row.tags || []).join(", ");
  const notes = h("textarea", { rows: 5, maxlength: 20000 });
  notes.value = row.notes || "";
  let color = row.color ?? null;
  const swatches = h("div", { class: "swatches", role: "group", "aria-label": "Colour" });
  const paint = () => fill(swatches, [null, ...Array(RUN_COLORS).keys()].map((one) => h("button", { type: "button", class: `swatch ${one == null ? "auto" : ""}`, "aria-pressed": String(one === color), "aria-label": one == null ? "Automatic" : `Colour ${one + 1}`, style: one == null ? null : `--c:var(--t-run-${one})`, onclick: () => ((color = one), paint()) }, one == null ? "auto" : "")));
  paint();
  const field = (name, input) => h("label", { class: "field" }, h("span", {}, name), input);
  const dialog = openDialog({ title: row.name, className: "small", body: [field("Name on the dashboard", label), field("Tags", tags), field("Notes", notes), h("div", { class: "field" }, h("span", {}, "Colour"), swatches), h("div", { class: "row end" }, button("Cancel", () => dialog.close()), button("Save", async () => {
    dialog.close();
    await page.save(row.id, { label: label.value.trim(), tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), notes: notes.value, color });
  }, { kind: "primary" }))] });
}

export async function openCompare(session, [left, right]) {
  const found = await getJson("/compare", { left, right }).catch((error) => say(error.message));
  if (!found) return;
  const names = [left, right].map((id) => session.row(id)).map((row) => row.title);
  const text = (value, absent) => (absent ? h("span", { class: "muted" }, "absent") : h("code", {}, JSON.stringify(value)));
  const table = (rows) => (rows.length ? h("table", { class: "diff" }, h("thead", {}, h("tr", {}, ["", ...names].map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Key"))))), h("tbody", {}, rows.map((row) => h("tr", {}, h("td", {}, h("code", {}, row.key)), h("td", { class: "left" }, text(row.left, row.absent === "left")), h("td", { class: "right" }, text(row.right, row.absent === "right")))))) : h("p", { class: "muted" }, "No difference"));
  openDialog({ title: "Difference of two runs", className: "medium", body: [h("h3", {}, "Configuration"), table(found.config), h("h3", {}, "Versions"), table(found.versions)] });
}
