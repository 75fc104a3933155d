"""Secrets are masked wherever words leave the place they belong to: logs, prompts, results of tools, channels, errors.

Two ways. By value: what the house knows to be a secret, as it is and in the forms in which it is usually written down
(in an address, in JSON, in HTML, in base64, in hex), is replaced by `[secret:NAME]`. By shape: what looks like a key of
a well-known kind is one, whoever's it is.

This is a net, not a wall. Who can run code over a secret can turn it into something that nobody recognises; what keeps
secrets from agents is that they cannot reach them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, quote_plus

from retinue.domain.errors import RetinueError
from retinue.domain.storable_text import escaped

SECRET_CHARS_MIN = 8  # what is shorter could be any word
SECRET_CHARS_MAX = 64 * 1024
SECRETS_MAX = 1_000
FORMS_CHARS_MAX = 8 * 1024 * 1024  # of all forms of all secrets together
RUN_CHARS_MIN = 16  # of a word in a secret of several lines, to be masked by itself
BASE64_LINE_CHARS = 76
NAME_CHARS_MAX = 64
ACROSS_CHARS = SECRET_CHARS_MAX  # looked at on either side of a part, for what lies across its ends

E = TypeVar("E", bound=RetinueError)

_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_.:@-]+")


def mark(name: str) -> str:
    """What stands in a secret's place. It is the same each time, so that two who read it mean the same one."""
    return f"[secret:{_UNNAMEABLE.sub('-', name)[:NAME_CHARS_MAX] or 'unnamed'}]"


# --- by value ---


def forms_of(value: str) -> frozenset[str]:
    """How a secret may be written down. Of one with several lines, each long word of letters and digits is one too."""
    forms = {form for part in _parts(value) for form in _written(part)}
    return frozenset(form for form in forms if len(form) >= SECRET_CHARS_MIN)


_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{RUN_CHARS_MIN},}}={{0,2}}")
_HAS_BOTH = re.compile(r"(?=.*\d)(?=.*[A-Za-z])", re.S)


def _parts(value: str) -> Iterator[str]:
    yield value
    if "\n" in value or "\r" in value:
        yield from (run for run in _RUN.findall(value) if _HAS_BOTH.match(run))


def _written(value: str) -> Iterator[str]:
    yield value
    for ascii_only in (False, True):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    yield escaped(value)
    yield escaped(value).replace("&quot;", '"').replace("&#x27;", "'")  # as it stands between tags
    yield value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    raw = value.encode(errors="surrogatepass")
    for safe in ("", "/"):
        encoded = quote(raw, safe=safe)
        yield encoded
        yield _lower_hex(encoded)
    yield quote_plus(raw)
    yield raw.hex()
    yield raw.hex().upper()
    yield from _base64(raw)


