"""Serve the web app's built files, and its index page for every address inside the web app.

If it was not built (a checkout without Node), a plain page explains how to build it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from retinue.api.responses import PAGE_HEADERS, Headers

BUILT = Path(__file__).parent.parent / "_web"
INDEX = "index.html"
FOREVER = "assets/"  # file names contain a hash of the content
COMPRESSED_FROM_BYTES = 1_000

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
_NOT_BUILT = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>retinue</title></head>
<body>
<h1>retinue</h1>
<p>The house is open, and its page has not been built: that takes Node 20 or newer, once.</p>
<p>In the folder of the code: <code>make web</code>, then load this page again.</p>
<p>Until then a terminal does all that it does: <code>retinue chat</code>, <code>retinue --help</code>.</p>
</body>
</html>
"""


class File(Struct, frozen=True):
    body: bytes
    small: bytes | None  # gzip, if that is smaller
    headers: Headers
    tag: bytes


class Pages:
    """The web app's files. Only files found in the folder are served, each under its own name."""

    def __init__(self, folder: Path = BUILT) -> None:
        self._folder = folder
        self._names = _names_in(folder)
        self._files: dict[str, File] = {}

    def find(self, path: str) -> File | None:
        """Return the file of this name.

        A path without a file extension is an address inside the web app.
        """
        name = path.lstrip("/")
        if name not in self._names:
            if "." in name.rsplit("/", 1)[-1] or name.startswith(FOREVER):
                return None
            name = INDEX
        if name not in self._names:
            self._names = _names_in(self._folder)  # it may have been built since
            if name not in self._names:
                return _not_built
        file = self._files.get(name)
        if file is None:
            try:
                file = self._files[name] = self._read(name)
            except FileNotFoundError:  # rebuilt while the server runs
                self._names, self._files = _names_in(self._folder), {}
        return file

    def _read(self, name: str) -> File:
        kept = "public, max-age=31536000, immutable" if name.startswith(FOREVER) else "no-cache"
        return _file((self._folder / name).read_bytes(), _TYPES[Path(name).suffix], kept)


def _names_in(folder: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in _TYPES and path.is_file()
    )


def _file(body: bytes, media_type: str, kept: str) -> File:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    headers = [
        *PAGE_HEADERS,
        (b"content-type", media_type.encode()),
        (b"cache-control", kept.encode()),
        (b"vary", b"accept-encoding"),
        (b"etag", tag),
    ]
    small = _compressed(body) if len(body) >= COMPRESSED_FROM_BYTES else None
    return File(body, small if small is not None and len(small) < len(body) else None, headers, tag)


def _compressed(body: bytes) -> bytes:
    import gzip  # imported on first use

    return gzip.compress(body, 9, mtime=0)


_not_built = _file(_NOT_BUILT, _TYPES[".html"], "no-store")
