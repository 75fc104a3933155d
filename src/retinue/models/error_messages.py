"""Turns provider errors into `ModelFailed`, with a classified failure and text for a person.

The status is considered first, then the typed parts of the body, then its message: messages change
and mislead.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never

from msgspec import Struct

from retinue.domain.model import Failure, ModelFailed
from retinue.models.error_classification import Said, reason, said_in
from retinue.models.retry_after import retry_after_s

WORDS_SHOWN_CHARS_MAX = 300
MASK = "***"
SECRET_CHARS_MIN = 6  # a shorter one also occurs inside words


def refused(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelFailed:
    """Build the error for a response other than 200."""
    if status < 400:
        return _moved(provider, status, headers.get("location", ""))
    said = said_in(body)
    failure = reason(status, said)
    delay_s = retry_after_s(failure, {name.lower(): value for name, value in headers.items()}, said)
    return _failed(provider, failure, said, status=status, retry_after_s=delay_s)


def in_stream(provider: str, error: Any, *, status: int = 200) -> ModelFailed:
    """Build the error for an error in place of a reply: in the stream, or as the body of a 200."""
    said = said_in(error)
    failure = reason(status, said)
    return _failed(provider, failure, said, status=status, retry_after_s=retry_after_s(failure, {}, said), begun=True)


def known(
    provider: str,
    failure: Failure,
    error: Any,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    begun: bool = False,
) -> ModelFailed:
    """Build the error for a failure that a library has already classified."""
    said = said_in(error)
    delay_s = retry_after_s(failure, {name.lower(): value for name, value in (headers or {}).items()}, said)
    return _failed(provider, failure, said, status=status or 0, retry_after_s=delay_s, begun=begun)


def too_slow(provider: str, *, begun: bool, patience_s: float) -> ModelFailed:
    """Build the error for a timeout. The provider may have made the reply anyway, and may charge for it."""
    return ModelFailed(
        f"{provider} fell silent in the middle of its reply" if begun else f"{provider} did not begin to reply in time",
        because=f"nothing came from it for {patience_s:g} seconds",
        try_this="ask again, or raise `silence_s` or `first_byte_s` under `[models]`",
        code="model.timeout",
        failure=Failure.TIMEOUT,
        begun=True,
    )


def unreachable(provider: str, error: Exception, *, begun: bool) -> ModelFailed:
    """Build the error for a failed connection. `begun`: after a part of the reply."""
    because, try_this, sent = _why_unreachable(error)
    return ModelFailed(
        f"the connection to {provider} broke off" if begun else f"{provider} could not be reached",
        because=because,
        try_this=try_this,
        code="model.connection",
        failure=Failure.CONNECTION,
        begun=begun or sent,
    )


def too_long(provider: str, bytes_max: int) -> ModelFailed:
    return ModelFailed(
        f"{provider} sent far too much",
        because=f"its reply has more than {bytes_max:,} bytes",
        try_this="ask again, and for less",
        code="model.malformed",
        failure=Failure.MALFORMED,
        begun=True,
    )


def broke_off(provider: str) -> ModelFailed:
    """Build the error for a stream that ended in the middle of a reply."""
    return ModelFailed(
        f"{provider} broke off in the middle of its reply",
        because="its stream ended without an end",
        try_this="ask again",
        code="model.broke-off",
        failure=Failure.CONNECTION,
        begun=True,
    )


def _moved(provider: str, status: int, location: str) -> ModelFailed:
    host = re.match(r"https?://([\w.:\[\]-]{1,200})", location, re.I)
    return ModelFailed(
        f"{provider} says that it has moved",
        because=f"it answered {status}"
        + (f" and points to {host[1]}" if host else "")
        + "; a key is sent to the host it is for, and follows nobody elsewhere",
        try_this=f"set the `url` of the provider {provider} to where it is now",
        code="model.moved",
        failure=Failure.NOT_FOUND,
        status=status,
    )


# The text for a network error: reason, next step, and whether the request may have arrived.
_Why = tuple[str, str, bool]


def _why_unreachable(error: Exception) -> _Why:
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                because = "its certificate cannot be trusted: " + clean(cause.verify_message or "it does not check out")
                return because, "check its `url`, the clock of this machine and its list of authorities", False
            case ssl.SSLError():
                return "no secure connection could be agreed on", "check that its `url` begins as it should", False
            case socket.gaierror():
                return "its name is known to no name server that was asked", "check its `url` and the network", False
            case ConnectionRefusedError():
                return "nobody listens there", "check its `url`, and whether it is running", False
            case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
                return "the other side ended the connection", "ask again", True
            case OSError() if cause.errno is not None and not isinstance(cause, ConnectionError):
                return f"the network says: {clean(cause.strerror or '')}", "check the network", False
            case _:
                pass
    return "the other side ended the connection, or answered in no way that HTTP knows", "ask again", True


def _causes(error: Exception) -> Iterator[BaseException]:
    """Yield an error and its causes, innermost first: the outer ones only wrap it."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(chain) < 10:
        chain.append(following)
        following = following.__cause__
    return reversed(chain)


class _Wording(Struct, frozen=True):
    sentence: str
    because: str
    try_this: str
    code: str


def _failed(
    provider: str,
    failure: Failure,
    said: Said,
    *,
    status: int,
    retry_after_s: float | None = None,
    begun: bool = False,
) -> ModelFailed:
    words = clean(said.message)
    wording = _wording(provider, failure, status)
    return ModelFailed(
        wording.sentence,
        because=f"it says: {words}" if words else wording.because,
        try_this=wording.try_this,
        code=wording.code,
        failure=failure,
        status=status,
        retry_after_s=retry_after_s,
        begun=begun,
    )


