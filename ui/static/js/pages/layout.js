// A layout: sections hold groups, groups hold charts. Plain data and the moves on it; no elements.

let counter = 0;
export const newId = () => `${Date.now().toString(36)}${(counter++).toString(36)}`;

export const makeChart = (keys, more = {}) => ({ id: newId(), keys, width: 1, ...more });
export const makeGroup = (title = "", charts = []) => ({ id: newId(), title, charts });
export const makeSection = (title, groups = [makeGroup()]) => ({ id: newId(), title, groups });

const STARTER = [
  ["Learning", ["reward", "reward_gini_mean", "entropy", "kl_divergence_inference", "grad_norm", "learning_rate"]],
  ["Rollouts", ["tokens_completion", "stop_reason_length_pct", "off_policy_steps", "discarded_pct_of_generated"]],
  ["Speed", ["timing_step_total", "timing_waiting_for_data", "throughput/trained_tokens_per_s"]],
];

export function starter(byKey) {
  return { sections: STARTER.map(([title, keys]) => makeSection(title, [makeGroup("", keys.filter((key) => byKey.has(key)).map((key) => makeChart([key])))])).filter((section) => section.groups[0].charts.length) };
}

const list = (value) => (Array.isArray(value) ? value : []);

// What came from elsewhere may lack parts; what we do not know is kept.
export function repaired(layout) {
  const sections = list(layout.sections).filter((one) => one && typeof one === "object").map((section) => ({
    ...section,
    id: section.id || newId(),
    title: String(section.title ?? "Section"),
    groups: list(section.groups).filter((one) => one && typeof one === "object").map((group) => ({
      ...group,
      id: group.id || newId(),
      title: String(group.title ?? ""),
      charts: list(group.charts).filter((chart) => Array.isArray(chart?.keys)).map((chart) => ({ ...chart, id: chart.id || newId(), keys: chart.keys.map(String), runs: Array.isArray(chart.runs) ? chart.runs.map(String) : undefined })),
    })),
  }));
  for (const section of sections) if (!section.groups.length) section.groups.push(makeGroup());
  return { ...layout, sections };
}

export const groupsOf = (layout) => layout.sections.flatMap((section) => section.groups.map((group) => ({ section, group })));

export function findChart(layout, id) {
  for (const { section, group } of groupsOf(layout)) {
    const at = group.charts.findIndex((chart) => chart.id === id);
    if (at >= 0) return { section, group, at, chart: group.charts[at] };
  }
  return null;
}

// Left and right inside the group; up and down to the neighbouring group, wherever that is.
export function moveChart(layout, id, direction) {
  const found = findChart(layout, id);
  const { group, at, chart } = found;
  if (direction === "left" || direction === "right") {
    const to = at + (direction === "right" ? 1 : -1);
    if (to < 0 || to >= group.charts.length) return false;
    group.charts.splice(at, 1);
    group.charts.splice(to, 0, chart);
    return true;
  }
  const all = groupsOf(layout).map((one) => one.group);
  const next = all[all.indexOf(group) + (direction === "down" ? 1 : -1)];
  if (!next) return false;
  group.charts.splice(at, 1);
  next.charts.splice(direction === "down" ? 0 : next.charts.length, 0, chart);
  return true;
}

export function moveGroup(layout, id, direction) {
  const sections = layout.sections;
  const s = sections.findIndex((section) => section.groups.some((group) => group.id === id));
  const groups = sections[s].groups;
  const at = groups.findIndex((group) => group.id === id);
  const by = direction === "down" || direction === "right" ? 1 : -1;
  if (groups[at + by]) {
    [groups[at], groups[at + by]] = [groups[at + by], groups[at]];
    return true;
  }
  const next = sections[s + by];
  if (!next) return false;
  const [group] = groups.splice(at, 1);
  next.groups.splice(by > 0 ? 0 : next.groups.length, 0, group);
  if (!groups.length) groups.push(makeGroup());
  return true;
}

export function moveSection(layout, id, direction) {
  const at = layout.sections.findIndex((section) => section.id === id);
  const to = at + (direction === "down" || direction === "right" ? 1 : -1);
  if (to < 0 || to >= layout.sections.length) return false;
  const [section] = layout.sections.splice(at, 1);
  layout.sections.splice(to, 0, section);
  return true;
}

export function removeChart(layout, id) {
  const { group, at } = findChart(layout, id);
  group.charts.splice(at, 1);
}
