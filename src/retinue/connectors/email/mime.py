"""Parses an email into headers and body parts, in time linear in the size of the input.

The standard library parses a message completely, at any depth. This parser limits depth, sizes and
counts. Parts beyond a limit are left out and counted.
"""

from __future__ import annotations

import binascii
import quopri
import re
from collections.abc import Iterator, Mapping
from email.message import Message

from msgspec import Struct, field

from retinue.connectors.email.email_addresses import decode_header_text, decode_text

HEADER_BYTES_MAX = 128 * 1024  # all headers of one message: signatures alone may take tens of thousands of bytes
HEADERS_MAX = 500
PART_HEADER_BYTES_MAX = 16 * 1024
CONTENT_FIELD_CHARS_MAX = 2048
BOUNDARY_LENGTH_MAX = 200
DEPTH_MAX = 8
PARTS_MAX = 100
BAD_BASE64_CHARS = re.compile(rb"[^A-Za-z0-9+/]")

_NAME = re.compile(r"[!-9;-~]{1,100}")
_END_OF_LINE = re.compile(rb"\r?\n")
_BLANK_LINE = re.compile(rb"(?:\A|\n)\r?\n")


class MimeHeader(Struct, frozen=True):
    name: str  # lowercase
    value: str  # unfolded; bytes that are not UTF-8 as surrogates


class MimePart(Struct, frozen=True, kw_only=True):
    """One leaf part of a message, still encoded."""

    media_type: str
    charset: str
    name: str
    is_file: bool
    encoding: str
    raw: bytes
    content_id: str = ""

    def content(self) -> bytes:
        """The decoded bytes of the part. Invalid base64 characters are skipped."""
        match self.encoding:
            case "base64":
                clean = BAD_BASE64_CHARS.sub(b"", self.raw)
                clean = clean[: len(clean) - (len(clean) % 4 == 1)]
                return binascii.a2b_base64(clean + b"=" * (-len(clean) % 4))
            case "quoted-printable":
                return quopri.decodestring(self.raw)
            case _:
                return self.raw

    def text(self) -> str:
        return decode_text(self.content(), self.charset).replace("\r\n", "\n").replace("\r", "\n")


class MimeMessage(Struct, frozen=True, kw_only=True):
    headers: tuple[MimeHeader, ...]
    parts: tuple[MimePart, ...]
    left_out: int = 0  # parts beyond a limit
    _by_name: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def get_all(self, name: str) -> list[str]:
        """Return every value of a header that may occur more than once, topmost first."""
        if not self._by_name:
            for each in self.headers:
                self._by_name.setdefault(each.name, []).append(each.value)
        return self._by_name.get(name, [])

    def get_first(self, name: str) -> str:
        return next(iter(self.get_all(name)), "")


def parse_message(raw: bytes) -> MimeMessage:
    """Parse an email. Never raises an error: for an invalid email, the result has few or no headers and parts."""
    head, body = _split_head(raw, HEADER_BYTES_MAX)
    headers = _split_headers(head)
    leaves = _PartCollector()
    leaves.walk({each.name: each.value for each in reversed(headers)}, body, depth=0)
    return MimeMessage(headers=headers, parts=tuple(leaves.parts), left_out=leaves.left_out)


def parse_headers(raw: bytes) -> MimeMessage:
    return MimeMessage(headers=_split_headers(_split_head(raw, HEADER_BYTES_MAX)[0]), parts=())