def _wording(provider: str, failure: Failure, status: int) -> _Wording:
    match failure:
        case Failure.AUTH:
            return _Wording(
                f"{provider} does not take the key",
                because="it was revoked, or copied with a character missing",
                try_this="put another where this one is kept (`retinue credential list` says where), "
                "or give one with `retinue credential add`",
                code="model.auth",
            )
        case Failure.PERMISSION:
            return _Wording(
                f"{provider} does not allow this key to ask",
                because="the key has no right to this model, or this place is not served",
                try_this="look at the key's rights with the provider, or choose another model",
                code="model.permission",
            )
        case Failure.QUOTA:
            return _Wording(
                f"there is nothing left to spend at {provider}",
                because="the account has no credit, or has reached its own limit",
                try_this="top it up or raise its limit with the provider, or name a fallback model",
                code="model.quota",
            )
        case Failure.RATE_LIMIT:
            return _Wording(
                f"{provider} was asked too often",
                because="it limits requests and tokens by the minute or the day",
                try_this="wait a little; a second key or a fallback model helps where it comes often",
                code="model.rate-limit",
            )
        case Failure.OVERLOADED:
            return _Wording(
                f"{provider} has more to do than it can",
                because="too many ask it at once",
                try_this="wait a little, or name a fallback model",
                code="model.overloaded",
            )
        case Failure.SERVER:
            return _Wording(
                f"{provider} failed at its end",
                because=f"it answered {status} without a reason",
                try_this="ask again; the provider's status page may know more",
                code="model.server",
            )
        case Failure.TIMEOUT:
            return _Wording(
                f"{provider} took too long by its own measure",
                because=f"it answered {status}",
                try_this="ask again, or for less at once",
                code="model.timeout",
            )
        case Failure.CONNECTION:
            return _Wording(
                f"the connection to {provider} broke off",
                because="the other side ended it",
                try_this="ask again",
                code="model.connection",
            )
        case Failure.CONTEXT_OVERFLOW:
            return _Wording(
                f"this conversation is longer than the model of {provider} can have in mind",
                because="everything said so far, the tools and the reply must fit into its window",
                try_this="say `/compact` to have it told in short, or `/new` to begin afresh",
                code="model.context-overflow",
            )
        case Failure.TOO_LARGE:
            return _Wording(
                f"what was sent is too large for {provider}",
                because="it takes only so many bytes or tokens in one request",
                try_this="leave out large files, or say `/compact` or `/new`",
                code="model.too-large",
            )
        case Failure.NOT_FOUND:
            return _Wording(
                f"{provider} does not have this model",
                because="the name is wrong, it was withdrawn, or the provider's `url` is another",
                try_this="`retinue models` shows what there is",
                code="model.not-found",
            )
        case Failure.CONTENT_FILTER:
            return _Wording(
                f"{provider} will not answer this",
                because="its filter took offence at something in the conversation",
                try_this="say it otherwise, or begin afresh with `/new`",
                code="model.content-filter",
            )
        case Failure.BAD_REQUEST:
            return _Wording(
                f"{provider} did not understand what it was sent",
                because=f"it answered {status} without a reason",
                try_this="check the model's `params`; where the conversation is the reason, `/new` begins afresh",
                code="model.bad-request",
            )
        case Failure.MALFORMED:
            return _Wording(
                f"{provider} answered with something that is no reply",
                because="it could not make a whole one",
                try_this="ask again; if it stays so, check the provider's `url` and `format`",
                code="model.malformed",
            )
    assert_never(failure)


# What looks like a key: a known prefix, what follows "key:" or "Bearer", a long alphanumeric run.
_SECRETS = (
    re.compile(
        r"\b(?:(?:sk|pk|rk|xai|gsk|csk|hf|ghp|gho|nvapi|pplx|r8|tgp|fw)[-_]|AIza|ya29\.|eyJ)[\w.*+/=-]{6,}",
    ),
    re.compile(r"(?i)\b((?:api[ _-]?key|bearer|token|secret|password)(?: provided)?\s?[:=]\s?[\"'`]?)[^\s\"'`,;]{4,}"),
    re.compile(r"(?i)\b(bearer )[^\s\"'`,;]{8,}"),
    re.compile(r"\b(?!req_)(?=[A-Za-z_]{0,80}\d)(?=[0-9_]{0,80}[A-Za-z])[A-Za-z0-9_]{24,}\b"),
)


def clean(message: str) -> str:
    """Return a provider's message for a person: on one line, shortened, with keys redacted."""
    words = " ".join(message[: 4 * WORDS_SHOWN_CHARS_MAX].split())
    for pattern in _SECRETS:
        words = pattern.sub(lambda found: (found[1] if found.re.groups else "") + MASK, words)
    words = "".join(char for char in words if char.isprintable())
    return words if len(words) <= WORDS_SHOWN_CHARS_MAX else f"{words[: WORDS_SHOWN_CHARS_MAX - 1]}…"


def masked(failed: ModelFailed, secrets: Iterable[str]) -> ModelFailed:
    """Redact our own credentials from a failure.

    Some servers quote them in errors, and not every key looks like one.
    """
    sentence, because = failed.sentence, failed.because
    for secret in secrets:
        if len(secret) >= SECRET_CHARS_MIN:
            sentence, because = sentence.replace(secret, MASK), because.replace(secret, MASK)
    if (sentence, because) == (failed.sentence, failed.because):
        return failed
    return ModelFailed(
        sentence,
        because=because,
        try_this=failed.try_this,
        code=failed.code,
        failure=failed.failure,
        status=failed.status,
        retry_after_s=failed.retry_after_s,
        begun=failed.begun,
    )
