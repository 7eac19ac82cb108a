// How the charts are looked at: read from the address, written back to it, and the controls that change it.

import { fill, h } from "../core/dom.js";
import * as url from "../core/url.js";
import { checkbox, menu, searchBox, segments, select, toggle } from "../parts/controls.js";

const range = (text) => {
  const parts = text.split("~").map(Number);
  return parts.length === 2 && parts.every(Number.isFinite) && parts[0] < parts[1] ? parts : null;
};

export function readView() {
  const smooth = Number(url.get("smooth", String(url.recall("smooth", 0))));
  return {
    mode: url.get("view") === "custom" ? "custom" : "all",
    search: url.get("q"),
    env: url.get("env"),
    x: ["rel", "wall"].includes(url.get("x")) ? url.get("x") : "step",
    smooth: Number.isFinite(smooth) ? Math.max(0, Math.min(0.99, smooth)) : 0,
    std: url.flag("std", true),
    minmax: url.flag("minmax", true),
    range: url.flag("range", true),
    normalise: url.flag("norm"),
    log: url.flag("log"),
    clip: url.flag("clip"),
    skipFirst: url.flag("skip1"),
    zoom: range(url.get("zoom")),
    density: url.get("density", url.recall("density", "normal")),
    layout: url.get("layout", "default"),
    dim: null,
  };
}

export function writeView(view) {
  const off = (on) => (on ? null : "0");
  url.set({
    view: view.mode === "all" ? null : view.mode,
    q: view.search,
    env: view.env,
    x: view.x === "step" ? null : view.x,
    smooth: view.smooth || null,
    std: off(view.std),
    minmax: off(view.minmax),
    range: off(view.range),
    norm: view.normalise,
    log: view.log,
    clip: view.clip,
    skip1: view.skipFirst,
    zoom: view.zoom ? view.zoom.map((value) => Number(value.toFixed(2))).join("~") : null,
    density: view.density === "normal" ? null : view.density,
    layout: view.mode === "custom" && view.layout !== "default" ? view.layout : null,
  });
  url.remember("smooth", view.smooth);
  url.remember("density", view.density);
}

export function toolbar(page) {
  const { view } = page;
  const change = (name) => (value) => {
    view[name] = value;
    page.changed();
  };
  const mode = segments("Which charts", [["all", "All", "Every metric"], ["custom", "Custom", "Your own arrangement"]], view.mode, (value) => page.show(value));
  const search = searchBox("Filter (regex)", view.search, page.search);
  const axis = segments("x axis", [["step", "Step"], ["rel", "Relative", "Time since the run began"], ["wall", "Wall", "Time of day"]], view.x, (value) => {
    view.x = value;
    page.zoom(null);
    page.changed();
  });
  page.environments = h("span", { class: "contents" });
  const tools = h("div", { class: "tools" }, mode, search, page.environments, axis, smoothing(page), toggle("±σ", view.std, change("std"), "Band of one standard deviation around the mean"), toggle("min–max", view.minmax, change("minmax"), "Band from the smallest to the largest value, when one run is shown"), toggle("Range", view.range, change("range"), "Use the declared range of a metric as the y axis and mark values outside it"), display(page, change));
  tools.mode = mode;
  return tools;
}

function smoothing(page) {
  const { view } = page;
  const shown = h("output", {}, view.smooth.toFixed(2));
  const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "Smoothing", oninput: () => {
    view.smooth = Number(slider.value);
    shown.textContent = view.smooth.toFixed(2);
    page.changed();
  } });
  slider.value = String(view.smooth);
  return h("label", { class: "slider", title: "Debiased exponential average; the raw line stays behind it" }, h("span", {}, "Smooth"), slider, shown);
}

function display(page, change) {
  const { view } = page;
  return menu("Display", () => [
    checkbox("Logarithmic y", view.log, (on) => {
      for (const panel of page.board.panels) panel.log = null;
      change("log")(on);
    }, "linear around zero where a metric is not positive"),
    checkbox("Clip outliers", view.clip, change("clip"), "scale y to the 2–98 % quantiles"),
    checkbox("Ignore the first step", view.skipFirst, change("skipFirst"), "it often includes warm-up"),
    checkbox("Normalise rewards", view.normalise, change("normalise"), "(r − min) / (max − min) by declared range"),
    h("div", { class: "menu-row" }, h("span", {}, "Chart size"), segments("Chart size", [["compact", "S"], ["normal", "M"], ["large", "L"]], view.density, (value) => {
      view.density = value;
      page.body.dataset.density = value;
      page.changed();
    })),
  ], { title: "More ways to look at the charts" });
}

// The choice is there when the runs on the page have more than one environment.
export function renderEnvironments(page) {
  const { view } = page;
  const names = environmentsOf(page.session.views(page.ids));
  if (view.env && !names.includes(view.env)) names.push(view.env);
  fill(page.environments, names.length < 2 ? null : select("Environment", [["", "All envs"], ...names.map((name) => [name, name])], view.env, (value) => {
    view.env = value;
    page.changed(false);
    page.current.render();
  }));
}

export const environmentsOf = (runs) => [...new Set(runs.flatMap(({ row }) => row.environments))];

// Keys of other environments leave; keys of no environment stay.
export function ofEnvironment(entry, view, names) {
  if (!view.env) return true;
  const parts = entry.key.split("/");
  const named = parts.slice(0, -1).find((part) => names.includes(part));
  return !named || named === view.env;
}

export function matcher(text) {
  if (!text) return () => true;
  try {
    const pattern = new RegExp(text, "i");
    return (entry) => pattern.test(entry.key) || pattern.test(entry.name) || pattern.test(entry.section);
  } catch {
    // Half-typed patterns such as "(" are plain text until they are whole.
    const plain = text.toLowerCase();
    return (entry) => entry.key.toLowerCase().includes(plain);
  }
}
