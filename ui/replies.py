"""JSON for a browser: strict (no NaN), non-finite numbers marked instead of turned into null or text."""

import hashlib
import math
from typing import Any

import orjson
from fastapi import Request, Response

from metrics.schema import safe

WIDEST = 2**63


def marked(value: Any) -> Any:
    """The same value as strict JSON can hold it: non-finite floats as {"nonfinite": "nan" | "inf" | "-inf"}, integers
    beyond 64 bits as text, lone surrogates as escapes.

    A marker object cannot be taken for a text that happens to read "nan".
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nonfinite": _kind(value)}
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, int):
        return value if -WIDEST <= value < WIDEST else str(value)
    if isinstance(value, dict):
        return {safe(str(key)): marked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(item) for item in value]
    return value


def _kind(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


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
