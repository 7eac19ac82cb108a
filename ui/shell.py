"""The pages. Gradio is the shell: navigation, theme, the form for a new run.

Each data page holds one root element; a browser module fills it and keeps it up to date from /data.
"""

import asyncio
import html
import json
import warnings
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI, HTTPException

from ui import configs
from ui.early import Early
from ui.names import is_plain_file, run_dir
from ui.runs import NO_JOBS
from ui.static_files import FOLDER

FRONT = "Runs"
PAGES = {
    "Overview": "overview",
    "Metrics": "metrics",
    "Rollouts": "rollouts",
    "Discarded": "discarded",
    "Timeline": "timeline",
    "Evals": "evals",
    "Infra": "infra",
}
STYLES = ("vendor/uplot/uPlot.min.css", *(f"css/{name}.css" for name in ("tokens", "base", "parts", "pages", "shell")))
FONT = ["Inter Variable", "ui-sans-serif", "system-ui", "sans-serif"]
MONO = ["JetBrains Mono Variable", "ui-monospace", "monospace"]

# Gradio 6.31's page loader goes on counting at every frame after it is gone: 40 ms of CPU a second in an idle tab.
# Its counter, known by its text, gets two beats a second; where the text differs nothing changes.
CALM_LOADER = (
    "(()=>{const frame=window.requestAnimationFrame.bind(window);"
    "window.requestAnimationFrame=(f)=>/performance\\.now\\(\\)-\\w+\\(\\w+\\)\\)\\/1e3/.test(f)?setTimeout(f,500):frame(f)})()"
)
GO_TO_RUN = "(id) => { if (id) location.href = '/overview?runs=' + encodeURIComponent(id); }"


def mount(app: FastAPI, root: Path, jobs: Any, static: str) -> FastAPI:
    """The pages on the application. Outside of an event loop Gradio would make several and leave them open."""

    async def inside() -> FastAPI:
        return _mounted(app, root, jobs, static)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(inside())
    return _mounted(app, root, jobs, static)


def _mounted(app: FastAPI, root: Path, jobs: Any, static: str) -> FastAPI:
    demo = pages(root, jobs, static)
    # Gradio's queue looks for work this often; its default of 50 ms is felt in the form.
    demo._queue.sleep_when_free = 0.02
    app.add_middleware(Early, lines=early(static))
    with warnings.catch_warnings():
        # Said even though server-side rendering is not asked for.
        warnings.filterwarnings("ignore", message="SSR mode is not supported")
        return gr.mount_gradio_app(
            app,
            demo,
            path="/",
            footer_links=[],
            run_history=False,
            theme=theme(),
            head=head(static),
            ssr_mode=False,
            favicon_path=str(FOLDER / "icon.svg"),
            enable_monitoring=False,
        )


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue="indigo", neutral_hue="slate", font=FONT, font_mono=MONO, radius_size=gr.themes.sizes.radius_md
    ).set(
        body_background_fill="var(--t-bg)",
        body_background_fill_dark="var(--t-bg)",
        body_text_color="var(--t-text)",
        body_text_color_dark="var(--t-text)",
        block_background_fill="var(--t-card)",
        block_background_fill_dark="var(--t-card)",
        block_border_color="var(--t-line)",
        block_border_color_dark="var(--t-line)",
        block_label_background_fill="var(--t-card)",
        block_label_background_fill_dark="var(--t-card)",
        block_label_text_color="var(--t-muted)",
        block_label_text_color_dark="var(--t-muted)",
        input_background_fill="var(--t-bg)",
        input_background_fill_dark="var(--t-bg)",
        input_border_color="var(--t-line-strong)",
        input_border_color_dark="var(--t-line-strong)",
        button_primary_background_fill="var(--t-accent-fill)",
        button_primary_background_fill_dark="var(--t-accent-fill)",
        button_primary_background_fill_hover="var(--t-accent-fill)",
        button_primary_background_fill_hover_dark="var(--t-accent-fill)",
        button_primary_text_color="#fff",
        button_primary_text_color_dark="#fff",
    )


def early(static: str) -> str:
    """Theme and addresses of styles and modules, named up front so that they load side by side."""
    modules = sorted(str(file.relative_to(FOLDER)) for file in (FOLDER / "js").rglob("*.js"))
    modules.append("vendor/uplot/uPlot.esm.js")
    lines = [
        f"<script>{CALM_LOADER}</script>",
        "<script>(()=>{let t;try{t=localStorage.getItem('telescope.theme')}catch{};"
        "if((t||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light'))==='dark')"
        "document.documentElement.classList.add('dark')})()</script>",
        *(f'<link rel="preload" as="style" href="{static}/{style}">' for style in STYLES),
        *(f'<link rel="modulepreload" href="{static}/{module}">' for module in modules),
    ]
    return "\n".join(lines)


def head(static: str) -> str:
    """Styles come after Gradio's own, so that of two equal rules ours counts."""
    return "\n".join(f'<link rel="stylesheet" href="{static}/{style}">' for style in STYLES)


