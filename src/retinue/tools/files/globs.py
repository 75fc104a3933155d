"""Matches globs against paths, in time proportional to glob length times path length.

`*` and `?` match within a name. `**` matches any number of folders. `[abc]`, `[a-z]` and `[!a]`
match one character. A glob without `/` matches names at any depth.
"""

from __future__ import annotations

from msgspec import Struct

from retinue.tools.base import ToolFailed

GLOB_LENGTH_MAX = 512

_ANY = "**"


class One(Struct, frozen=True):
    """The set of characters that one position of a glob matches."""

    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False

    def fits(self, char: str) -> bool:
        return any(first <= char <= last for first, last in self.ranges) is not self.negated


_ANYTHING = One(negated=True)
_STAR = None
Name = tuple[One | None, ...]  # None is `*`


class Glob(Struct, frozen=True):
    """A parsed glob."""

    parts: tuple[Name | str, ...]  # a str is `**`

    def fits(self, path: str) -> bool:
        """Return whether the glob matches a path relative to the start of the search."""
        names = path.split("/")
        reached = {0}  # possible numbers of parts consumed so far
        for name in names:
            reached = self._closure(reached)
            reached = {
                at if isinstance(part := self.parts[at], str) else at + 1
                for at in reached
                if at < len(self.parts) and (isinstance(part := self.parts[at], str) or name_fits(part, name))
            }
        return len(self.parts) in self._closure(reached)

    def _closure(self, reached: set[int]) -> set[int]:
        """Add the positions reached when `**` matches no folder."""
        found = set(reached)
        for at in sorted(reached):
            while at < len(self.parts) and isinstance(self.parts[at], str):
                at += 1
                found.add(at)
        return found


def name_fits(glob: Name, name: str) -> bool:
    """Match one name, backtracking only to the last `*`."""
    at = star = -1
    at, here, back = 0, 0, 0
    while here < len(name):
        part = glob[at] if at < len(glob) else One()
        if at < len(glob) and part is _STAR:
            star, back = at, here
            at += 1
        elif part is not None and part.fits(name[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            back += 1
            at, here = star + 1, back
        else:
            return False
    return all(part is _STAR for part in glob[at:])


def parse(text: str) -> Glob:
    if not text or len(text) > GLOB_LENGTH_MAX:
        raise ToolFailed(
            f"'{text[:100]}' is not a glob",
            because=f"a glob has 1 to {GLOB_LENGTH_MAX} characters",
            try_this="for example *.md or docs/**/*.md",
            code="glob.invalid",
        )
    written = text.removeprefix("./").strip("/")
    parts = [part for part in written.split("/") if part not in ("", ".")] or ["*"]
    if len(parts) == 1 and "/" not in text:
        parts = [_ANY, *parts]
    return Glob(tuple(_ANY if part == _ANY else _name(part) for part in parts))


def _name(text: str) -> Name:
    found: list[One | None] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "*":
            if not found or found[-1] is not _STAR:
                found.append(_STAR)
        elif char == "?":
            found.append(_ANYTHING)
        elif char == "[" and (end := text.find("]", at + 2)) > 0:
            found.append(_set(text[at + 1 : end]))
            at = end
        else:
            found.append(One(((char, char),)))
        at += 1
    return tuple(found)


def _set(text: str) -> One:
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
    return One(tuple(ranges), negated and len(text) > 1)
