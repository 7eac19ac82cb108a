"""Who may ask: loopback without a token, the token's holder with one; nothing leaves its folder."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from ui.__main__ import main
from ui.app import build
from ui.guard import check_bind
from ui.static_files import FOLDER, version

HOME = "http://127.0.0.1"
TOKEN = "a-long-secret"
DOORS = ["/", "/metrics", "/data/runs", "/data/layouts", "/config", "/gradio_api/info", "/api/openapi.json"]


@pytest.fixture(scope="module")
def locked(runs: SimpleNamespace):
    patch = pytest.MonkeyPatch()
    patch.setenv("TELESCOPE_TOKEN", TOKEN)
    with TestClient(build(runs.root, None), base_url="http://box.example", follow_redirects=False) as client:
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
    ["../../app.py", "..%2f..%2fapp.py", "%2e%2e/%2e%2e/app.py", "/etc/passwd", "js/../../../pyproject.toml", "js"],
)
def test_static_files_stay_in_their_folder(pages, path):
    answer = pages.get(f"/static/{version()}/{path}")
    assert answer.status_code in (404, 405) or b"Telescope" in answer.content
    assert b"FastAPI" not in answer.content
    assert b"root:" not in answer.content


def test_a_static_file_may_be_kept_for_ever_and_its_address_says_its_content(pages):
    answer = pages.get(f"/static/{version()}/js/main.js")
    assert "immutable" in answer.headers["cache-control"]
    assert "javascript" in answer.headers["content-type"]
    assert pages.get("/static/0000/js/main.js").status_code == 404


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
