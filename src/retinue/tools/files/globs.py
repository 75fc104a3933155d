"""Matches globs against paths, in time proportional to glob length times path length.

`*` and `?` match within a name. `**` matches any number of folders. `[abc]`, `[a-z]` and `[!a]`
match one character. A glob without `/` matches names at any depth.
"""

from __future__ import annotations

from msgspec import Struct

from retinue.tools.files.errors import GlobInvalid

GLOB_LENGTH_MAX = 512

_DOUBLE_STAR = "**"


class CharacterSet(Struct, frozen=True):
    """The set of characters that one position of a glob matches."""

    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False

    def matches(self, char: str) -> bool:
        return any(first <= char <= last for first, last in self.ranges) is not self.negated


_ANY_CHARACTER = CharacterSet(negated=True)
_STAR = None
NamePattern = tuple[CharacterSet | None, ...]  # None is `*`


class Glob(Struct, frozen=True):
    """A parsed glob, to match against paths."""

    parts: tuple[NamePattern | str, ...]  # a str is `**`

    def matches(self, path: str) -> bool:
        """Return whether the glob matches a path relative to the start of the search."""
        names = path.split("/")
        reached = {0}  # possible numbers of parts consumed so far
        for name in names:
            reached = self._closure(reached)
            reached = {
                at if isinstance(part := self.parts[at], str) else at + 1
                for at in reached
                if at < len(self.parts) and (isinstance(part := self.parts[at], str) or matches_name(part, name))
            }
        return len(self.parts) in self._closure(reached)

    def _closure(self, reached: set[int]) -> set[int]:
        """Return the positions, and the position after each `**` among them, because `**` may match no folder."""
        found = set(reached)
        for at in sorted(reached):
            while at < len(self.parts) and isinstance(self.parts[at], str):
                at += 1
                found.add(at)
        return found


def matches_name(glob: NamePattern, name: str) -> bool:
    """Match one name against a part of a glob, backtracking only to the last `*`."""
    at = star = -1
    at, here, back = 0, 0, 0
    while here < len(name):
        part = glob[at] if at < len(glob) else CharacterSet()
        if at < len(glob) and part is _STAR:
            star, back = at, here
            at += 1
        elif part is not None and part.matches(name[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            back += 1
            at, here = star + 1, back
        else:
            return False
    return all(part is _STAR for part in glob[at:])


def parse(text: str) -> Glob:
    if not text or len(text) > GLOB_LENGTH_MAX:
        raise GlobInvalid(text, chars_max=GLOB_LENGTH_MAX)
    written = text.removeprefix("./").strip("/")
    parts = [part for part in written.split("/") if part not in ("", ".")] or ["*"]
    if len(parts) == 1 and "/" not in text:
        parts = [_DOUBLE_STAR, *parts]
    return Glob(tuple(_DOUBLE_STAR if part == _DOUBLE_STAR else _parse_name(part) for part in parts))


def _parse_name(text: str) -> NamePattern:
    found: list[CharacterSet | None] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "*":
            if not found or found[-1] is not _STAR:
                found.append(_STAR)
        elif char == "?":
            found.append(_ANY_CHARACTER)
        elif char == "[" and (end := text.find("]", at + 2)) > 0:
            found.append(_parse_character_set(text[at + 1 : end]))
            at = end
        else:
            found.append(CharacterSet(((char, char),)))
        at += 1
    return tuple(found)


def _parse_character_set(text: str) -> CharacterSet:
    negated = text[0] in "!^"
    chars = text[1:] if negated and len(text) > 1 else text
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(chars):
        if at + 2 < len(chars) and chars[at + 1] == "-":
            ranges.append((chars[at], chars[at + 2]))
            at += 3
        else:
            ranges.append((chars[at], chars[at]))
            at += 1
    return CharacterSet(tuple(ranges), negated and len(text) > 1)
