// The frame of a page about one run: the list at the left chooses it, the head says what it is.

import { fill, h } from "../core/dom.js";
import { Poll } from "../core/poll.js";
import { entitle } from "../core/title.js";
import { Board } from "../charts/board.js";
import { openFull } from "../charts/fullscreen.js";
import { live, stateOf } from "./controls.js";
import { noRuns, waitForRuns } from "./empty.js";
import { Sidebar } from "./sidebar.js";
import { say } from "./toast.js";

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

  // Charts of the run of the page.
  makeBoard({ density = "normal", onPick } = {}) {
    const { store, catalog } = this.session;
    const board = new Board({
      store,
      catalog,
      view: { x: "step", smooth: 0, std: true, minmax: true, range: true, zoom: null, dim: null, density },
      shownRuns: () => (this.run ? [this.run] : []),
      openFull: (panel) => openFull(board, panel).catch((error) => say(error.message)),
      onZoom: (range) => {
        board.view.zoom = range;
        board.zoom();
      },
      onPick,
    });
    board.onError = (error) => this.live.show({ ok: false, error, retry: 2000 });
    return board;
  }

  async start() {
    if (!this.run) return this.showNothing();
    this.side.render();
    await this.choose();
    this.poll = new Poll(() => this.beat(), (state) => this.live.show(state));
    await this.poll.now();
  }

  get run() {
    return this.session.row(this.session.focus) ? this.session.view(this.session.focus) : null;
  }

  showNothing() {
    this.poll?.stop();
    entitle(this.title);
    fill(this.subject);
    fill(this.body, noRuns(this.session.root));
    waitForRuns(this.session);
  }

  showSubject() {
    const { label, row } = this.run;
    entitle(this.title, [this.run]);
    fill(this.subject, h("span", { class: "name" }, label), stateOf(row));
  }

  async choose() {
    const { run } = this;
    this.showSubject();
    await this.session.catalog.load([run.id]);
    await this.session.store.need(run.id, []);
    await this.open(run);
    this.poll?.now();
  }

  async beat() {
    const { session } = this;
    const running = await session.beat([session.focus]);
    if (session.lost.length) return this.leave();
    if (session.listed || session.changed.length) {
      this.side.render();
      this.showSubject();
    }
    if (session.changed.length) await session.catalog.load([session.focus]);
    await this.onBeat?.(this.run, session.changed.length > 0);
    return running;
  }

  // The run of the page was removed from the disk.
  async leave() {
    this.side.render();
    if (!this.run) return this.showNothing();
    say(`That run was removed; ${this.run.label} is shown instead`);
    await this.choose();
  }
}
