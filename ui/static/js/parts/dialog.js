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

// Resolves to the text, or null when it was left.
export function askText({ title, label, value = "", action = "Save", long = false, check = () => "" }) {
  return new Promise((resolve) => {
    let answer = null;
    const problem = h("p", { class: "problem", role: "alert" });
    const field = long ? h("textarea", { rows: 6, "aria-label": label }) : h("input", { type: "text", "aria-label": label });
    field.value = value;
    const accept = () => {
      problem.textContent = check(field.value);
      if (problem.textContent) return;
      answer = field.value;
      dialog.close();
    };
    field.addEventListener("keydown", (event) => event.key === "Enter" && (!long || event.ctrlKey || event.metaKey) && accept());
    const dialog = openDialog({ title, className: "small", body: [h("label", { class: "field" }, h("span", {}, label), field), problem, h("div", { class: "row end" }, button("Cancel", () => dialog.close()), button(action, accept, { kind: "primary" }))], onClose: () => resolve(answer) });
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
