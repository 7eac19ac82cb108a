// The head of the page whose form is made of Gradio components.

import { h } from "../core/dom.js";
import { entitle } from "../core/title.js";
import * as url from "../core/url.js";

export async function mount(main, session) {
  const from = session.row(url.get("from"));
  entitle("New run");
  main.append(h("div", { class: "content narrow" }, h("div", { class: "page-head" }, h("h1", {}, from ? `New run from ${from.title}` : "New run"), h("p", {}, "The text is checked while you type; only a valid configuration can be started."))));
}
