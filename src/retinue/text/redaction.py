"""Redacts secrets in text: in logs, prompts, tool results, channel messages and errors.

Secrets are found in two ways. By value: a secret that the server knows is replaced by
`[secret:NAME]`, in plain form and in the usual encodings (URL, JSON, HTML, base64, hex). By
pattern: text that looks like a key of a well-known kind is replaced, even if the server does not
know it.

Redaction is only a safety net. Code that can read a secret can change its form, so that redaction
does not find it. Secrets are protected because agents have no access to them.
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
from retinue.domain.storable_text import escape_markup

SECRET_CHARS_MIN = 8  # a shorter secret could be an ordinary word
SECRET_CHARS_MAX = 64 * 1024
SECRETS_MAX = 1_000
FORMS_CHARS_MAX = 8 * 1024 * 1024  # all forms of all secrets together
SECRET_WORD_CHARS_MIN = 16  # shortest word of a secret with several lines that is also redacted alone
BASE64_LINE_CHARS = 76
NAME_CHARS_MAX = 64
OVERLAP_CHARS = SECRET_CHARS_MAX  # searched before and after a part, to find secrets that are only partly in it

E = TypeVar("E", bound=RetinueError)

_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_.:@-]+")


def build_placeholder(name: str) -> str:
    """Return the placeholder that replaces a secret in text.

    The same name always gives the same placeholder, so that readers can distinguish secrets.
    """
    return f"[secret:{_INVALID_NAME_CHARS.sub('-', name)[:NAME_CHARS_MAX] or 'unnamed'}]"


# --- by value ---


def list_encoded_forms(value: str) -> frozenset[str]:
    """Return the forms in which a secret may appear in text, such as base64 or URL-encoded.

    If a secret has more than one line, each long word with digits and letters in it counts as a
    secret too, and its forms are included.
    """
    forms = {form for part in _split_secret(value) for form in _encode_secret(part)}
    return frozenset(form for form in forms if len(form) >= SECRET_CHARS_MIN)


_SECRET_WORD = re.compile(rf"[A-Za-z0-9+/_-]{{{SECRET_WORD_CHARS_MIN},}}={{0,2}}")
_HAS_DIGIT_AND_LETTER = re.compile(r"(?=.*\d)(?=.*[A-Za-z])", re.S)


def _split_secret(value: str) -> Iterator[str]:
    yield value
    if "\n" in value or "\r" in value:
        yield from (run for run in _SECRET_WORD.findall(value) if _HAS_DIGIT_AND_LETTER.match(run))


def _encode_secret(value: str) -> Iterator[str]:
    yield value
    for ascii_only in (False, True):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    yield escape_markup(value)
    # inside an HTML element, where quotes stay unescaped
    yield escape_markup(value).replace("&quot;", '"').replace("&#x27;", "'")
    yield value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    raw = value.encode(errors="surrogatepass")
    for safe in ("", "/"):
        encoded = quote(raw, safe=safe)
        yield encoded
        yield _lowercase_percent_codes(encoded)
    yield quote_plus(raw)
    yield raw.hex()
    yield raw.hex().upper()
    yield from _base64_forms(raw)


def _lowercase_percent_codes(encoded: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Yield the base64 forms of a value: encoded alone, and inside longer data at each of the three alignments."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        yield whole
        yield whole.rstrip("=")
        if len(whole) > BASE64_LINE_CHARS:  # the `base64` command wraps its lines at this length
            yield from (whole[at : at + BASE64_LINE_CHARS] for at in range(0, len(whole), BASE64_LINE_CHARS))
        for before in range(3):
            encoded = encode(b"\0" * before + raw).decode()
            first = (before * 8 + 5) // 6  # the first character that depends on the secret alone
            last = (before + len(raw)) * 8 // 6
            yield encoded[first:last]


@dataclass(frozen=True, slots=True)
class _SecretIndex:
    """The search index of all known secrets.

    `heads` matches the first characters of all forms of the secrets. `by_head` maps these characters
    to the forms that begin with them, grouped by length, the longest first.
    """

    heads: re.Pattern[str] | None = None
    by_head: Mapping[str, tuple[tuple[int, Mapping[str, str]], ...]] = field(
        default_factory=dict[str, tuple[tuple[int, Mapping[str, str]], ...]], repr=False
    )
    names: frozenset[str] = frozenset()
    unredacted_names: frozenset[str] = frozenset()


def _build_index(secrets: Iterable[tuple[str, str]]) -> _SecretIndex:
    found: dict[str, str] = {}  # form -> placeholder
    names: set[str] = set()
    unmasked: set[str] = set()
    room = FORMS_CHARS_MAX
    ordered = sorted(dict(secrets).items(), key=lambda each: (-len(each[1]), each[0]))
    values = [value for _, value in ordered if len(value) >= SECRET_CHARS_MIN]
    for name, value in ordered:
        forms = list_encoded_forms(value) if SECRET_CHARS_MIN <= len(value) <= SECRET_CHARS_MAX else frozenset[str]()
        size = sum(map(len, forms))
        if not forms or len(names) == SECRETS_MAX or size > room:
            unmasked.add(name)
            continue
        room -= size
        names.add(name)
        # The name itself may contain a secret value.
        instead = build_placeholder("unnamed" if any(each in build_placeholder(name) for each in values) else name)
        for form in forms:
            found.setdefault(form, instead)
    by_head: dict[str, dict[int, dict[str, str]]] = {}
    for form, instead in found.items():
        by_head.setdefault(form[:SECRET_CHARS_MIN], {}).setdefault(len(form), {})[form] = instead
    if not by_head:
        return _SecretIndex(unredacted_names=frozenset(unmasked))
    return _SecretIndex(
        heads=re.compile(_build_trie_pattern(sorted(by_head))),
        by_head={head: tuple(sorted(lengths.items(), key=lambda each: -each[0])) for head, lengths in by_head.items()},
        names=frozenset(names),
        unredacted_names=frozenset(unmasked),
    )


def _build_trie_pattern(words: list[str]) -> str:
    """Return one regular expression that matches any of these words of equal length. The pattern is a trie.

    A position in the text is rejected at the first character with which no word continues. The
    search therefore stays fast with thousands of words.
    """
    if len(words) == 1:
        return re.escape(words[0])
    shared = 0
    while words[0][shared : shared + 1] and words[0][shared] == words[-1][shared]:  # the words are sorted
        shared += 1
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[shared : shared + 1], []).append(word[shared:])
    inner = "|".join(_build_trie_pattern(branch) for branch in branches.values())
    return f"{re.escape(words[0][:shared])}(?:{inner})"


def _redact_values(text: str, index: _SecretIndex) -> str:
    """Replace all known secret values in one pass over the text."""
    if index.heads is None:
        return text
    pieces: list[str] = []
    done = at = 0
    search = index.heads.search
    while (found := search(text, at)) is not None:
        begin = found.start()
        for length, forms in index.by_head[found[0]]:
            instead = forms.get(text[begin : begin + length])
            if instead is not None:
                pieces += (text[done:begin], instead)
                done = at = begin + length
                break
        else:
            at = begin + 1
    return "".join((*pieces, text[done:])) if pieces else text


# --- by pattern ---


def _prefix_pattern(prefix: str, rest: str) -> re.Pattern[str]:
    """Return a pattern that matches words with this prefix, followed by `rest`.

    A lookbehind checks that the word begins with the prefix. It comes after the prefix, so that
    text without the prefix is rejected quickly.
    """
    return re.compile(rf"{re.escape(prefix)}(?<![\w-]{re.escape(prefix)}){rest}")


_HAS_DIGIT = r"(?=[\w-]{0,200}\d)"
# Required substring, pattern, name. After its prefix, a pattern matches one run of characters: no backtracking.
SECRET_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("sk-", _prefix_pattern("sk-", rf"{_HAS_DIGIT}[\w-]{{16,}}"), "api-key"),
    ("sk_live_", _prefix_pattern("sk_live_", r"\w{8,}"), "api-key"),
    ("sk_test_", _prefix_pattern("sk_test_", r"\w{8,}"), "api-key"),
    ("rk_live_", _prefix_pattern("rk_live_", r"\w{8,}"), "api-key"),
    ("whsec_", _prefix_pattern("whsec_", r"\w{16,}"), "webhook-secret"),
    *((f"gh{kind}_", _prefix_pattern(f"gh{kind}_", r"\w{16,}"), "github-token") for kind in "opusr"),
    ("github_pat_", _prefix_pattern("github_pat_", r"\w{16,}"), "github-token"),
    ("glpat-", _prefix_pattern("glpat-", r"[\w-]{16,}"), "gitlab-token"),
    ("xox", _prefix_pattern("xox", r"[a-z]-[\w-]{8,}"), "slack-token"),
    ("xapp-", _prefix_pattern("xapp-", r"[\w-]{8,}"), "slack-token"),
    ("hooks.slack.com/services/", _prefix_pattern("hooks.slack.com/services/", r"[\w/]{8,}"), "slack-webhook"),
    ("AKIA", _prefix_pattern("AKIA", r"[A-Z0-9]{12,}(?![\w-])"), "aws-key"),
    ("ASIA", _prefix_pattern("ASIA", r"[A-Z0-9]{12,}(?![\w-])"), "aws-key"),
    ("AIza", _prefix_pattern("AIza", r"[\w-]{30,}"), "google-key"),
    ("ya29.", _prefix_pattern("ya29.", r"[\w-]{16,}"), "google-token"),
    ("hf_", _prefix_pattern("hf_", r"[A-Za-z0-9]{16,}"), "huggingface-token"),
    ("npm_", _prefix_pattern("npm_", r"[A-Za-z0-9]{30,}"), "npm-token"),
    ("pypi-", _prefix_pattern("pypi-", r"[\w-]{32,}"), "pypi-token"),
    ("SG.", _prefix_pattern("SG.", r"[\w-]{16,}\.[\w-]{16,}"), "sendgrid-key"),
    ("syt_", _prefix_pattern("syt_", r"\w{16,}"), "matrix-token"),
    ("AGE-SECRET-KEY-1", _prefix_pattern("AGE-SECRET-KEY-1", r"\w{16,}"), "age-key"),
    (":AA", re.compile(r":AA(?<=\d:AA)[\w-]{30,}"), "telegram-token"),
    ("eyJ", _prefix_pattern("eyJ", r"[\w-]{6,}\.eyJ[\w-]{6,}\.[\w-]{6,}"), "jwt"),
)
_BEARER = re.compile(r"\b([Bb]earer[ \t]{1,3})(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{12,}={0,2}")
_KEY_BEGIN = "-----BEGIN "
_KEY_END = "-----END "
_KEY_TITLE = "PRIVATE KEY-----"
_TITLE_CHARS_MAX = 80
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr])*")


def redact_patterns(text: str) -> str:
    """Return the text with placeholders in place of well-known kinds of keys, bearer tokens and private keys."""
    for required, shape, name in SECRET_PATTERNS:
        if required in text:
            text = shape.sub(build_placeholder(name), text)
    if "earer" in text:
        text = _BEARER.sub(lambda found: found[1] + build_placeholder("bearer-token"), text)
    return _redact_private_keys(text) if _KEY_TITLE in text else text


def _redact_private_keys(text: str) -> str:
    """Replace private keys, from the BEGIN line to the END line.

    Without an END line, everything after the BEGIN line that could be key data is replaced.
    """
    pieces: list[str] = []
    done = end = 0
    while (begin := text.find(_KEY_BEGIN, done)) >= 0:
        title = text.find(_KEY_TITLE, begin, begin + _TITLE_CHARS_MAX)
        if title < 0:
            pieces.append(text[done : begin + len(_KEY_BEGIN)])
            done = begin + len(_KEY_BEGIN)
            continue
        pieces += (text[done:begin], build_placeholder("private-key"))
        body = title + len(_KEY_TITLE)
        if 0 <= end < body:  # one search serves all BEGIN lines before it, so text full of BEGIN lines stays linear
            end = text.find(_KEY_END, body)
        done = _find_key_end(text, body, end)
    return "".join((*pieces, text[done:]))


def _find_key_end(text: str, body: int, end: int) -> int:
    """Return the offset at which a private key ends.

    `end` is the offset of the next END line, or -1. If another BEGIN line comes before that END
    line, the key has no END line.
    """
    if end >= 0 and text.find(_KEY_BEGIN, body, end) < 0:
        title = text.find(_KEY_TITLE, end, end + _TITLE_CHARS_MAX)
        if title >= 0:
            return title + len(_KEY_TITLE)
    found = _KEY_BODY.match(text, body)
    return found.end() if found is not None else body


class Redactor:
    """Redacts secrets in text. Safe to use from several threads.

    `set_secrets` replaces the search index in one step, so a concurrent call uses either the old
    index or the new one.
    """

    __slots__ = ("_index",)

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._index = _build_index((secrets or {}).items())

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        """Replace all known secrets with the given ones. `secrets` maps names to values."""
        self._index = _build_index(secrets.items())

    def redact(self, text: str) -> str:
        """Return the text with a placeholder for each secret. All known values are found in one pass."""
        return redact_patterns(_redact_values(text, self._index))

    def redact_values(self, text: str) -> str:
        """Redact known secret values only. Use this for text with strings that look like keys but must stay."""
        return _redact_values(text, self._index)

    @property
    def redacted_names(self) -> frozenset[str]:
        """The names of the secrets that are redacted."""
        return self._index.names

    @property
    def unredacted_names(self) -> frozenset[str]:
        """The names of the secrets that are not redacted: they are too short or too long, or there are too many."""
        return self._index.unredacted_names

    def __repr__(self) -> str:
        return f"Redactor({len(self._index.names)} secrets)"


def redact_part(text: str, begin: int, end: int, redact: Callable[[str], str]) -> str:
    """Return the redacted part of the text from `begin` to `end`, for callers that show long text in parts.

    The text around the part is searched too, so a secret that is only partly in the part is also
    redacted.
    """
    before, after = text[max(0, begin - OVERLAP_CHARS) : begin], text[end : end + OVERLAP_CHARS]
    whole = redact(before + text[begin:end] + after)
    # Text that is redacted the same with and without its neighbor does not span the boundary.
    whole = whole[_common_prefix_length(redact(before), whole) :]
    return whole[: len(whole) - _common_prefix_length(redact(after)[::-1], whole[::-1])]


def _common_prefix_length(one: str, other: str) -> int:
    """Return how many characters two strings have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), len(other))


def redact_error(error: E, redact: Callable[[str], str]) -> E:
    """Redact the texts of an error in place, and return the error."""
    error.sentence, error.because, error.try_this = map(redact, (error.sentence, error.because, error.try_this))
    error.args = (error.sentence,)
    return error
