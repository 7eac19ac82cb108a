// The tools of the Custom view: which layout, undo, files, and what can be added.

import { button, fill, h, iconButton, save } from "../core/dom.js";
import { getJson, send } from "../core/api.js";
import { menu, menuItem, select } from "../parts/controls.js";
import { askText, confirm } from "../parts/dialog.js";
import { say } from "../parts/toast.js";
import { repaired } from "./layout.js";

const checkName = (text) => (/^\S(.{0,78}\S)?$/.test(text) ? "" : "1 to 80 characters, no space at either end");

export function layoutTools(custom) {
  const { store } = custom;
  const undo = iconButton("undo", "Undo", () => store.step("undo"));
  const redo = iconButton("redo", "Redo", () => store.step("redo"));
  const chosen = h("span", { class: "layout-choice" });
  store.onState = () => {
    undo.disabled = !store.canUndo;
    redo.disabled = !store.canRedo;
  };
  store.onState();
  listLayouts(custom, chosen);
  const files = menu("", (close) => [
    menuItem("New layout", () => (close(), newLayout(custom, chosen, false)), { icon: "plus" }),
    menuItem("Duplicate this layout", () => (close(), newLayout(custom, chosen, true)), { icon: "copy" }),
    menuItem("Export as a file", () => (close(), exportFile(store)), { icon: "down" }),
    menuItem("Import a file", () => (close(), importFile(custom)), { icon: "up" }),
    menuItem("Delete this layout", () => (close(), remove(custom, chosen)), { icon: "close", kind: "danger" }),
  ], { icon: "more", title: "Layouts" });
  files.classList.add("right");
  files.querySelector("button").setAttribute("aria-label", "Layouts");
  return [undo, redo, chosen, files, button("Section", () => custom.addSection(), { icon: "plus" }), button("Add metrics", () => custom.pick(), { icon: "plus", kind: "primary" })];
}

async function listLayouts(custom, place) {
  const { layouts } = await getJson("/layouts");
  const names = [...new Set(["default", custom.store.name, ...layouts.map((one) => one.name)])];
  fill(place, names.length > 1 ? select("Layout", names.map((name) => [name, name]), custom.store.name, (name) => open(custom, name)) : null);
}

async function open(custom, name) {
  custom.page.view.layout = name;
  custom.page.changed(false);
  await custom.store.open(name);
}

async function newLayout(custom, place, copied) {
  const name = await askText({ title: copied ? "Duplicate layout" : "New layout", label: "Name", action: "Create", check: checkName });
  if (!name) return;
  const layout = copied ? JSON.parse(JSON.stringify(custom.layout)) : { sections: [] };
  try {
    await send("PUT", `/layouts/${encodeURIComponent(name)}`, { version: 0, layout });
    await open(custom, name);
    await listLayouts(custom, place);
  } catch (error) {
    say(error.status === 409 ? `There is a layout “${name}” already` : error.message);
  }
}

async function remove(custom, place) {
  const { store } = custom;
  if (!(await confirm({ title: "Delete this layout?", text: `“${store.name}” will be gone for every browser.`, action: "Delete", kind: "danger" }))) return;
  try {
    await send("DELETE", store.path());
  } catch (error) {
    if (error.status !== 404) return say(error.message);
  }
  await open(custom, "default");
  store.version = null;
  await store.load(store.byKey);
  custom.render();
  await listLayouts(custom, place);
}

function exportFile(store) {
  const text = JSON.stringify({ telescope_layout: 1, name: store.name, layout: store.layout }, null, 2);
  save(new Blob([text], { type: "application/json" }), `layout-${store.name.replace(/[^\w.-]+/g, "_")}.json`);
}

function importFile(custom) {
  const picker = h("input", { type: "file", accept: "application/json,.json" });
  picker.addEventListener("change", async () => {
    try {
      const found = JSON.parse(await picker.files[0].text());
      const layout = found.layout || found;
      if (!Array.isArray(layout.sections)) throw new Error("it has no list of sections");
      await custom.store.replace(repaired(layout));
      say("Layout imported");
    } catch (error) {
      say(`Not a layout file: ${error.message}`);
    }
  });
  picker.click();
}
