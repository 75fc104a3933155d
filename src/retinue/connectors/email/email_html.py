"""Converts an HTML email to the text that a reader sees.

Scripts and hidden text are left out. The conversion takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from msgspec import Struct

HTML_CHARS_MAX = 1_000_000  # the rest is ignored
LINK_LENGTH_MAX = 500
_TAG_CHARS_MAX = 2_000  # characters of one tag in which attributes are read
_DEPTH_MAX = 100  # nested quotes

_SKIPPED = frozenset(
    {
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "math",
        "iframe",
        "object",
        "textarea",
        "select",
        "title",
        "head",
    }
)
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "blockquote", "pre"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "br", "center", "dd", "div", "dl", "dt", "fieldset", "figure", "footer", "form"}
    | {"header", "hr", "li", "main", "nav", "section", "td", "th", "tr"}
    | _PARAGRAPHS
)
_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]{0,20})")
_ATTRIBUTE = re.compile(r"""([a-zA-Z][a-zA-Z:-]{0,40})\s{0,5}=\s{0,5}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_HIDING_STYLE = re.compile(
    r"display:none|visibility:hidden|font-size:0(?![.\d]*[1-9])|opacity:0(?![.\d]*[1-9])|mso-hide:all"
)
_HIDDEN_ATTRIBUTE = re.compile(r"\shidden(?=[\s>/=]|$)", re.IGNORECASE)
_BLANKS = re.compile(r"[^\S\n]+")
_MANY_LINES = re.compile(r"\n{3,}")


class HtmlTag(Struct, frozen=True):
    name: str
    is_closing: bool
    source: str  # between the angle brackets

    @property
    def attributes(self) -> dict[str, str]:
        return {
            found[1].lower(): unescape(found[2] or found[3] or found[4] or "")
            for found in _ATTRIBUTE.finditer(self.source)
        }

    @property
    def hides_content(self) -> bool:
        """Whether the style of the tag hides its content.

        Text that only a model would see may be a prompt injection.
        """
        style = re.sub(r"\s", "", self.attributes.get("style", "")).lower()
        return _HIDING_STYLE.search(style) is not None or _HIDDEN_ATTRIBUTE.search(self.source) is not None


def scan_html(html: str) -> Iterator[HtmlTag | str]:
    """Yield the tags of an HTML document and the text between them, in order.

    Scripts, styles, comments and similar content are skipped.
    """
    at, end = 0, len(html)
    while at < end:
        angle = html.find("<", at)
        if angle < 0:
            yield html[at:]
            return
        if angle > at:
            yield html[at:angle]
        if html.startswith("<!--", angle):
            closed = html.find("-->", angle + 4)
            at = closed + 3 if closed >= 0 else end
            continue
        closed = html.find(">", angle)
        if closed < 0:
            return
        name = _NAME.match(html, angle + 1)
        if name is None:
            if html[angle + 1 : angle + 2] in ("!", "?", "/"):
                at = closed + 1
            else:  # a literal less-than sign
                yield "<"
                at = angle + 1
            continue
        tag = HtmlTag(name[1].lower(), html[angle + 1] == "/", html[angle + 1 : min(closed, angle + _TAG_CHARS_MAX)])
        at = closed + 1
        yield tag
        if tag.name in _SKIPPED and not tag.is_closing and not tag.source.endswith("/"):
            found = re.compile(rf"</{tag.name}", re.IGNORECASE).search(html, at)
            at = found.start() if found else end


def html_to_text(html: str) -> str:
    """Convert HTML to text: one line per block, `>` before quotes, and link targets after the text of the link."""
    writer = _TextWriter()
    for part in scan_html(html[:HTML_CHARS_MAX]):
        if isinstance(part, str):
            writer.write_text(part)
        elif part.is_closing:
            writer.close_tag(part)
        else:
            writer.open_tag(part)
    return writer.finish()


class _TextWriter:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._quotes = 0
        self._hidden = ""  # the tag that hides the following content
        self._hidden_depth = 0
        self._link = ""
        self._link_at = 0  # index in the line at which its text begins
        self._pre = 0

    def write_text(self, text: str) -> None:
        if self._hidden:
            return
        words = unescape(text)
        if self._pre:
            first, *rest = words.split("\n")
            self._line.append(first)
            for line in rest:
                self._break()
                self._line.append(line)
        else:
            self._line.append(_BLANKS.sub(" ", words.replace("\n", " ").replace("\xa0", " ")))

    def open_tag(self, tag: HtmlTag) -> None:
        if self._hidden:
            if tag.name == self._hidden and tag.name not in _VOID:
                self._hidden_depth += 1
            return
        if tag.name not in _VOID and tag.hides_content:
            self._hidden, self._hidden_depth = tag.name, 1
            return
        if tag.name in _BLOCKS:
            self._break(paragraph=tag.name in _PARAGRAPHS)
        match tag.name:
            case "blockquote":
                self._quotes = min(_DEPTH_MAX, self._quotes + 1)
            case "li":
                self._line.append("- ")
            case "pre":
                self._pre += 1
            case "a":
                self._link = tag.attributes.get("href", "")[:LINK_LENGTH_MAX]
                self._link_at = len(self._line)
            case _:
                pass

    def close_tag(self, tag: HtmlTag) -> None:
        if self._hidden:
            if tag.name == self._hidden:
                self._hidden_depth -= 1
                if not self._hidden_depth:
                    self._hidden = ""
            return
        if tag.name == "a" and self._link:
            # Show the link target if the text differs from it: a person can see the target in an
            # email program; a model cannot.
            link, self._link = self._link, ""
            if link.startswith(("http://", "https://")) and link not in "".join(self._line[self._link_at :]):
                self._line.append(f" ({link})")
        if tag.name in _BLOCKS:
            self._break(paragraph=tag.name in _PARAGRAPHS)
        if tag.name == "blockquote":
            self._quotes = max(0, self._quotes - 1)
        elif tag.name == "pre":
            self._pre = max(0, self._pre - 1)

    def _break(self, *, paragraph: bool = False) -> None:
        mark = "> " * min(self._quotes, 5)
        line = "".join(self._line)
        line = line.rstrip() if self._pre else line.strip()
        self._line = []
        if line.strip("- ") or (line and self._pre):
            self._lines.append(mark + line)
        if paragraph and self._lines and self._lines[-1].strip("> "):
            self._lines.append(mark.rstrip())

    def finish(self) -> str:
        self._break()
        return _MANY_LINES.sub("\n\n", "\n".join(self._lines)).strip()
