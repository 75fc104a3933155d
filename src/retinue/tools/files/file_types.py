"""Detects the media type of bytes by their content. File names are ignored."""

from __future__ import annotations

SNIFFED_BYTES = 8 * 1024

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)
_UNKNOWN = "application/octet-stream"


def detect_binary_type(data: bytes) -> str | None:
    """Return the media type of binary data, or None for text."""
    for beginning, media_type in _SIGNATURES:
        if data.startswith(beginning):
            return media_type
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], _UNKNOWN)
    return _UNKNOWN if b"\x00" in data[:SNIFFED_BYTES] else None
