"""Builds the names of MCP tools. A tool's name does not depend on other tools in the list."""

from __future__ import annotations

import hashlib
import re

PREFIX = "mcp"
NAME_LENGTH_MAX = 64  # the limit of every provider
HASH_DIGITS = 8

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_SUFFIX = re.compile(rf"_[0-9a-f]{{{HASH_DIGITS}}}\Z")


def tool_name(server: str, tool: str) -> str:
    """Return `mcp_SERVER_TOOL`, in safe characters and within the length limit.

    Server names contain no `_`, so tools of two servers never get the same name. If the name had to
    be changed, it ends in a hash of the original. This also applies to a name that already ends
    like a hash.
    """
    plain = f"{PREFIX}_{server}_{tool}"
    if tool and len(plain) <= NAME_LENGTH_MAX and not _UNSAFE.search(plain) and not _HASH_SUFFIX.search(plain):
        return plain
    mark = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:HASH_DIGITS]
    safe = _UNSAFE.sub("_", plain)[: NAME_LENGTH_MAX - HASH_DIGITS - 1]
    return f"{safe}_{mark}"
