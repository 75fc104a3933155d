"""Reads metadata from the header of a GGUF file, without loading the model."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from msgspec import Struct

MAGIC = b"GGUF"
HEAD_BYTES_MAX = 32 * 1024 * 1024  # metadata comes first, including the whole vocabulary
TEXT_BYTES_MAX = 1024 * 1024

_U32 = 4
_TEXT = 8
_U64 = 10


class Head(Struct, frozen=True, kw_only=True):
    """The metadata of a GGUF file. Zero or empty if it is missing."""

    size_bytes: int = 0
    window_tokens: int = 0
    template: str = ""  # the chat template

    @property
    def tools(self) -> bool:
        """Whether the model supports tools: only then does its template mention them."""
        return "tools" in self.template


class NotGguf(Exception):
    """The file is not GGUF. The message is the end of a sentence about the file."""


def read_head(path: Path) -> Head:
    """Read the header. Raises `NotGgufFile` if the file is not GGUF, and `OSError` if it cannot be read."""
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
        if not begins:
            raise NotGguf("it is empty")
        if begins != MAGIC:
            raise NotGguf("it is no GGUF file: it does not begin as one")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _head(data)


def _head(data: mmap.mmap) -> Head:
    kind = _value(data, "general.architecture")
    window = _value(data, f"{kind}.context_length")
    template = _value(data, "tokenizer.chat_template")
    return Head(
        size_bytes=len(data),
        window_tokens=window if isinstance(window, int) else 0,
        template=template if isinstance(template, str) else "",
    )


def _value(data: mmap.mmap, name: str) -> int | str | None:
    """Return a named number or text.

    Found by searching for the length-prefixed name, which is unique in a header. Walking through a
    vocabulary of 150,000 words would take a hundred times as long.
    """
    sought = struct.pack("<Q", len(name)) + name.encode()
    found = data.find(sought, 0, HEAD_BYTES_MAX)
    if found < 0:
        return None
    at = found + len(sought)
    try:
        (kind,) = struct.unpack_from("<I", data, at)
        if kind == _U32:
            return struct.unpack_from("<I", data, at + 4)[0]
        if kind == _U64:
            return struct.unpack_from("<Q", data, at + 4)[0]
        if kind != _TEXT:
            return None
        (length,) = struct.unpack_from("<Q", data, at + 4)
    except struct.error:  # truncated here; loading it will fail with an error
        return None
    begin = at + 12
    return data[begin : begin + min(length, TEXT_BYTES_MAX)].decode(errors="replace")
