"""Reads metadata from the header of a GGUF file, without loading the model."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from msgspec import Struct

MAGIC = b"GGUF"
HEADER_BYTES_MAX = 32 * 1024 * 1024  # metadata comes first, including the whole vocabulary
TEXT_BYTES_MAX = 1024 * 1024

_UINT32_TYPE = 4
_STRING_TYPE = 8
_UINT64_TYPE = 10


class GgufHeader(Struct, frozen=True, kw_only=True):
    """The metadata of a GGUF file. A missing number is 0, and a missing string is empty."""

    size_bytes: int = 0
    window_tokens: int = 0
    chat_template: str = ""  # Jinja template that formats a conversation for the model

    @property
    def supports_tools(self) -> bool:
        """Whether the model supports tools. It does if its chat template mentions them."""
        return "tools" in self.chat_template


class NotGgufFile(Exception):
    """The file is not a GGUF file. The exception's message is used as the reason of another error."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises `NotGgufFile` if the file is not GGUF, and `OSError` if it cannot be read.
    """
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
        if not begins:
            raise NotGgufFile("it is empty")
        if begins != MAGIC:
            raise NotGgufFile("it is not a GGUF file: it has another signature")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse_header(data)


def _parse_header(data: mmap.mmap) -> GgufHeader:
    kind = _find_value(data, "general.architecture")
    window = _find_value(data, f"{kind}.context_length")
    template = _find_value(data, "tokenizer.chat_template")
    return GgufHeader(
        size_bytes=len(data),
        window_tokens=window if isinstance(window, int) else 0,
        chat_template=template if isinstance(template, str) else "",
    )


def _find_value(data: mmap.mmap, name: str) -> int | str | None:
    """Return a number or string of the header, found by searching for its length-prefixed name.

    The name occurs only once in a header. Reading every entry instead, with a vocabulary of 150,000
    words, would take a hundred times as long.
    """
    sought = struct.pack("<Q", len(name)) + name.encode()
    found = data.find(sought, 0, HEADER_BYTES_MAX)
    if found < 0:
        return None
    at = found + len(sought)
    try:
        (kind,) = struct.unpack_from("<I", data, at)
        if kind == _UINT32_TYPE:
            return struct.unpack_from("<I", data, at + 4)[0]
        if kind == _UINT64_TYPE:
            return struct.unpack_from("<Q", data, at + 4)[0]
        if kind != _STRING_TYPE:
            return None
        (length,) = struct.unpack_from("<Q", data, at + 4)
    except struct.error:  # truncated here; loading it will fail with an error
        return None
    begin = at + 12
    return data[begin : begin + min(length, TEXT_BYTES_MAX)].decode(errors="replace")
