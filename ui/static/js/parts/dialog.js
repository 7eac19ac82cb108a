// A modal dialog made of the browser's own element: focus stays inside, Escape closes it.

import { button, h, iconButton } from "../core/dom.js";

export function openDialog({ title, className = "", label, extra = [], body, onClose }) {
  const dialog = h("dialog", { class: `dialog ${className}`, tabindex: "-1", "aria-label": label || title },
    h("header", {}, h("h2", {}, title), h("span", { class: "grow" }), extra, iconButton("close", "Close (Esc)", () => dialog.close())),
    h("div", { class: "dialog-body" }, body));
  dialog.addEventListener("close", () => {
    onClose?.();
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.querySelector(".tele").append(dialog);
  dialog.showModal();
  // The first button would take the focus and look chosen.
  dialog.focus();
  return dialog;
}

// Resolves to the text, or null when it was left. `check` says what is wrong with a text, now or later; the dialog stays.
export function askText({ title, text = "", label, placeholder = "", value = "", action = "Save", long = false, check = () => "" }) {
  return new Promise((resolve) => {
    let answer = null;
    const problem = h("p", { class: "problem", role: "alert" });
    const field = long ? h("textarea", { rows: 6, placeholder, "aria-label": label }) : h("input", { type: "text", placeholder, "aria-label": label });
    field.value = value;
    const accept = async () => {
      if (yes.disabled) return; // by key, while the text is being checked
      yes.disabled = true;
      problem.textContent = await check(field.value);
      yes.disabled = false;
      if (problem.textContent) return;
      answer = field.value;
      dialog.close();
    };
    const yes = button(action, accept, { kind: "primary" });
    field.addEventListener("keydown", (event) => event.key === "Enter" && (!long || event.ctrlKey || event.metaKey) && accept());
    const dialog = openDialog({ title, className: "small", body: [text ? h("p", {}, text) : null, h("label", { class: "field" }, h("span", {}, label), field), problem, h("div", { class: "row end" }, button("Cancel", () => dialog.close()), yes)], onClose: () => resolve(answer) });
    field.focus();
    field.select?.();
  });
}

export function confirm({ title, text, action, kind = "primary" }) {
  return new Promise((resolve) => {
    let yes = false;
    const dialog = openDialog({ title, className: "small", body: [h("p", {}, text), h("div", { class: "row end" }, button("Cancel", () => dialog.close()), button(action, () => ((yes = true), dialog.close()), { kind }))], onClose: () => resolve(yes) });
  });
}