def pages(root: Path, jobs: Any, static: str) -> gr.Blocks:
    with gr.Blocks(title="Telescope", fill_width=True, analytics_enabled=False) as demo:
        gr.Navbar(main_page_name=FRONT)
        board("runs", static)
    for name, path in PAGES.items():
        with demo.route(name, path):
            gr.Navbar(main_page_name=FRONT)
            board(path, static)
    with demo.route("New run", "new", show_in_navbar=False) as page:
        gr.Navbar(main_page_name=FRONT)
        new_run(page, root, jobs, static)
    return demo


def board(page: str, static: str) -> gr.HTML:
    """One constant root element; everything in it is made by the page's module, from text nodes only."""
    start = (
        f'import("{static}/js/main.js").then((main) => main.start(element.querySelector(".tele"), {json.dumps(page)}));'
    )
    return gr.HTML(
        html_template='<div class="tele"></div>',
        js_on_load=start,
        apply_default_css=False,
        padding=False,
        elem_id="board",
    )


def new_run(page: gr.Blocks, root: Path, jobs: Any, static: str) -> None:
    board("new", static)
    with gr.Row(elem_id="newrun"):
        with gr.Column(scale=3):
            source = gr.Dropdown(configs.names(), label="Start from", value=None, elem_id="source")
            text = gr.Code(language="yaml", label="Configuration", lines=24, wrap_lines=True, elem_id="config")
        with gr.Column(scale=2):
            start = gr.Button("Start run", variant="primary", interactive=jobs is not None, elem_id="start")
            verdict = gr.HTML(elem_id="verdict", padding=False, apply_default_css=False)
            started = gr.Textbox(visible="hidden", elem_id="started")

    def load(request: gr.Request) -> tuple[str | None, str]:
        return first_text(root, dict(request.query_params))

    def choose(name: str | None) -> str:
        return configs.text_of(name) if name else ""

    def judge(config: str) -> str:
        return judged(config, jobs is not None)

    def submit(config: str) -> tuple[str, str]:
        return started_run(jobs, config)

    source.input(choose, source, text, show_progress="hidden")
    text.change(judge, text, verdict, show_progress="hidden", trigger_mode="always_last")
    start.click(submit, text, [verdict, started], concurrency_limit=1).then(None, started, None, js=GO_TO_RUN)
    page.load(load, None, [source, text], show_progress="hidden")


def first_text(root: Path, query: dict[str, str]) -> tuple[str | None, str]:
    """The configuration to begin with: that of the run to duplicate, else the demo, which runs anywhere."""
    if query.get("from"):
        return None, text_of_run(root, query["from"])
    names = sorted(configs.names(), key=lambda name: name != "demo.yaml")
    name = query["config"] if query.get("config") in names else next(iter(names), None)
    return name, configs.text_of(name) if name else ""


def text_of_run(root: Path, run_id: str) -> str:
    """The configuration of a run as it was written; a comment says why when there is none."""
    try:
        file = run_dir(root, run_id) / "config.yaml"
        if not is_plain_file(file):
            return f"# run {run_id} has no config.yaml; choose a file above, or write a configuration\n"
        return file.read_text(encoding="utf-8", errors="replace")
    except (HTTPException, OSError) as error:
        why = error.detail if isinstance(error, HTTPException) else error.strerror
        return f"# {why}\n# choose a file above, or write a configuration\n"


def judged(text: str, can_start: bool) -> str:
    """What the text comes to: every problem, or the difference from the defaults. All of it escaped."""
    try:
        config = configs.resolved(text)
    except ValueError as error:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in str(error).splitlines() if line.strip())
        return f'<div class="verdict bad" role="status"><h2>Not ready to start</h2><ul>{lines}</ul></div>'
    changed = configs.difference(configs.defaults(len(config.environments)), configs.flat(config.model_dump()))
    rows = "".join(_changed_row(item) for item in changed)
    off = "" if can_start else f'<p class="off">{html.escape(NO_JOBS)}</p>'
    return (
        f'<div class="verdict good" role="status"><h2>Valid</h2>{off}<p>{len(changed)} settings differ from their '
        f"defaults.</p><table><thead><tr><th>setting</th><th>default</th><th>this run</th></tr></thead><tbody>{rows}"
        "</tbody></table></div>"
    )


def _changed_row(item: dict[str, Any]) -> str:
    left = "–" if item["absent"] == "left" else json.dumps(item["left"], ensure_ascii=False)
    right = "–" if item["absent"] == "right" else json.dumps(item["right"], ensure_ascii=False)
    cells = (html.escape(str(item["key"])), html.escape(left), html.escape(right))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def started_run(jobs: Any, text: str) -> tuple[str, str]:
    """Start a run from a validated configuration. There is no other way in: no command, no path, no override."""
    try:
        if jobs is None:
            raise ValueError(NO_JOBS)
        run = jobs.submit(configs.resolved(text))
    except (ValueError, RuntimeError, OSError) as error:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in str(error).splitlines() if line.strip())
        return f'<div class="verdict bad" role="alert"><h2>Not started</h2><ul>{lines}</ul></div>', ""
    return f'<div class="verdict good" role="status"><h2>Started {html.escape(run.id)}</h2></div>', run.id
