"""The dashboard's own files, under an address that changes with their content and may be kept for ever."""

import hashlib
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).resolve().parent / "static"


def version() -> str:
    """A digest of every file, so that a browser never mixes modules of two versions."""
    digest = hashlib.blake2s(digest_size=8)
    for file in sorted(path for path in FOLDER.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(FOLDER)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


class Kept(StaticFiles):
    """Files are looked up inside the folder only (links that lead out are refused by StaticFiles)."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def files() -> StaticFiles:
    return Kept(directory=FOLDER, follow_symlink=False)
