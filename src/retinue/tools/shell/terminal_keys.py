"""Encodes keys and pasted text as a terminal sends them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from retinue.tools.shell.errors import HexByteInvalid, TerminalKeyUnknown, TooManyKeys

KEYS_MAX = 256

PASTE_START = b"\x1b[200~"
PASTE_END = b"\x1b[201~"

_NAMED_KEYS = {
    "enter": b"\r",
    "return": b"\r",
    "tab": b"\t",
    "backtab": b"\x1b[Z",
    "space": b" ",
    "escape": b"\x1b",
    "esc": b"\x1b",
    "backspace": b"\x7f",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "home": b"\x1b[H",
    "end": b"\x1b[F",
    "insert": b"\x1b[2~",
    "delete": b"\x1b[3~",
    "pageup": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
    "f1": b"\x1bOP",
    "f2": b"\x1bOQ",
    "f3": b"\x1bOR",
    "f4": b"\x1bOS",
    "f5": b"\x1b[15~",
    "f6": b"\x1b[17~",
    "f7": b"\x1b[18~",
    "f8": b"\x1b[19~",
    "f9": b"\x1b[20~",
    "f10": b"\x1b[21~",
    "f11": b"\x1b[23~",
    "f12": b"\x1b[24~",
}
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{2})")


def encode_keys(keys: Sequence[str], hex_bytes: Sequence[str] = (), literal: str = "") -> bytes:
    """Encode named keys (`Enter`, `C-c`, `M-x`, `Up`), then hex bytes, then literal text."""
    if len(keys) > KEYS_MAX or len(hex_bytes) > KEYS_MAX:
        raise TooManyKeys(keys_max=KEYS_MAX)
    return b"".join([*map(_encode_key, keys), *map(_parse_hex_byte, hex_bytes), literal.encode(errors="replace")])


def encode_paste(text: str, *, bracketed: bool) -> bytes:
    """Encode text as a terminal sends pasted text. The end marker of a bracketed paste is removed from the text."""
    data = text.encode(errors="replace")
    if not bracketed:
        return data
    while PASTE_END in data or PASTE_START in data:  # a removal can form a new marker
        data = data.replace(PASTE_END, b"").replace(PASTE_START, b"")
    return PASTE_START + data + PASTE_END


def _encode_key(name: str) -> bytes:
    plain = _NAMED_KEYS.get(name.lower())
    if plain is not None:
        return plain
    modifier, dash, rest = name.partition("-")
    if dash and rest:
        match modifier.lower():
            case "c" | "ctrl" if len(rest) == 1 and "@" <= rest.upper() <= "_":
                return bytes([ord(rest.upper()) - 64])
            case "c" | "ctrl" if rest.lower() == "space":
                return b"\x00"
            case "m" | "alt":
                return b"\x1b" + _encode_key(rest)
            case _:
                pass
    if len(name) == 1:
        return name.encode(errors="replace")
    raise TerminalKeyUnknown(name)


def _parse_hex_byte(text: str) -> bytes:
    found = _HEX.fullmatch(text.strip())
    if found is None:
        raise HexByteInvalid(text)
    return bytes.fromhex(found[1])
