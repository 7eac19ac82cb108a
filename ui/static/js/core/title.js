// The title of the browser's tab: the page, then the run, so that tabs can be told apart.

export function entitle(page, runs = []) {
  const what = runs.length > 1 ? `${runs.length} runs` : runs[0]?.label;
  document.title = [page, what, "Telescope"].filter(Boolean).join(" · ");
}
