"""Extracts text and metadata from HTML without a parser, in time linear in the page's length."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from html import unescape

from msgspec import Struct

HEAD_CHARS_MAX = 256 * 1024  # searched for metadata
_TAG_CHARS_MAX = 1_000  # of one tag, when reading its attributes
_META_TAGS_MAX = 200
_SNIFFED_BYTES = 2_048

_RAW_TEXT_TAGS = ("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "textarea", "select")
_BLOCK_TAGS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre"}
    | {"section", "table", "td", "th", "tr", "ul", "title"}
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]{0,20})")
_ATTRIBUTE = re.compile(r"""([a-zA-Z][a-zA-Z:-]{0,40})\s{0,5}=\s{0,5}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_META_CHARSET = re.compile(rb"""<meta[^>]{0,500}?charset\s{0,5}=\s{0,5}["']?([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
_BLANKS = re.compile(r"[^\S\n]+")


class PageTag(Struct, frozen=True):
    """One HTML tag of a page."""

    name: str
    is_closing: bool
    source: str  # between the angle brackets


def scan_html(page: str) -> Iterator[PageTag | str]:
    """Yield the tags of a page and the text between them. Scripts, styles, comments and similar
    content are left out."""
    at, end = 0, len(page)
    while at < end:
        angle = page.find("<", at)
        if angle < 0:
            yield page[at:]
            return
        if angle > at:
            yield page[at:angle]
        if page.startswith("<!--", angle):
            closed = page.find("-->", angle + 4)
            at = closed + 3 if closed >= 0 else end
            continue
        closed = page.find(">", angle)
        if closed < 0:
            yield page[angle:]
            return
        name = _NAME.match(page, angle + 1)
        if name is None:
            if page[angle + 1 : angle + 2] in ("!", "?", "/"):
                at = closed + 1
            else:  # a literal less-than sign
                yield "<"
                at = angle + 1
            continue
        tag = PageTag(name[1].lower(), page[angle + 1] == "/", page[angle + 1 : min(closed, angle + _TAG_CHARS_MAX)])
        at = closed + 1
        yield tag
        if tag.name in _RAW_TEXT_TAGS and not tag.is_closing and not tag.source.endswith("/"):
            at = _find_raw_text_end(page, at, tag.name)


def _find_raw_text_end(page: str, at: int, name: str) -> int:
    """Return the position of the closing tag of a raw text element."""
    found = re.compile(rf"</{name}", re.IGNORECASE).search(page, at)
    return found.start() if found else len(page)


def plain_text(page: str, *, markdown: bool) -> str:
    """Return the text of a page, one line per block. With `markdown`, headings and list items are marked."""
    pieces: list[str] = []
    for part in scan_html(page):
        if isinstance(part, str):
            pieces.append(unescape(part).replace("\n", " "))
        elif part.name in _BLOCK_TAGS:
            pieces.append("\n")
            if markdown and not part.is_closing:
                pieces.append(_HEADINGS.get(part.name, "- " if part.name == "li" else ""))
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(pieces).split("\n"))
    return "\n\n".join(line for line in lines if line.strip("-# "))


def read_metadata(page: str) -> dict[str, str]:
    """Return the metadata in the page's head: title, description, site, author, language and
    similar.
    """
    found: dict[str, str] = {}
    title: list[str] | None = None
    tags = 0
    for part in scan_html(page[:HEAD_CHARS_MAX]):
        if isinstance(part, str):
            if title is not None:
                title.append(part)
            continue
        if part.name == "title":
            if part.is_closing and title is not None:
                found.setdefault("title", " ".join(unescape("".join(title)).split()))
            title = None if part.is_closing or "title" in found else []
        elif part.name in ("meta", "link", "html") and not part.is_closing and tags < _META_TAGS_MAX:
            tags += 1
            _add_metadata(found, part)
        elif part.name == "body":
            break
    return {name: value for name, value in found.items() if value}


_METADATA_NAMES = {
    "description": "description",
    "og:description": "description",
    "og:title": "title",
    "og:site_name": "site",
    "og:type": "kind",
    "author": "author",
    "article:published_time": "published",
    "article:modified_time": "modified",
    "keywords": "keywords",
}


def _add_metadata(found: dict[str, str], tag: PageTag) -> None:
    attributes = {
        each[1].lower(): unescape(each[2] or each[3] or each[4] or "") for each in _ATTRIBUTE.finditer(tag.source)
    }
    match tag.name:
        case "html":
            found.setdefault("language", attributes.get("lang", ""))
        case "link":
            if attributes.get("rel", "").lower() == "canonical":
                found.setdefault("canonical", attributes.get("href", ""))
        case _:
            name = _METADATA_NAMES.get((attributes.get("name") or attributes.get("property") or "").lower())
            if name:
                found.setdefault(name, attributes.get("content", ""))


def decode_body(body: bytes, content_type: str) -> str:
    """Decode the body of a page by its byte order mark, its header or its meta tag. Without them,
    decode it as UTF-8, or else as Windows-1252."""
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if body.startswith(mark):
            return body.decode(name, errors="replace")
    names = [_charset(content_type)]
    if meta := _META_CHARSET.search(body[:_SNIFFED_BYTES]):
        names.append(meta[1].decode())
    for name in filter(None, names):
        try:
            if _is_text(name):
                return body.decode(name, errors="replace")
        except (LookupError, ValueError):
            continue
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if error.start >= len(body) - 3:  # truncated within a character
            return body.decode(errors="replace")
        return body.decode("cp1252", errors="replace")


def _charset(content_type: str) -> str:
    _, _, rest = content_type.partition("charset=")
    return rest.partition(";")[0].strip(" \"'")[:40]


def _is_text(name: str) -> bool:
    """Return whether a codec is a character set. Other codecs, such as `zip`, can decompress to any size."""
    return bool(getattr(codecs.lookup(name), "_is_text_encoding", False))
