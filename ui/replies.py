"""JSON for a browser: strict (no NaN), non-finite numbers marked instead of turned into null or text."""

import hashlib
import math
from typing import Any

import orjson
from fastapi import Request, Response


def marked(value: Any) -> Any:
    """The same value with every non-finite float as {"nonfinite": "nan" | "inf" | "-inf"}.

    A marker object cannot be taken for a text that happens to read "nan".
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")}
    if isinstance(value, dict):
        return {str(key): marked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(item) for item in value]
    return value


def reply(value: Any, status: int = 200) -> Response:
    body = orjson.dumps(marked(value), option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def tagged(request: Request, value: Any) -> Response:
    """A reply with an ETag, for what rarely changes: 304 when the browser already has it."""
    body = orjson.dumps(marked(value))
    tag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
