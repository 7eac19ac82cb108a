"""Who may ask: loopback without a token, the token's holder with one; nothing leaves its folder."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi.testclient import TestClient

from app import api
from app.jobs import Jobs
from ui.__main__ import main
from ui.app import build
from ui.guard import check_bind
from ui.static_files import FOLDER, version

HOME = "http://127.0.0.1"
TOKEN = "a-long-secret"
DOORS = ["/", "/metrics", "/data/runs", "/data/layouts", "/config", "/gradio_api/info", "/api/openapi.json"]
JOB_API = [
    ("GET", "/api/runs"),
    ("POST", "/api/runs"),
    ("POST", "/api/runs/x/stop"),
    ("POST", "/api/runs/x/resume"),
    ("POST", "/data/runs/x/stop"),
    ("PUT", "/data/layouts/x"),
    ("POST", "/gradio_api/queue/join"),
]


@pytest.fixture(scope="module")
def locked(runs: SimpleNamespace):
    patch = pytest.MonkeyPatch()
    patch.setenv("TELESCOPE_TOKEN", TOKEN)
    jobs = Jobs(address="http://127.0.0.1:9", root=runs.root)
    whole = build(runs.root, jobs, routers=[api.routes(jobs)])
    with TestClient(whole, base_url="http://box.example", follow_redirects=False) as client:
        yield client
    patch.undo()


def test_every_page_is_there(pages):
    for path in ("/", "/overview", "/metrics", "/rollouts", "/discarded", "/timeline", "/evals", "/infra", "/new"):
        assert pages.get(path).status_code == 200, path


def test_a_name_that_is_not_loopback_is_refused_without_a_token(pages):
    for path in DOORS:
        answer = pages.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, "127.0.0.1" in answer.json()["detail"]) == (403, True), path
    for host in ("localhost:8000", "127.0.0.1:9", "[::1]:8000"):
        assert pages.get("/data/runs", headers={"Host": host}).status_code == 200


def test_another_site_cannot_change_anything(dashboard):
    body = {"version": 0, "layout": {"sections": []}}
    foreign = dashboard.put("/data/layouts/csrf", json=body, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert dashboard.get("/data/layouts/csrf").json()["version"] == 0


@pytest.mark.parametrize("path", DOORS)
def test_with_a_token_every_door_is_shut(locked, path):
    assert locked.get(path).status_code == 401
    assert locked.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert locked.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(("method", "path"), JOB_API)
def test_with_a_token_nobody_else_starts_stops_or_changes_anything(locked, method, path):
    assert locked.request(method, path, json={"config": "demo.yaml"}).status_code == 401
    known = locked.request(method, path, json={}, headers={"Authorization": f"Bearer {TOKEN}"})
    assert known.status_code != 401


def test_a_browser_logs_in_by_a_form_and_no_secret_stands_in_an_address(locked):
    page = locked.get("/metrics?q=a", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert 'action="/login"' in page.text
    assert 'value="/metrics?q=a"' in page.text
    assert locked.post("/login", data={"token": "wrong", "next": "/"}).status_code == 401
    done = locked.post("/login", data={"token": TOKEN, "next": "/metrics?q=a"})
    assert (done.status_code, done.headers["location"]) == (303, "/metrics?q=a")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert locked.get("/data/runs", headers={"Cookie": cookie.split(";")[0]}).status_code == 200


@pytest.mark.parametrize("foreign", ['a={"x":1}', "a[b]=1", "x", "é=1", "telescope_session=old"])
def test_the_cookie_of_another_program_of_the_host_does_not_hide_ours(locked, foreign):
    done = locked.post("/login", data={"token": TOKEN, "next": "/"})
    ours = done.headers["set-cookie"].split(";")[0]
    cookies = f"{foreign}; {ours}".encode()
    assert locked.get("/data/runs", headers={"Cookie": cookies}).status_code == 200


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_the_login_leads_nowhere_else(locked, target):
    assert locked.post("/login", data={"token": TOKEN, "next": target}).headers["location"] == "/"


def test_another_bind_needs_a_token(monkeypatch, capsys):
    monkeypatch.delenv("TELESCOPE_TOKEN", raising=False)
    with pytest.raises(ValueError, match="TELESCOPE_TOKEN"):
        check_bind("0.0.0.0")
    assert main(["--host", "0.0.0.0"]) == 2
    assert "ssh tunnel" in capsys.readouterr().err
    check_bind("127.0.0.1")
    check_bind("0.0.0.0", TOKEN)


@pytest.mark.parametrize(
    "path",
    ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "js/../../../pyproject.toml", "js"],
)
def test_static_files_stay_in_their_folder(pages, path):
    answer = pages.get(f"/static/{version()}/{path}")
    assert answer.status_code in (404, 405) or b"Telescope" in answer.content
    assert b"FastAPI" not in answer.content
    assert b"root:" not in answer.content


@pytest.mark.parametrize(
    "path", ["../app.py", "js/../../app.py", "../../pyproject.toml", "//etc/passwd", "..\\app.py", ""]
)
def test_a_path_that_no_client_has_tidied_stays_in_the_folder(pages, path):
    status, body = asked_as_it_is(pages.app, f"/static/{version()}/{path}")
    assert (status, b"FastAPI" in body, b"root:" in body, b"[project]" in body) == (404, False, False, False)


@pytest.mark.parametrize("prefix", ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/"])
@pytest.mark.parametrize("file", ["/etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd"])
def test_no_other_route_reads_files_of_the_machine(pages, prefix, file):
    status, body = asked_as_it_is(pages.app, prefix + file)
    assert b"root:" not in body
    assert status in (403, 404, 405)


def asked_as_it_is(app: Any, path: str) -> tuple[int, bytes]:
    """Status and body for a path as a socket may send it; clients such as httpx take the dots out of it."""
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
        ends = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "", "query_string": b""}
        named = {"path": unquote(path), "raw_path": path.encode(), "headers": [(b"host", b"127.0.0.1")]}
        await app({**scope, **ends, **named}, receive, send)

    asyncio.run(ask())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_a_static_file_may_be_kept_for_ever_and_its_address_says_its_content(pages):
    answer = pages.get(f"/static/{version()}/js/main.js")
    assert "immutable" in answer.headers["cache-control"]
    assert "javascript" in answer.headers["content-type"]
    assert pages.get("/static/0000/js/main.js").status_code == 404
    assert pages.get(f"/static/{'9' * 400}/x").status_code == 404


def test_a_link_in_the_static_folder_is_not_followed(pages, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("s3cret")
    link = FOLDER / "test-link.txt"
    link.symlink_to(secret)
    try:
        assert pages.get(f"/static/{version()}/test-link.txt").status_code == 404
    finally:
        link.unlink()


def test_pages_may_only_talk_to_their_own_server(pages):
    headers = pages.get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"


def test_no_module_writes_markup_and_no_style_or_module_asks_another_server():
    for file in [*FOLDER.glob("js/**/*.js"), *FOLDER.glob("css/*.css")]:
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{file.name}: {word}"
        assert "https://" not in text.replace("http://www.w3.org", ""), file.name


def test_modules_are_short():
    long = {file.name: len(file.read_text("utf-8").splitlines()) for file in FOLDER.glob("js/**/*.js")}
    assert {name: lines for name, lines in long.items() if lines > 500} == {}


def test_every_vendored_part_has_its_licence():
    parts = [folder for folder in (FOLDER / "vendor").iterdir() if folder.is_dir()]
    assert {part.name for part in parts} == {"uplot", "sortable", "inter", "jetbrains-mono"}
    assert all((Path(part) / "LICENSE").is_file() for part in parts)
