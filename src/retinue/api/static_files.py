"""Serves the files of the web app, and its index page for every URL inside the web app.

If the web app was not built, as in a checkout without Node, a plain page explains how to build it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from retinue.api.responses import PAGE_HEADERS, Headers

BUILD_FOLDER = Path(__file__).parent.parent / "_web"
INDEX_FILE = "index.html"
IMMUTABLE_PREFIX = "assets/"  # file names contain a hash of the content
COMPRESSED_BYTES_MIN = 1_000

_MEDIA_TYPES = {
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
<p>The server is running, but the web app has not been built. Building it needs Node 20 or newer.</p>
<p>Run <code>make web</code> in the source directory, then reload this page.</p>
<p>The command line works without it: <code>retinue chat</code>, <code>retinue --help</code>.</p>
</body>
</html>
"""


class StaticFile(Struct, frozen=True):
    body: bytes
    gzipped: bytes | None  # gzip, if that is smaller
    headers: Headers
    etag: bytes


class StaticFiles:
    """Serves the web app's files. Only files that were found in the folder of the web app can be requested."""

    def __init__(self, folder: Path = BUILD_FOLDER) -> None:
        self._folder = folder
        self._names = _list_file_names(folder)
        self._files: dict[str, StaticFile] = {}

    def find(self, path: str) -> StaticFile | None:
        """Return the file for the path of a request.

        A path without a file extension is a URL inside the web app. For such a path, the index page is returned.
        """
        name = path.lstrip("/")
        if name not in self._names:
            if "." in name.rsplit("/", 1)[-1] or name.startswith(IMMUTABLE_PREFIX):
                return None
            name = INDEX_FILE
        if name not in self._names:
            self._names = _list_file_names(self._folder)  # the web app may have been built since the last look
            if name not in self._names:
                return _not_built_file
        file = self._files.get(name)
        if file is None:
            try:
                file = self._files[name] = self._read(name)
            except FileNotFoundError:  # rebuilt while the server was running
                self._names, self._files = _list_file_names(self._folder), {}
        return file

    def _read(self, name: str) -> StaticFile:
        kept = "public, max-age=31536000, immutable" if name.startswith(IMMUTABLE_PREFIX) else "no-cache"
        return _build_file((self._folder / name).read_bytes(), _MEDIA_TYPES[Path(name).suffix], kept)


def _list_file_names(folder: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix in _MEDIA_TYPES and path.is_file()
    )


def _build_file(body: bytes, media_type: str, cache_control: str) -> StaticFile:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    headers = [
        *PAGE_HEADERS,
        (b"content-type", media_type.encode()),
        (b"cache-control", cache_control.encode()),
        (b"vary", b"accept-encoding"),
        (b"etag", tag),
    ]
    small = _gzip(body) if len(body) >= COMPRESSED_BYTES_MIN else None
    return StaticFile(body, small if small is not None and len(small) < len(body) else None, headers, tag)


def _gzip(body: bytes) -> bytes:
    import gzip  # imported on first use

    return gzip.compress(body, 9, mtime=0)


_not_built_file = _build_file(_NOT_BUILT, _MEDIA_TYPES[".html"], "no-store")
