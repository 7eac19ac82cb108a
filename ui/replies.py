"""JSON for a browser: strict (no NaN), non-finite numbers marked instead of turned into null or text."""

import hashlib
from typing import Any

import orjson
from fastapi import Request, Response

from metrics.schema import marked


def as_json(value: Any) -> bytes:
    return orjson.dumps(marked(value), default=str, option=orjson.OPT_SERIALIZE_NUMPY)


def reply(value: Any, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json", headers={"Cache-Control": "no-store"})


def tagged(request: Request, value: Any) -> Response:
    """A reply with an ETag, for what rarely changes: 304 when the browser already has it."""
    body = as_json(value)
    tag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
