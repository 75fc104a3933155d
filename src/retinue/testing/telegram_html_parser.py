"""Parses HTML in the same way as Telegram's Bot API, with its error messages."""

from __future__ import annotations

import html
import re

TAGS = {
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "tg-spoiler": "spoiler",
    "code": "code",
    "pre": "pre",
    "a": "text_link",
    "blockquote": "blockquote",
}
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][a-zA-Z0-9-]*|)(?P<rest>[^<>]*)(?P<close>>?)")
_ATTRIBUTES = re.compile(r"""(?:\s+[a-z]+(?:="[^"<>]*"|='[^'<>]*')?)*\s*""")
_VALUE = re.compile(r"""(?P<key>href|class)="(?P<value>[^"]*)\"""")


class HtmlParseError(ValueError):
    """The HTML is invalid. The message of the error is the text that Telegram adds to "can't parse entities: "."""


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parse_html(text: str) -> tuple[str, list[dict[str, object]]]:
    """Parse HTML, and return the visible text and its entities."""
    shown = ""
    entities: list[dict[str, object]] = []
    open_tags: list[tuple[str, int, dict[str, str]]] = []
    at = 0
    while (start := text.find("<", at)) >= 0:
        shown += html.unescape(text[at:start])
        offset = len(text[:start].encode())
        tag = _TAG.match(text, start)
        if tag is None or not tag["close"] or not _ATTRIBUTES.fullmatch(tag["rest"]):
            raise HtmlParseError(f"Unclosed start tag at byte offset {offset}")
        name = tag["name"].lower()
        if tag["end"]:
            _close_tag(name, open_tags, entities, shown, offset)
        elif name not in TAGS:
            raise HtmlParseError(f'Unsupported start tag "{name}" at byte offset {offset}')
        else:
            values = {each["key"]: html.unescape(each["value"]) for each in _VALUE.finditer(tag["rest"])}
            open_tags.append((name, utf16_length(shown), values))
        at = tag.end()
    shown += html.unescape(text[at:])
    if open_tags:
        raise HtmlParseError(f'Can\'t find end tag corresponding to start tag "{open_tags[-1][0]}"')
    return shown, sorted(entities, key=lambda each: (str(each["offset"]).zfill(6), -int(str(each["length"]))))


def _close_tag(
    name: str,
    open_tags: list[tuple[str, int, dict[str, str]]],
    entities: list[dict[str, object]],
    shown: str,
    offset: int,
) -> None:
    if not open_tags:
        raise HtmlParseError(f"Unexpected end tag at byte offset {offset}")
    opened, begins, values = open_tags.pop()
    if name and name != opened:
        raise HtmlParseError(f'Unmatched end tag at byte offset {offset}, expected "</{opened}>", found "</{name}>"')
    length = utf16_length(shown) - begins
    if length == 0:
        return
    entity: dict[str, object] = {"type": TAGS[opened], "offset": begins, "length": length}
    if opened == "a":
        entity["url"] = values.get("href", "")
    if opened == "code" and open_tags and open_tags[-1][0] == "pre":
        return  # gives the language of the enclosing block
    entities.append(entity)
