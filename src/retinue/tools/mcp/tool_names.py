"""What a server's tools are called here. Pure: a tool has the same name whatever else is in the list."""

from __future__ import annotations

import hashlib
import re

PREFIX = "mcp"
NAME_LENGTH_MAX = 64  # what every provider takes
DIGITS = 8

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MARKED = re.compile(rf"_[0-9a-f]{{{DIGITS}}}\Z")


def tool_name(server: str, tool: str) -> str:
    """`mcp_SERVER_TOOL`, short enough and in safe letters. A server has no `_` in its name, so no two servers can have
    tools of the same name.

    What had to be changed bears a mark of what it was; so does what looks as if it bore one.
    """
    plain = f"{PREFIX}_{server}_{tool}"
    if tool and len(plain) <= NAME_LENGTH_MAX and not _UNSAFE.search(plain) and not _MARKED.search(plain):
        return plain
    mark = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
    safe = _UNSAFE.sub("_", plain)[: NAME_LENGTH_MAX - DIGITS - 1]
    return f"{safe}_{mark}"
