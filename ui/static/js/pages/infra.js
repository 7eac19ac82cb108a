// Infra: the machine, the cluster, and what the run says about its engines.

import { fill, h } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { bytes, count, number } from "../core/format.js";
import { Panel } from "../charts/panel.js";
import { command } from "../parts/empty.js";
import { FocusPage } from "../parts/focus_page.js";
import { sparkline } from "./headline.js";

const PARTS = /^(throughput|tokens|probe|mismatch)\//;
const KEPT = 200;
const POLL_MS = 3000;

export async function mount(main, session) {
  const page = new Infra(main, session);
  await page.start();
}

class Infra {
  constructor(main, session) {
    this.session = session;
    this.main = main;
    this.history = { cpu: [], memory: [] };
    this.host = h("div", { class: "facts card infra" });
    this.ray = h("section", { class: "card pad" });
    this.charts = h("div", { class: "cards" });
    this.frame = new FocusPage(main, session, { title: "Infra", open: () => this.open(), beat: (run, changed) => changed && this.board.refresh() });
    this.board = this.frame.makeBoard();
  }

  async start() {
    await this.frame.start();
    if (!this.session.rows.length) this.frame.body.prepend(this.host, this.ray);
    await this.watch();
  }

  async open() {
    this.board.clear();
    const entries = this.session.catalog.metrics.filter((entry) => PARTS.test(entry.key));
    fill(this.charts, entries.map((entry) => this.board.add(new Panel(this.board, [entry])).element));
    fill(this.frame.body, this.host, this.ray, h("h2", { class: "group-title" }, "Throughput and engines of this run"), entries.length ? this.charts : h("p", { class: "muted" }, "This run has logged no metric of its engines yet."));
  }

  async watch() {
    if (!document.hidden) {
      try {
        this.show(await getJson("/infra"));
      } catch (error) {
        this.frame.live.show({ ok: false, error, retry: POLL_MS });
      }
    }
    setTimeout(() => this.watch(), POLL_MS);
  }

  show(found) {
    const { host } = found;
    this.history.cpu = [...this.history.cpu, host.cpu_percent].slice(-KEPT);
    this.history.memory = [...this.history.memory, (100 * host.memory_used) / host.memory_total].slice(-KEPT);
    const fact = (name, value, note, share, line) => h("div", { class: "fact" }, h("span", { class: "fact-name" }, name), h("span", { class: "fact-value" }, value), h("span", { class: "fact-note" }, note), line ? sparkline(line, "var(--t-accent)", 100, 34) : null, h("div", { class: "meter" }, h("i", { style: `width:${Math.min(100, share).toFixed(1)}%` })));
    fill(this.host,
      fact("CPU of this machine", `${number(host.cpu_percent)} %`, `${host.num_cpus} cores, load ${host.load.map((one) => one.toFixed(1)).join(" ")}`, host.cpu_percent, this.history.cpu),
      fact("Memory", bytes(host.memory_used), `of ${bytes(host.memory_total)}`, (100 * host.memory_used) / host.memory_total, this.history.memory),
      fact("Disk", bytes(host.disk_used), `of ${bytes(host.disk_total)}`, (100 * host.disk_used) / host.disk_total));
    fill(this.ray, h("h2", {}, "Ray"), found.ray ? this.cluster(found.ray) : h("div", { class: "row spread" }, h("p", { class: "muted" }, "No cluster is connected: this dashboard reads runs from disk only. Started on a cluster, it also shows nodes, actors and resources."), command("serve run app.serve:app")));
  }

  cluster({ problem, total, available, nodes, actors }) {
    if (problem) return h("p", { class: "warn" }, problem);
    const resources = Object.keys(total).sort();
    const amount = (name, value) => (/memory/.test(name) ? bytes(value) : number(value));
    const table = (head, rows) => h("table", { class: "grid-table" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows));
    return h("div", { class: "pair" },
      h("div", { class: "resources" }, table(["Resource", "in use", "of", ""], resources.map((name) => {
        const used = total[name] - (available[name] || 0);
        return h("tr", {}, h("td", { title: name }, name), h("td", {}, amount(name, used)), h("td", {}, amount(name, total[name])), h("td", { class: "share" }, h("div", { class: "meter" }, h("i", { style: `width:${((100 * used) / total[name]).toFixed(1)}%` }))));
      })), h("p", { class: "muted small" }, `${count(nodes.filter((node) => node.alive).length)} of ${count(nodes.length)} nodes alive`)),
      h("div", { class: "scroll actors" }, table(["Actor", "name", "pid", "state"], actors.map((actor) => h("tr", {}, h("td", { title: actor.class }, actor.class), h("td", { title: actor.name }, actor.name || ""), h("td", {}, actor.pid || ""), h("td", { class: actor.state === "ALIVE" ? "good" : actor.state === "DEAD" ? "muted" : "warn" }, actor.state.toLowerCase()))))));
  }
}
