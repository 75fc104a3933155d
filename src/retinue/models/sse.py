"""Parses server-sent events from a stream of bytes.

A chunk may end at any byte, lines may have any line ending, and comments are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.models.errors import StreamEventTooLarge

EVENT_BYTES_MAX = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "
_NEXT_DATA = b"\n\n" + _DATA
_LF_CODE = ord("\n")  # as an int: for bytes, `in` first tries to convert the operand


SseEvent = tuple[bytes, bytes]
"""The event's name, usually empty, and its data."""


class SseParser:
    """Takes the bytes of a stream as they arrive, and returns the events that are complete.

    An incomplete event is buffered until the rest of it arrives. Its size is limited.
    """

    __slots__ = ("_data", "_has_started", "_name", "_pending", "_pending_bytes", "_rest", "_size_bytes")

    def __init__(self) -> None:
        self._rest = b""
        self._pending: list[bytes] = []  # chunks of an unfinished line: joined once, however many there are
        self._pending_bytes = 0
        self._has_started = False
        self._name = b""
        self._data: list[bytes] = []
        self._size_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._rest and not self._rest.endswith(b"\r") and b"\n" not in chunk and b"\r" not in chunk:
            self._pending.append(chunk)
            self._pending_bytes += len(chunk)
            self._check_size()
            return []
        text = self._take_rest() + chunk
        if not self._has_started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            self._has_started = True
            text = text.removeprefix(_BOM)
        held = b""
        if b"\r" in text:
            if text.endswith(b"\r"):  # possibly half of a CRLF
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found: list[SseEvent] = []
        if text.startswith(_DATA) and not self._data and not self._name:
            found, text = self._parse_unnamed_events(text)
        lines = text.split(b"\n")
        self._rest = lines.pop() + held
        if lines:
            found += self._parse_lines(lines)
        self._check_size()
        return found

    def finish(self) -> list[SseEvent]:
        """Return the last event when the stream has ended. Some servers omit the blank line after it."""
        lines = [rest] if (rest := self._take_rest().rstrip(b"\r")) else []
        self._rest = b""
        return self._parse_lines([*lines, b""])

    def _take_rest(self) -> bytes:
        if not self._pending:
            return self._rest
        rest = b"".join((self._rest, *self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        return rest

    def _check_size(self) -> None:
        if len(self._rest) + self._pending_bytes + self._size_bytes > EVENT_BYTES_MAX:
            raise StreamEventTooLarge(bytes_max=EVENT_BYTES_MAX)

    def _parse_unnamed_events(self, text: bytes) -> tuple[list[SseEvent], bytes]:
        """Parse unnamed single-line events in bulk, because many servers send one event per word.

        Also returns the rest of the text, which has no complete event.
        """
        found: list[SseEvent] = []
        whole = text.removeprefix(_DATA).split(_NEXT_DATA)
        rest = whole.pop()
        if rest.endswith(b"\n\n"):
            whole.append(rest[:-2])
            rest = b""
        else:
            rest = _DATA + rest
        for data in whole:
            if _LF_CODE in data:
                found += self._parse_lines([*(_DATA + data).split(b"\n"), b""])
            else:
                found.append((b"", data))
        return found, rest

    def _parse_lines(self, lines: Sequence[bytes]) -> list[SseEvent]:
        """Parse complete lines into events. This runs for every word of a reply, so it is one loop."""
        found: list[SseEvent] = []
        data, size_bytes = self._data, self._size_bytes
        for line in lines:
            if line[:6] == b"data: ":
                data.append(line[6:])
                size_bytes += len(line)
            elif not line:
                if data:
                    found.append((self._name, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                    size_bytes = 0
                self._name = b""
            elif line[:7] == b"event: ":
                self._name = line[7:]
            else:
                field, _, value = line.partition(b":")
                if field == b"data":  # without a space after it, or empty
                    data.append(value)
                    size_bytes += len(line)
                elif field == b"event":
                    self._name = value
        self._size_bytes = size_bytes
        return found
