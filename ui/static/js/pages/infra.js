// Infra: the machine, the cluster, and what the run says about its engines.

import { fill, h } from "../core/dom.js";
import { getJson } from "../core/api.js";
import { bytes, count, number } from "../core/format.js";
import { Panel } from "../charts/panel.js";
import { command } from "../parts/empty.js";
import { FocusPage } from "../parts/focus_page.js";
import { sparkline } from "./headline.js";

const ORDER = ["engine", "throughput", "tokens", "probe", "mismatch"];
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
    this.gpus = h("section", { class: "card pad gpus", hidden: true });
    this.ray = h("section", { class: "card pad" });
    this.charts = h("div", { class: "cards" });
    this.frame = new FocusPage(main, session, { title: "Infra", open: () => this.open(), beat: (run, changed) => changed && this.board.refresh() });
    this.board = this.frame.makeBoard();
  }

  async start() {
    await this.frame.start();
    if (!this.session.rows.length) this.frame.body.prepend(this.host, this.gpus, this.ray);
    await this.watch();
  }

  async open() {
    this.board.clear();
    const rank = (entry) => ORDER.indexOf(entry.key.split("/")[0]);
    const entries = this.session.catalog.metrics.filter((entry) => rank(entry) >= 0).sort((a, b) => rank(a) - rank(b));
    fill(this.charts, entries.map((entry) => this.board.add(new Panel(this.board, [entry])).element));
    fill(this.frame.body, this.host, this.gpus, this.ray, h("h2", { class: "group-title" }, "Throughput and engines of this run"), entries.length ? this.charts : h("p", { class: "muted" }, "This run has logged no metric of its engines yet."));
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
    this.showGpus(host.gpus);
    fill(this.ray, h("h2", {}, "Ray"), found.ray ? this.cluster(found.ray) : h("div", { class: "row spread" }, h("p", { class: "muted" }, "No cluster is connected: this dashboard reads runs from disk only. Started on a cluster, it also shows nodes, actors and resources."), command("serve run app.serve:app")));
  }

  showGpus({ found, problem }) {
    this.gpus.hidden = !found.length && !problem;
    const share = (percent) => (percent == null ? null : h("div", { class: "meter" }, h("i", { style: `width:${Math.min(100, percent).toFixed(1)}%` })));
    const rows = found.map((gpu, i) => h("tr", {}, h("td", { title: gpu.name }, `${i} · ${gpu.name}`), h("td", {}, gpu.busy_percent == null ? "–" : `${number(gpu.busy_percent)} %`), h("td", { class: "share" }, share(gpu.busy_percent)),
      h("td", {}, gpu.memory_used == null ? "–" : bytes(gpu.memory_used)), h("td", {}, gpu.memory_total == null ? "–" : bytes(gpu.memory_total)), h("td", { class: "share" }, gpu.memory_total ? share((100 * gpu.memory_used) / gpu.memory_total) : null)));
    fill(this.gpus, h("h2", {}, "GPUs of this machine"), problem ? h("p", { class: "warn" }, problem) : table(["GPU", "busy", "", "memory", "of", ""], rows));
  }

  nodes(found) {
    const has = (node, name) => (node.resources[name] ? number(node.resources[name]) : "–");
    const rows = found.map((node) => h("tr", {}, h("td", { title: node.name }, node.name), h("td", {}, has(node, "CPU")), h("td", {}, has(node, "GPU")), h("td", {}, node.resources.memory ? bytes(node.resources.memory) : "–"), h("td", { class: node.alive ? "good" : "warn" }, node.alive ? "alive" : "dead")));
    return [h("div", { class: "scroll nodes" }, table(["Node", "CPU", "GPU", "memory", "state"], rows)), h("p", { class: "muted small" }, `${count(found.filter((node) => node.alive).length)} of ${count(found.length)} nodes alive`)];
  }

  cluster({ problem, total, available, nodes, actors }) {
    if (problem) return h("p", { class: "warn" }, problem);
    const resources = Object.keys(total).sort();
    const amount = (name, value) => (/memory/.test(name) ? bytes(value) : number(value));
    return h("div", { class: "pair" },
      h("div", { class: "resources" }, table(["Resource", "in use", "of", ""], resources.map((name) => {
        const used = total[name] - (available[name] || 0);
        return h("tr", {}, h("td", { title: name }, name), h("td", {}, amount(name, used)), h("td", {}, amount(name, total[name])), h("td", { class: "share" }, h("div", { class: "meter" }, h("i", { style: `width:${((100 * used) / total[name]).toFixed(1)}%` }))));
      })), this.nodes(nodes)),
      h("div", { class: "scroll actors" }, table(["Actor", "name", "pid", "state"], actors.map((actor) => h("tr", {}, h("td", { title: actor.class }, actor.class), h("td", { title: actor.name }, actor.name || ""), h("td", {}, actor.pid || ""), h("td", { class: actor.state === "ALIVE" ? "good" : actor.state === "DEAD" ? "muted" : "warn" }, actor.state.toLowerCase()))))));
  }
}

function table(head, rows) {
  return h("table", { class: "grid-table" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows));
}
