"""The folders are the map: what may import what, and where the heavy frameworks may appear."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"app", "environments", "metrics", "ui"}

# What a room may import of the others. A name with a dot allows that module only.
ALLOWED = {
    "app": {"environments", "metrics"},
    "environments": set(),
    "metrics": set(),
    "ui": {"metrics", "app.config", "app.jobs"},
}
# The composition root knows the job API and the dashboard; nothing else knows both. The command line of the
# environments reads configurations and runs.
EXCEPTIONS = {("app/serve.py", "ui"), ("environments/__main__.py", "app")}

HEAVY = {"gradio", "ray", "torch", "transformers", "vllm", "wandb"}
# Where a framework may be imported at all, by file or by room.
WHERE = {
    "gradio": {"ui"},
    "vllm": {"app/engine.py", "app/engine_counts.py", "app/weight_backend.py", "app/weight_group.py", "app/weights.py"},
    "wandb": {"metrics/sinks.py"},
    "torch": {"app"},
    "ray": {"app", "metrics/actor.py", "ui/infra.py"},
}
# Arithmetic, configuration and reading: importable in a moment, testable without any framework.
LIGHT = [
    *("app/advantage.py", "app/config.py", "app/jobs.py", "app/launch.py", "app/packing.py", "app/progress.py"),
    *("app/ray_jobs.py", "app/reduce.py", "app/run_dir.py", "app/schedule.py", "app/api.py", "app/cleanup.py"),
]


class Import(NamedTuple):
    file: str
    module: str
    at_module_level: bool


def imports() -> Iterator[Import]:
    for room in sorted(ROOMS):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield from imports_of(path)


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    file = str(path.relative_to(ROOT))
    inner = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types_only(function)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write the room's name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(file, name, node not in inner) for name in names)


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_allowed(edge: Import) -> bool:
    room, target = edge.file.split("/")[0], edge.module.split(".")[0]
    if target not in ROOMS or target == room or (edge.file, target) in EXCEPTIONS:
        return True
    return any(f"{edge.module}.".startswith(f"{allowed}.") for allowed in ALLOWED[room])


def test_rooms_import_one_way():
    assert [edge for edge in imports() if not is_allowed(edge)] == []


def test_frameworks_appear_only_where_they_are_the_job():
    wrong = [
        edge
        for edge in imports()
        if (framework := edge.module.split(".")[0]) in WHERE
        and not {edge.file, edge.file.split("/")[0]} & WHERE[framework]
    ]
    assert wrong == []


def test_environments_and_metrics_load_no_framework():
    rooms = ("environments/", "metrics/")
    found = [edge for edge in imports() if edge.at_module_level and edge.module.split(".")[0] in HEAVY]
    assert [edge for edge in found if edge.file.startswith(rooms)] == []


@pytest.mark.parametrize("file", LIGHT)
def test_a_light_module_loads_no_framework(file):
    found = {edge.module.split(".")[0] for edge in imports_of(ROOT / file) if edge.at_module_level}
    assert found & HEAVY == set()


@pytest.mark.parametrize("module", ["app.train", "app.stream", "app.evaluate"])
def test_a_process_that_does_not_train_does_not_wait_for_torch(module):
    code = f"import sys, {module}; print({{'torch', 'transformers', 'vllm', 'ray.train'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("stage", ["app.tickets", "app.scoring", "app.batcher"])
def test_a_stage_that_calls_no_engine_does_not_load_serve(stage):
    """Each process of the stream imports for itself, and the first step waits for all of them."""
    code = f"import sys, {stage}; print('ray.serve' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"