class _PartCollector:
    def __init__(self) -> None:
        self.parts: list[MimePart] = []
        self.left_out = 0
        self._visited = 0

    def walk(self, headers: Mapping[str, str], body: bytes, *, depth: int) -> None:
        self._visited += 1
        if depth > DEPTH_MAX or self._visited > PARTS_MAX:
            self.left_out += 1
            return
        content = _ContentHeaders(headers)
        boundary = content.boundary
        if content.media_type.startswith("multipart/") and boundary:
            for piece in _split_multipart(body, boundary):
                if self._visited >= PARTS_MAX:
                    self.left_out += 1
                    return
                head, inside = _split_head(piece, PART_HEADER_BYTES_MAX)
                self.walk({each.name: each.value for each in reversed(_split_headers(head))}, inside, depth=depth + 1)
            return
        self.parts.append(
            MimePart(
                media_type="text/plain" if content.media_type.startswith("multipart/") else content.media_type,
                charset=content.charset,
                name=content.name,
                is_file=content.is_file,
                encoding=headers.get("content-transfer-encoding", "").strip().lower()[:40],
                raw=body,
                content_id=headers.get("content-id", "").strip("<> ")[:200],
            )
        )


class _ContentHeaders:
    """Parses the content headers of one part with the standard library, after truncating them."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._message = Message()
        for name in ("content-type", "content-disposition"):
            if value := headers.get(name, "")[:CONTENT_FIELD_CHARS_MAX]:
                self._message[name] = value.encode("ascii", "replace").decode("ascii")
        self.media_type = self._message.get_content_type()

    @property
    def boundary(self) -> bytes:
        found = self._param("boundary")
        return found.encode() if 0 < len(found) <= BOUNDARY_LENGTH_MAX else b""

    @property
    def charset(self) -> str:
        return self._param("charset")[:40]

    @property
    def name(self) -> str:
        return decode_header_text(self._param("filename", "content-disposition") or self._param("name"))

    @property
    def is_file(self) -> bool:
        disposition = self._message.get_content_disposition()
        return disposition == "attachment" or bool(self.name) or not self.media_type.startswith("text/")

    def _param(self, name: str, header: str = "content-type") -> str:
        try:
            found = self._message.get_param(name, "", header)
            if isinstance(found, tuple):  # RFC 2231: charset, language, value
                return decode_text(found[2].encode("latin-1", "replace"), found[0] or "ascii").strip()
            return str(found).strip()
        except (ValueError, LookupError, TypeError, AttributeError):
            return ""  # a parameter that makes the library fail


def _split_head(raw: bytes, bytes_max: int) -> tuple[bytes, bytes]:
    blank = _BLANK_LINE.search(raw, 0, bytes_max + 4)
    if blank is None:
        return raw[:bytes_max], raw[bytes_max:] if len(raw) > bytes_max else b""
    return raw[: blank.start()], raw[blank.end() :]


def _split_headers(head: bytes) -> tuple[MimeHeader, ...]:
    found: list[tuple[str, list[str]]] = []
    for line in _END_OF_LINE.split(head):
        text = line.decode("utf-8", "surrogateescape")
        if text[:1] in (" ", "\t"):
            if found:
                found[-1][1].append(text.strip())
            continue
        name, colon, value = text.partition(":")
        if colon and _NAME.fullmatch(name.rstrip()):
            if len(found) == HEADERS_MAX:
                break
            found.append((name.rstrip().lower(), [value.strip()]))
    return tuple(MimeHeader(name, " ".join(lines)) for name, lines in found)


def _split_multipart(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Yield the parts between the `--BOUNDARY` lines. An unclosed last part extends to the end."""
    # Match the whole line: one boundary may be a prefix of another.
    mark = re.compile(rb"(?:\A|\r?\n)--" + re.escape(boundary) + rb"(--)?[ \t]{0,100}(?=\r?\n|\Z)")
    begun: int | None = None
    for found in mark.finditer(body):
        if begun is not None:
            yield _skip_line_end(body, begun, found.start())
        begun = found.end()
        if found[1]:
            return
    if begun is not None:
        yield _skip_line_end(body, begun, len(body))


def _skip_line_end(body: bytes, begin: int, end: int) -> bytes:
    begin += 2 if body[begin : begin + 2] == b"\r\n" else 1
    return body[begin : max(begin, end)]
