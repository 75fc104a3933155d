"""Imports uvicorn without its command-line module, which would load click and multiprocessing."""

from __future__ import annotations

import sys
from types import ModuleType


def _import_uvicorn() -> None:
    """Import uvicorn with an empty module in place of `uvicorn.main`.

    uvicorn imports `uvicorn.main` only to re-export its names. Code that imports it later gets the real module.
    """
    if "uvicorn" in sys.modules:
        return
    stand_in = ModuleType("uvicorn.main")
    for name in ("Server", "main", "run"):
        setattr(stand_in, name, None)
    sys.modules[stand_in.__name__] = stand_in
    try:
        import uvicorn
    finally:
        del sys.modules[stand_in.__name__]
    for name in ("main", "run"):
        delattr(uvicorn, name)


_import_uvicorn()

from uvicorn.config import Config  # noqa: E402 - only now
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: E402
from uvicorn.server import Server  # noqa: E402

sys.modules["uvicorn"].__dict__["Server"] = Server  # other importers expect this name

__all__ = ["Config", "HttpToolsProtocol", "Server"]
