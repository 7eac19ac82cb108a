"""What has to stand in a page before Gradio's own scripts run; Gradio adds its `head` only after they have."""

from collections.abc import MutableMapping
from typing import Any

from ui.guard import App, Receive, Scope, Send

MARK = b"<head>"


class Early:
    """ASGI middleware: puts `lines` first into the head of every HTML page."""

    def __init__(self, app: App, lines: str) -> None:
        self.app, self.lines = app, lines.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        # A compressed page could not be changed; Gradio compresses on request.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if not _asks_html(scope, name)]
        await self.app(scope, receive, _Changed(send, self.lines))


def _asks_html(scope: Scope, name: bytes) -> bool:
    return name == b"accept-encoding" and any(
        key == b"accept" and b"text/html" in value for key, value in scope["headers"]
    )


class _Changed:
    """Holds an HTML answer back until it is whole; other answers go straight through."""

    def __init__(self, send: Send, lines: bytes) -> None:
        self.send, self.lines = send, lines
        self.start: MutableMapping[str, Any] | None = None
        self.body = b""

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and _is_page(message):
            self.start = message
        elif self.start is None:
            await self.send(message)
        else:
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self.start)

    async def _finish(self, start: MutableMapping[str, Any]) -> None:
        body = self.body.replace(MARK, MARK + self.lines, 1)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        await self.send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self.send({"type": "http.response.body", "body": body})


def _is_page(message: MutableMapping[str, Any]) -> bool:
    headers = {name.lower(): value for name, value in message.get("headers", [])}
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