def _lower_hex(encoded: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _base64(raw: bytes) -> Iterator[str]:
    """By itself, and in something longer, where it can fall into the groups of four in three ways."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        yield whole
        yield whole.rstrip("=")
        if len(whole) > BASE64_LINE_CHARS:  # as `base64` breaks it into lines
            yield from (whole[at : at + BASE64_LINE_CHARS] for at in range(0, len(whole), BASE64_LINE_CHARS))
        for before in range(3):
            encoded = encode(b"\0" * before + raw).decode()
            first = (before * 8 + 5) // 6  # the first letter that says something of the secret alone
            last = (before + len(raw)) * 8 // 6
            yield encoded[first:last]


@dataclass(frozen=True, slots=True)
class _Known:
    """Everything to look for. `heads` finds where one may begin; `by_head` says which, the longest first."""

    heads: re.Pattern[str] | None = None
    by_head: Mapping[str, tuple[tuple[int, Mapping[str, str]], ...]] = field(
        default_factory=dict[str, tuple[tuple[int, Mapping[str, str]], ...]], repr=False
    )
    names: frozenset[str] = frozenset()
    unmasked: frozenset[str] = frozenset()


def _compiled(secrets: Iterable[tuple[str, str]]) -> _Known:
    found: dict[str, str] = {}  # a form, and what stands in its place
    names: set[str] = set()
    unmasked: set[str] = set()
    room = FORMS_CHARS_MAX
    ordered = sorted(dict(secrets).items(), key=lambda each: (-len(each[1]), each[0]))
    values = [value for _, value in ordered if len(value) >= SECRET_CHARS_MIN]
    for name, value in ordered:
        forms = forms_of(value) if SECRET_CHARS_MIN <= len(value) <= SECRET_CHARS_MAX else frozenset[str]()
        size = sum(map(len, forms))
        if not forms or len(names) == SECRETS_MAX or size > room:
            unmasked.add(name)
            continue
        room -= size
        names.add(name)
        # A name may hold what it is to hide.
        instead = mark("unnamed" if any(each in mark(name) for each in values) else name)
        for form in forms:
            found.setdefault(form, instead)
    by_head: dict[str, dict[int, dict[str, str]]] = {}
    for form, instead in found.items():
        by_head.setdefault(form[:SECRET_CHARS_MIN], {}).setdefault(len(form), {})[form] = instead
    if not by_head:
        return _Known(unmasked=frozenset(unmasked))
    return _Known(
        heads=re.compile(_alternation(sorted(by_head))),
        by_head={head: tuple(sorted(lengths.items(), key=lambda each: -each[0])) for head, lengths in by_head.items()},
        names=frozenset(names),
        unmasked=frozenset(unmasked),
    )


def _alternation(words: list[str]) -> str:
    """One expression for many words of one length, branching letter by letter: a place in a text is given up as soon as
    no word goes on from there, however many words there are."""
    if len(words) == 1:
        return re.escape(words[0])
    shared = 0
    while words[0][shared : shared + 1] and words[0][shared] == words[-1][shared]:  # they are in order
        shared += 1
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[shared : shared + 1], []).append(word[shared:])
    inner = "|".join(_alternation(branch) for branch in branches.values())
    return f"{re.escape(words[0][:shared])}(?:{inner})"


def _by_value(text: str, known: _Known) -> str:
    """One pass: after each secret that is found, on behind it."""
    if known.heads is None:
        return text
    pieces: list[str] = []
    done = at = 0
    search = known.heads.search
    while (found := search(text, at)) is not None:
        begin = found.start()
        for length, forms in known.by_head[found[0]]:
            instead = forms.get(text[begin : begin + length])
            if instead is not None:
                pieces += (text[done:begin], instead)
                done = at = begin + length
                break
        else:
            at = begin + 1
    return "".join((*pieces, text[done:])) if pieces else text


# --- by shape ---


def _begins(with_: str, rest: str) -> re.Pattern[str]:
    """A shape that begins with these letters and is no part of a longer word. The letters come first in the expression,
    so that a text without them is passed over quickly."""
    return re.compile(rf"{re.escape(with_)}(?<![\w-]{re.escape(with_)}){rest}")


_HAS_DIGIT = r"(?=[\w-]{0,200}\d)"
# Letters that must be there, the shape, its name. Each goes on in one run after its beginning: nothing to go back for.
SHAPES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("sk-", _begins("sk-", rf"{_HAS_DIGIT}[\w-]{{16,}}"), "api-key"),
    ("sk_live_", _begins("sk_live_", r"\w{8,}"), "api-key"),
    ("sk_test_", _begins("sk_test_", r"\w{8,}"), "api-key"),
    ("rk_live_", _begins("rk_live_", r"\w{8,}"), "api-key"),
    ("whsec_", _begins("whsec_", r"\w{16,}"), "webhook-secret"),
    *((f"gh{kind}_", _begins(f"gh{kind}_", r"\w{16,}"), "github-token") for kind in "opusr"),
    ("github_pat_", _begins("github_pat_", r"\w{16,}"), "github-token"),
    ("glpat-", _begins("glpat-", r"[\w-]{16,}"), "gitlab-token"),
    ("xox", _begins("xox", r"[a-z]-[\w-]{8,}"), "slack-token"),
    ("xapp-", _begins("xapp-", r"[\w-]{8,}"), "slack-token"),
    ("hooks.slack.com/services/", _begins("hooks.slack.com/services/", r"[\w/]{8,}"), "slack-webhook"),
    ("AKIA", _begins("AKIA", r"[A-Z0-9]{12,}(?![\w-])"), "aws-key"),
    ("ASIA", _begins("ASIA", r"[A-Z0-9]{12,}(?![\w-])"), "aws-key"),
    ("AIza", _begins("AIza", r"[\w-]{30,}"), "google-key"),
    ("ya29.", _begins("ya29.", r"[\w-]{16,}"), "google-token"),
    ("hf_", _begins("hf_", r"[A-Za-z0-9]{16,}"), "huggingface-token"),
    ("npm_", _begins("npm_", r"[A-Za-z0-9]{30,}"), "npm-token"),
    ("pypi-", _begins("pypi-", r"[\w-]{32,}"), "pypi-token"),
    ("SG.", _begins("SG.", r"[\w-]{16,}\.[\w-]{16,}"), "sendgrid-key"),
    ("syt_", _begins("syt_", r"\w{16,}"), "matrix-token"),
    ("AGE-SECRET-KEY-1", _begins("AGE-SECRET-KEY-1", r"\w{16,}"), "age-key"),
    (":AA", re.compile(r":AA(?<=\d:AA)[\w-]{30,}"), "telegram-token"),
    ("eyJ", _begins("eyJ", r"[\w-]{6,}\.eyJ[\w-]{6,}\.[\w-]{6,}"), "jwt"),
)
_BEARER = re.compile(r"\b([Bb]earer[ \t]{1,3})(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{12,}={0,2}")
_KEY_BEGINS = "-----BEGIN "
_KEY_ENDS = "-----END "
_KEY_TITLE = "PRIVATE KEY-----"
_TITLE_CHARS_MAX = 80
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr])*")


def by_shape(text: str) -> str:
    """The text without what looks like a key of a well-known kind, and without bearer tokens and private keys."""
    for letters, shape, name in SHAPES:
        if letters in text:
            text = shape.sub(mark(name), text)
    if "earer" in text:
        text = _BEARER.sub(lambda found: found[1] + mark("bearer-token"), text)
    return _without_private_keys(text) if _KEY_TITLE in text else text


def _without_private_keys(text: str) -> str:
    """From a key's first line to its last, or as far as what follows could be of it."""
    pieces: list[str] = []
    done = end = 0
    while (begin := text.find(_KEY_BEGINS, done)) >= 0:
        title = text.find(_KEY_TITLE, begin, begin + _TITLE_CHARS_MAX)
        if title < 0:
            pieces.append(text[done : begin + len(_KEY_BEGINS)])
            done = begin + len(_KEY_BEGINS)
            continue
        pieces += (text[done:begin], mark("private-key"))
        body = title + len(_KEY_TITLE)
        if 0 <= end < body:  # looked for once for all that begin before it: a text of beginnings is read once, too
            end = text.find(_KEY_ENDS, body)
        done = _end_of_key(text, body, end)
    return "".join((*pieces, text[done:]))


def _end_of_key(text: str, body: int, end: int) -> int:
    """`end` is where the next last line of a key begins, if there is one. What begins before it has lost its own."""
    if end >= 0 and text.find(_KEY_BEGINS, body, end) < 0:
        title = text.find(_KEY_TITLE, end, end + _TITLE_CHARS_MAX)
        if title >= 0:
            return title + len(_KEY_TITLE)
    found = _KEY_BODY.match(text, body)
    return found.end() if found is not None else body


class Masks:
    """What the house knows to be secret, as it is now. Asked from any thread; what is known is exchanged as a whole."""

    __slots__ = ("_known",)

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._known = _compiled((secrets or {}).items())

    def replace(self, secrets: Mapping[str, str]) -> None:
        """Know these from now on, by name, and no others."""
        self._known = _compiled(secrets.items())

    def mask(self, text: str) -> str:
        """The text with a mark in the place of each secret. One pass for values, however many there are."""
        return by_shape(_by_value(text, self._known))

    def mask_values(self, text: str) -> str:
        """Only what the house knows: for words in which what merely looks like a key is to stay."""
        return _by_value(text, self._known)

    @property
    def names(self) -> frozenset[str]:
        """Whose values are masked."""
        return self._known.names

    @property
    def unmasked(self) -> frozenset[str]:
        """Those that are too short to be told from any other word, or too long, or too many."""
        return self._known.unmasked

    def __repr__(self) -> str:
        return f"Masks({len(self._known.names)} secrets)"


def masked_part(text: str, begin: int, end: int, mask: Callable[[str], str]) -> str:
    """A part of a text, for whoever shows a long one piece by piece: a secret that lies across an end of it is masked
    as well, where half of it would not be known for one."""
    before, after = text[max(0, begin - ACROSS_CHARS) : begin], text[end : end + ACROSS_CHARS]
    whole = mask(before + text[begin:end] + after)
    # What is masked alike with and without its neighbour does not reach across.
    whole = whole[_alike(mask(before), whole) :]
    return whole[: len(whole) - _alike(mask(after)[::-1], whole[::-1])]


def _alike(one: str, other: str) -> int:
    """How many characters they begin with in common."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), len(other))


def masked_error(error: E, mask: Callable[[str], str]) -> E:
    """The same error, in words that can be shown at any door."""
    error.sentence, error.because, error.try_this = map(mask, (error.sentence, error.because, error.try_this))
    error.args = (error.sentence,)
    return error
