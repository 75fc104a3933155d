"""Converts Markdown to the HTML subset that Telegram accepts, in one pass. The output is always well-formed.

Emphasis that is not closed, invalid links and HTML tags in the input are kept as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

URL_LENGTH_MAX = 2048  # characters
LANGUAGE_LENGTH_MAX = 32  # characters
RULE = "———"
BULLET = "•"

_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(?P<words>\S.*)$")
_RULE_LINE = re.compile(r"\s{0,3}(?:-{3,}|\*{3,}|_{3,})\s*$")
_QUOTE = re.compile(r"^\s{0,3}>+ ?")
_BULLET_LINE = re.compile(r"^(?P<indent>\s*)[-*+] +(?=\S)")
_TABLE_RULE = re.compile(r":?-+:?")
_LANGUAGE = re.compile(rf"[A-Za-z0-9_+#.-]{{1,{LANGUAGE_LENGTH_MAX}}}")
_TOKEN = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`+)"
    rf"|<(?P<auto>https?://[^\s<>]{{1,{URL_LENGTH_MAX}}})>"
    r"|(?P<url>https?://[^\s<>\"'\[\]()*`~\\]+)"  # its underscores are not marks
    r"|(?P<run>\*+|_+|~+)"
    r"|(?P<open>!?\[)"
    r"|(?P<close>\])"
)
_SCHEMES = ("http://", "https://", "tg://", "mailto:")
_TAGS = {"**": "b", "__": "b", "*": "i", "_": "i", "~~": "s"}
_LINK = "["


def escape_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def to_html(markdown: str) -> str:
    """Convert Markdown to Telegram's HTML."""
    lines = markdown.split("\n")
    made: list[str] = []
    at = 0
    while at < len(lines):
        block, at = _convert_block(lines, at)
        made.append(block)
    return "\n".join(made)


def _convert_block(lines: Sequence[str], at: int) -> tuple[str, int]:
    """Convert the block that begins at a line. Returns the HTML, and the line at which the next block begins."""
    line = lines[at]
    if fence := _FENCE.match(line):
        return _convert_fence(lines, at, fence)
    if heading := _HEADING.match(line):
        return f"<b>{_convert_inline(heading['words'].rstrip('# ') or heading['words'])}</b>", at + 1
    if _RULE_LINE.match(line):
        return RULE, at + 1
    if _QUOTE.match(line):
        end = _skip_while(lines, at, lambda each: _QUOTE.match(each) is not None)
        words = "\n".join(_QUOTE.sub("", each, count=1) for each in lines[at:end])
        return f"<blockquote>{_convert_inline(words)}</blockquote>", end
    if _starts_table(lines, at):
        end = _skip_while(lines, at, lambda each: "|" in each)
        return f"<pre>{escape_html(_format_table(lines[at:end]))}</pre>", end
    end = at + 1
    while end < len(lines) and lines[end].strip() and not _starts_block(lines, end):
        end += 1
    return _convert_inline(
        "\n".join(_BULLET_LINE.sub(rf"\g<indent>{BULLET} ", each, count=1) for each in lines[at:end])
    ), end


