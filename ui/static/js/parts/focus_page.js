// The frame of a page about one run: the list at the left chooses it, the head says what it is.

import { fill, h } from "../core/dom.js";
import { Poll } from "../core/poll.js";
import { live } from "./controls.js";
import { noRuns } from "./empty.js";
import { Sidebar } from "./sidebar.js";

export class FocusPage {
  // hooks: open(run) when a run is chosen, beat(run, changed) after a poll
  constructor(main, session, { title, open, beat, tools = [] }) {
    Object.assign(this, { session, open, onBeat: beat, title });
    this.live = live();
    this.body = h("div", { class: "focus-body" });
    this.subject = h("span", { class: "subject" });
    this.side = new Sidebar(session, { single: true, onChange: () => this.choose() });
    main.classList.add("with-side");
    main.append(this.side.element, h("div", { class: "content" }, h("div", { class: "page-head" }, h("h1", {}, title), this.subject, h("span", { class: "grow" }), tools, this.live), this.body));
  }

  async start() {
    if (!this.session.rows.length) return fill(this.body, noRuns(this.session.root));
    this.side.render();
    await this.choose();
    this.poll = new Poll(() => this.beat(), (state) => this.live.show(state));
    await this.poll.now();
  }

  get run() {
    return this.session.focus ? this.session.view(this.session.focus) : null;
  }

  async choose() {
    const { run } = this;
    fill(this.subject, h("span", { class: "name" }, run.label), h("span", { class: `badge ${run.row.state}` }, run.row.state));
    await this.session.catalog.load([run.id]);
    await this.session.store.need(run.id, []);
    await this.open(run);
    this.poll?.now();
  }

  async beat() {
    const { session } = this;
    const running = await session.beat([session.focus]);
    if (session.listed || session.changed.length) {
      this.side.render();
      const { run } = this;
      fill(this.subject, h("span", { class: "name" }, run.label), h("span", { class: `badge ${run.row.state}` }, run.row.state));
    }
    if (session.changed.length) await session.catalog.load([session.focus]);
    await this.onBeat?.(this.run, session.changed.length > 0);
    return running;
  }
}
