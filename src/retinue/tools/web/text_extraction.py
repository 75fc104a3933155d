"""Extracts the main content of a web page with trafilatura, or plain text if trafilatura is not installed."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from retinue.tools.web import page_text
from retinue.tools.web.guarded_request import WebResponse

EXTRACT_TIMEOUT_S = 20.0
EXTRACT_CHARS_MAX = 2_000_000
NOT_INSTALLED = "the full page as plain text, because trafilatura is not installed (pip install 'retinue[web]')"
NOTHING_FOUND = "the full page as plain text, because no main content was found"
TOO_SLOW = "the full page as plain text, because extracting its content took too long"

_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)
_TEXTS = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")
_HTML = ("text/html", "application/xhtml+xml")


class ExtractedText(Struct, frozen=True):
    """The text that was extracted from a web page."""

    text: str
    note: str = ""  # what the text is instead, if no content was extracted


def detect_media_type(response: WebResponse) -> str:
    """Return the media type of a body: by its signature, else its header, else a guess."""
    declared = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    for begins, kind in _SIGNATURES:
        if response.body.startswith(begins):
            return kind
    if declared and declared != "application/octet-stream":
        return declared
    if b"\x00" in response.body[:4096]:
        return "application/octet-stream"
    return "text/html" if b"<html" in response.body[:4096].lower() else "text/plain"


def is_html(kind: str) -> bool:
    return kind in _HTML


def is_text(kind: str) -> bool:
    return kind.startswith(_TEXTS) or kind.endswith(("+json", "+xml")) or is_html(kind)


async def extract_text(page: str, url: str, *, markdown: bool) -> ExtractedText:
    """Extract the main content of an HTML page."""
    # In a thread, because a large page would block the event loop.
    try:
        async with asyncio.timeout(EXTRACT_TIMEOUT_S):
            return await asyncio.to_thread(_extract, page[:EXTRACT_CHARS_MAX], url, markdown=markdown)
    except TimeoutError:
        return ExtractedText(await asyncio.to_thread(page_text.plain_text, page, markdown=markdown), TOO_SLOW)


def _extract(page: str, url: str, *, markdown: bool) -> ExtractedText:
    try:
        import trafilatura
    except ImportError:
        return ExtractedText(page_text.plain_text(page, markdown=markdown), NOT_INSTALLED)
    try:
        found = trafilatura.extract(
            page,
            url=url,
            output_format="markdown" if markdown else "txt",
            include_links=markdown,
            include_tables=True,
            include_comments=False,
        )
    except Exception:  # noqa: BLE001 - a page may break any parser, and is then shown as plain text
        found = None
    if found and found.strip():
        return ExtractedText(found)
    return ExtractedText(page_text.plain_text(page, markdown=markdown), NOTHING_FOUND)