def _starts_block(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    marks = (_FENCE, _HEADING, _RULE_LINE, _QUOTE)
    return any(mark.match(line) for mark in marks) or _starts_table(lines, at)


def _skip_while(lines: Sequence[str], at: int, condition: Callable[[str], bool]) -> int:
    while at < len(lines) and condition(lines[at]):
        at += 1
    return at


def _convert_fence(lines: Sequence[str], at: int, fence: re.Match[str]) -> tuple[str, int]:
    """Convert a code block up to its closing fence, or up to the end of the text.

    The closing fence may be missing, because a reply may have been split inside the code block.
    """
    closing = fence["fence"]
    end = at + 1
    while end < len(lines) and not _closes_fence(lines[end], closing):
        end += 1
    code = escape_html("\n".join(lines[at + 1 : end]))
    words = fence["info"].split()
    if words and _LANGUAGE.fullmatch(words[0]):
        code = f'<code class="language-{escape_html(words[0])}">{code}</code>'
    return f"<pre>{code}</pre>", min(end + 1, len(lines))


def _closes_fence(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _starts_table(lines: Sequence[str], at: int) -> bool:
    if "|" not in lines[at] or at + 1 == len(lines):
        return False
    cells = _split_cells(lines[at + 1])
    return len(cells) > 1 and all(_TABLE_RULE.fullmatch(cell) for cell in cells)


def _split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _format_table(lines: Sequence[str]) -> str:
    rows = [_split_cells(line) for line in (lines[0], *lines[2:])]
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(max(map(len, rows)))]
    return "\n".join(" | ".join(cell.ljust(widths[n]) for n, cell in enumerate(row)).rstrip() for row in rows)


def _convert_inline(text: str) -> str:
    return _InlineConverter(text).convert()


class _InlineConverter:
    """Converts inline marks such as `**`. An opening mark stays literal until its closing mark is found.

    Then both marks become tags. Marks that were opened in between and not closed stay literal, so
    that tags never overlap.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: list[str] = []
        self._open_marks: list[tuple[str, int]] = []  # (mark, index of its piece)
        # positions in `_open_marks`, by mark
        self._depths: dict[str, list[int]] = {kind: [] for kind in (*_TAGS, _LINK)}
        self._unclosed: set[int] = set()  # lengths of backtick runs that do not occur again

    def convert(self) -> str:
        at = 0
        while token := _TOKEN.search(self._text, at):
            self._pieces.append(escape_html(self._text[at : token.start()]))
            at = self._handle_token(token)
        self._pieces.append(escape_html(self._text[at:]))
        return "".join(self._pieces)

    def _handle_token(self, token: re.Match[str]) -> int:
        """Handle one token of the text, and return the position at which to continue."""
        match token.lastgroup:
            case "ticks":
                return self._handle_code(token)
            case "run":
                self._handle_run(token)
            case "open":
                self._push_mark(_LINK, token[0])
            case "close":
                return self._handle_link(token)
            case _:  # an escaped mark or a URL
                self._pieces.append(escape_html(token[token.lastgroup or 0]))
        return token.end()

    def _handle_code(self, token: re.Match[str]) -> int:
        ticks = token["ticks"]
        end = -1
        if len(ticks) not in self._unclosed:
            end = _find_closing_ticks(self._text, ticks, token.end())
        if end < 0:
            self._unclosed.add(len(ticks))
            self._pieces.append(ticks)
            return token.end()
        code = self._text[token.end() : end]
        if code.strip() and code.startswith(" ") and code.endswith(" "):
            code = code[1:-1]
        self._pieces.append(f"<code>{escape_html(code)}</code>")
        return end + len(ticks)

    def _handle_run(self, token: re.Match[str]) -> None:
        run = token["run"]
        mark, left = run[0], len(run)
        before = self._text[token.start() - 1 : token.start()] if token.start() else ""
        after = self._text[token.end() : token.end() + 1]
        opens, closes = bool(after.strip()), bool(before.strip())
        if mark == "_":  # leave snake_case_names alone
            opens, closes = opens and not before.isalnum(), closes and not after.isalnum()
        if left > 3 or (mark == "~" and left != 2):
            self._pieces.append(run)
            return
        while closes and (kind := self._find_closable(mark, left)):
            self._close_mark(kind, f"<{_TAGS[kind]}>", f"</{_TAGS[kind]}>")
            left -= len(kind)
        if opens:
            for kind in (mark * 2, mark):
                if left >= len(kind) and kind in _TAGS:
                    self._push_mark(kind, kind)
                    left -= len(kind)
        self._pieces.append(mark * left)

    def _find_closable(self, mark: str, left: int) -> str:
        """Return the open mark that a run of marks can close: one of the same length, or else the innermost.

        Returns an empty string if there is none.
        """
        if self._depths.get(mark * left):
            return mark * left
        kinds = [kind for kind in (mark, mark * 2) if len(kind) <= left and self._depths.get(kind)]
        return max(kinds, key=lambda kind: self._depths[kind][-1], default="")

    def _handle_link(self, token: re.Match[str]) -> int:
        url, end = _parse_link_url(self._text, token.end())
        if not url or not self._depths[_LINK]:
            self._pieces.append("]")
            return token.end()
        self._close_mark(_LINK, f'<a href="{escape_html(url)}">', "</a>")
        self._depths[_LINK].clear()  # links do not nest, so a bracket that is still open around it is not a link
        return end

    def _push_mark(self, kind: str, written: str) -> None:
        self._depths[kind].append(len(self._open_marks))
        self._open_marks.append((kind, len(self._pieces)))
        self._pieces.append(written)

    def _close_mark(self, kind: str, start: str, end: str) -> None:
        depth = self._depths[kind][-1]
        self._pieces[self._open_marks[depth][1]] = start
        self._pieces.append(end)
        while len(self._open_marks) > depth:
            passed, _ = self._open_marks.pop()
            if self._depths[passed]:
                self._depths[passed].pop()


def _find_closing_ticks(text: str, ticks: str, at: int) -> int:
    """Return the position of the next run of exactly as many backticks, or -1."""
    while (found := text.find("`", at)) >= 0:
        end = found
        while end < len(text) and text[end] == "`":
            end += 1
        if end - found == len(ticks):
            return found
        at = end
    return -1


def _parse_link_url(text: str, at: int) -> tuple[str, int]:
    """Return the URL of `(url)` after a link text, and the position after it.

    The URL is empty if it is missing or has no known scheme.
    """
    if text[at : at + 1] != "(":
        return "", at
    depth = 0
    for end in range(at, min(len(text), at + URL_LENGTH_MAX)):
        character = text[end]
        if character.isspace() or character in "[]":  # so that no part of the text is scanned twice
            break
        depth += (character == "(") - (character == ")")
        if depth == 0:
            url = text[at + 1 : end]
            return (url, end + 1) if url.casefold().startswith(_SCHEMES) else ("", at)
    return "", at
