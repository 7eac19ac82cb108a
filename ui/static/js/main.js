// Entry of every page: theme, keys, navigation that keeps the chosen runs, then the page's own module.

import { fill, h } from "./core/dom.js";
import { Session } from "./core/session.js";
import { startTheme, toggle } from "./core/theme.js";
import * as url from "./core/url.js";
import { iconButton } from "./core/dom.js";
import { startHints } from "./parts/hint.js";
import { startKeys } from "./parts/keys.js";
import { say, startToasts } from "./parts/toast.js";

const CARRIED = ["runs", "run"];

export async function start(root, page) {
  if (root.dataset.page) return;
  root.dataset.page = page;
  startTheme();
  startHints(root);
  startToasts(root);
  startKeys();
  carryRuns();
  headTools();
  const main = h("div", { class: `page page-${page}` });
  root.prepend(main);
  try {
    await Promise.all(["400 11px", "600 13px"].map((font) => document.fonts.load(`${font} 'Inter Variable'`)));
    const module = await import(`./pages/${page}.js`);
    const session = new Session();
    await session.list(true);
    const missing = session.choose();
    await module.mount(main, session);
    root.dataset.ready = "true";
    if (missing.length && session.rows.length) say(`This link names what is not in ${session.root}: ${missing.slice(0, 3).map((id) => id.slice(0, 80)).join(", ")}`);
  } catch (error) {
    fill(main, h("div", { class: "empty bad" }, h("h2", {}, "This page could not start"), h("p", {}, error.message), h("button", { type: "button", class: "btn", onclick: () => location.reload() }, "Try again")));
    console.error(error);
  }
}

// Links between pages keep which runs are looked at.
function carryRuns() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".nav-holder a");
    if (!link || event.defaultPrevented) return;
    const target = new URL(link.href, location.href);
    const values = Object.fromEntries(CARRIED.map((name) => [name, url.get(name)]).filter(([, value]) => value));
    event.preventDefault();
    event.stopPropagation();
    const next = url.href(target.pathname, values);
    if (event.metaKey || event.ctrlKey || event.button === 1) window.open(next, "_blank");
    else location.href = next;
  }, true);
}

// Light/dark and help stand at the right end of Gradio's navigation bar on every page.
function headTools() {
  const place = () => {
    const nav = document.querySelector(".nav-holder nav");
    if (!nav || nav.querySelector(".nav-tools")) return Boolean(nav);
    nav.append(h("span", { class: "nav-tools" },
      iconButton("help", "Keyboard shortcuts (?)", () => dispatchEvent(new KeyboardEvent("keydown", { key: "?" }))),
      iconButton("moon", "Light or dark (d)", toggle)));
    nav.querySelector("a.active")?.scrollIntoView({ inline: "center", block: "nearest" }); // a phone shows few of the links
    return true;
  };
  if (place()) return;
  const observer = new MutationObserver(() => place() && observer.disconnect());
  observer.observe(document.body, { childList: true, subtree: true });
}
