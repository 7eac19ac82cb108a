"""One door for everything: pages, data, run controls and whatever else is mounted on the same application.

Without a token the dashboard answers only to loopback names, so neither another machine nor a web page that
rebinds its own name to 127.0.0.1 can read it. With $TELESCOPE_TOKEN set, a browser logs in once (the token is
posted, never put into an address) and programs send `Authorization: Bearer`.
"""

import hmac
import html
import json
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "telescope_session"
LONGEST_NAME = 255  # of a file, on any system: asked for a longer one, the framework's own pages fail
LOOPBACK = {"127.0.0.1", "localhost", "::1", "[::1]"}
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'self'; form-action 'self'; object-src 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Telescope: log in</title><style>
body{{font:15px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:100vh;margin:0;background:#f6f7fa;
color:#131722}}form{{background:#fff;border:1px solid #e3e7ee;border-radius:14px;padding:28px;width:min(340px,86vw)}}
h1{{font-size:18px;margin:0 0 4px}}p{{margin:0 0 16px;color:#5c6474}}label{{font-weight:600;font-size:13px}}
input{{width:100%;box-sizing:border-box;font:inherit;padding:8px 10px;border:1px solid #c5ccd8;border-radius:8px;
margin:6px 0 14px}}button{{font:inherit;font-weight:600;width:100%;padding:9px;border:0;border-radius:8px;
background:#4456e0;color:#fff}}.bad{{color:#b3202c}}</style><main><form method="post" action="/login">
<h1>Telescope</h1><p class="{kind}">{message}</p><input type="hidden" name="next" value="{target}">
<label for="t">Token</label><input id="t" name="token" type="password" autocomplete="current-password" autofocus>
<button>Log in</button></form></main></html>"""


def token_from_environment() -> str | None:
    return os.environ.get("TELESCOPE_TOKEN") or None


def check_bind(host: str, token: str | None = None) -> None:
    """Refuse to listen beyond this machine without a token."""
    if host not in LOOPBACK and not (token or token_from_environment()):
        raise ValueError(
            f"host {host!r}: would show runs, and start them, to the whole network; set TELESCOPE_TOKEN to a long "
            "secret first, or keep 127.0.0.1 and use an ssh tunnel"
        )


class Guard:
    """ASGI middleware: refuses, or logs in, or lets through with safe response headers."""

    def __init__(self, app: App, token: str | None = None) -> None:
        self.app = app
        self.token = token
        secret = (token or "").encode()
        self.session = hmac.new(secret, b"telescope dashboard session", "sha256").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if scope["type"] == "http" and self.token and scope["path"] == "/login" and scope["method"] == "POST":
            await self._login(headers, receive, send)
            return
        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        else:
            await self._refuse(scope, headers, refusal, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.token is None and (urlsplit(f"//{host}").hostname or "") not in LOOPBACK:
            return 403, f"host {host[:120]!r}: without a token the dashboard answers only to 127.0.0.1 and localhost"
        if self.token is not None and not self._known(headers):
            return 401, "log in first: open the dashboard in a browser, or send 'Authorization: Bearer <token>'"
        unsafe = scope["type"] == "websocket" or scope.get("method", "GET") not in SAFE_METHODS
        origin = headers.get("origin")
        if unsafe and origin is not None and urlsplit(origin).netloc != host:
            return 403, f"origin {origin[:120]!r}: only the dashboard's own pages may change anything"
        if any(len(part) > LONGEST_NAME for part in scope["path"].split("/")):
            return 404, f"nothing here has a name of more than {LONGEST_NAME} characters"
        return None

    def _known(self, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self.token or "").encode()):
            return True
        return any(hmac.compare_digest(value.encode(), self.session.encode()) for value in _sessions(headers))

    async def _login(self, headers: dict[str, str], receive: Receive, send: Send) -> None:
        form = parse_qs((await _body(receive)).decode("utf-8", "replace"))
        target = form.get("next", ["/"])[0]
        # Only a path of this server: "//host" and "https://host" would lead the visitor away.
        target = target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"
        given = form.get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), (self.token or "").encode()):
            await _send_page(send, 401, _login_page("That is not the token.", target, "bad"))
            return
        secure = "; Secure" if headers.get("x-forwarded-proto") == "https" else ""
        cookie = f"{COOKIE}={self.session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000{secure}"
        location = target.encode("ascii", "ignore").replace(b"\r", b"").replace(b"\n", b"")
        extra = [(b"location", location), (b"set-cookie", cookie.encode())]
        await _send_page(send, 303, b"", extra)

    async def _refuse(self, scope: Scope, headers: dict[str, str], refusal: tuple[int, str], send: Send) -> None:
        status, reason = refusal
        if status == 401 and "text/html" in headers.get("accept", ""):
            query = scope.get("query_string", b"").decode("latin-1")
            target = scope["path"] + (f"?{query}" if query else "")
            await _send_page(send, 401, _login_page("This dashboard asks for its token.", target, ""))
            return
        body = json.dumps({"detail": reason}).encode()
        await _send_page(send, status, body, kind=b"application/json")


def _sessions(headers: dict[str, str]) -> Iterator[str]:
    """What the browser gives as our cookie. Read by hand: all programs of a host share its cookies, and one that the
    standard library's parser refuses would hide ours."""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            yield value


def _login_page(message: str, target: str, kind: str) -> bytes:
    return LOGIN.format(message=html.escape(message), target=html.escape(target), kind=kind).encode()


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        await send(message)

    return wrapped


async def _body(receive: Receive, limit: int = 8192) -> bytes:
    body = b""
    while len(body) <= limit:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:limit]


async def _send_page(
    send: Send,
    status: int,
    body: bytes,
    extra: list[tuple[bytes, bytes]] | None = None,
    kind: bytes = b"text/html; charset=utf-8",
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *HEADERS, *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
