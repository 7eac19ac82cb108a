"""Every command of the pages is one that its program takes: asked for help, or told to do nothing but look."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent
RAY = (["ray", "start"], ["ray", "job", "submit"], ["serve", "run"], ["serve", "deploy"])
SHELL = ("source", "export", "python3.11")


def commands() -> list[str]:
    """Each line of a bash block, continued lines joined, without what follows a comment sign."""
    found: dict[str, None] = {}
    for page in PAGES:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found[line] = None
    return [line for line in found if shlex.split(line, comments=True)]


def words_of(command: str) -> list[str]:
    words = shlex.split(command, comments=True)
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def output(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def check_module(module: str, arguments: list[str]) -> None:
    """The module's own help knows the subcommand and each option; a configuration that is named can be read."""
    if module == "pytest":
        known = output(sys.executable, "-m", "pytest", "--markers")
        named = (
            {word for mark in arguments[arguments.index("-m") + 1 :][:1] for word in mark.split()}
            if "-m" in arguments
            else set()
        )
        assert all(f"@pytest.mark.{name}:" in known for name in named - {"not", "and"})
        return
    command = [word for word in arguments[:1] if module == "environments"]
    told = output(sys.executable, "-m", module, *command, "--help")
    assert [word for word in arguments if word.startswith("--") and word not in told] == []
    check_files(arguments)


def check_files(arguments: list[str]) -> None:
    named = [word for word in arguments if word.startswith(("configs/", "requirements/", "tests/"))]
    assert [name for name in named if not (ROOT / name).exists()] == []


def check_ray(words: list[str]) -> None:
    [program] = [known for known in RAY if words[: len(known)] == known]
    before, _, after = (" ".join(words)).partition(" -- ")
    told = output(BIN / program[0], *program[1:], "--help")
    options = [word.partition("=")[0] for word in before.split() if word.startswith("--")]
    assert [option for option in options if option not in told] == []
    if after:
        check(after)
    check_files(words)


def check_curl(words: list[str]) -> None:
    from app.api import routes

    [url] = [word for word in words if "127.0.0.1" in word]
    path = re.sub(r"^(http://)?127\.0\.0\.1:8000", "", url)
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    known = [(route.path, route.methods) for route in routes(jobs=None).routes]  # type: ignore[arg-type,attr-defined]
    assert any(path == there and method in methods for there, methods in known), (method, path)


def check(command: str) -> None:
    words = words_of(command)
    match words[0]:
        case "make":
            output("make", "-n", *words[1:])
        case "python":
            assert words[1] == "-m"
            check_module(words[2], words[3:])
        case "ray" | "serve":
            check_ray(words)
        case "curl":
            check_curl(words)
        case "pip":
            assert words[1] in ("install", "uninstall", "freeze")
            check_files(words)
        case program if program.endswith(".sh"):
            output("bash", "-n", program)
        case program:
            assert program in SHELL, f"no test knows what {command!r} is"


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_pages_is_one_that_its_program_takes(command):
    check(command)
