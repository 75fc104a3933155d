"""Turns provider errors into `ModelFailed`, with a classified failure and text for a person.

The status is considered first, then the error codes in the body, then its message, because messages
change and mislead.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.models.error_classification import ErrorBody, classify_failure, parse_error_body
from retinue.models.errors import (
    PROVIDER_ERRORS,
    ModelConnectionFailed,
    ProviderAnswer,
    ProviderFailed,
    ProviderMoved,
)
from retinue.models.retry_after import find_retry_after_s

MESSAGE_SHOWN_CHARS_MAX = 300
REDACTION = "***"
SECRET_CHARS_MIN = 6  # a shorter secret could also occur inside words


def build_response_error(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelFailed:
    """Build the error for a response whose HTTP status is not 200."""
    if status < 400:
        return _build_redirect_error(provider, status, headers.get("location", ""))
    error_body = parse_error_body(body)
    failure = classify_failure(status, error_body)
    delay_s = find_retry_after_s(failure, {name.lower(): value for name, value in headers.items()}, error_body)
    return _build_error(provider, failure, error_body, status=status, retry_after_s=delay_s)


def build_stream_error(provider: str, error: Any, *, status: int = 200) -> ModelFailed:
    """Build the error for a provider that reports an error despite status 200, in the stream or in the body."""
    error_body = parse_error_body(error)
    failure = classify_failure(status, error_body)
    return _build_error(
        provider,
        failure,
        error_body,
        status=status,
        retry_after_s=find_retry_after_s(failure, {}, error_body),
        begun=True,
    )


def build_classified_error(
    provider: str,
    failure: ModelFailureKind,
    error: Any,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    begun: bool = False,
) -> ModelFailed:
    """Build the error for a failure that a library has already classified."""
    error_body = parse_error_body(error)
    delay_s = find_retry_after_s(failure, {name.lower(): value for name, value in (headers or {}).items()}, error_body)
    return _build_error(provider, failure, error_body, status=status or 0, retry_after_s=delay_s, begun=begun)


def build_connection_error(provider: str, error: Exception, *, begun: bool) -> ModelConnectionFailed:
    """Build the error for a failed connection. `begun` is true if a part of the reply had arrived."""
    because, try_this, sent = _explain_connection_error(error)
    return ModelConnectionFailed(
        provider, because=because, try_this=try_this, begun=begun, may_be_charged=begun or sent
    )


def _build_redirect_error(provider: str, status: int, location: str) -> ProviderMoved:
    host = re.match(r"https?://([\w.:\[\]-]{1,200})", location, re.I)
    return ProviderMoved(provider, status=status, host=host[1] if host else "")


# The text for a network error: reason, next step, and whether the request may have arrived.
_ConnectionErrorText = tuple[str, str, bool]


def _explain_connection_error(error: Exception) -> _ConnectionErrorText:
    for cause in _list_causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                because = (
                    f"its certificate is not valid: {clean_message(cause.verify_message or 'verification failed')}"
                )
                return because, "check its `url`, and the clock and the CA certificates of this machine", False
            case ssl.SSLError():
                return "the TLS handshake failed", "check whether its `url` must begin with http:// or https://", False
            case socket.gaierror():
                return "its host name could not be resolved", "check its `url` and the network", False
            case ConnectionRefusedError():
                return "the connection was refused", "check its `url`, and whether it is running", False
            case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
                return "the other side closed the connection", "send the message again", True
            case OSError() if cause.errno is not None and not isinstance(cause, ConnectionError):
                return f"network error: {clean_message(cause.strerror or 'unknown')}", "check the network", False
            case _:
                pass
    return "the other side closed the connection, or its answer is not HTTP", "send the message again", True


def _list_causes(error: Exception) -> Iterator[BaseException]:
    """Yield an error and its causes, innermost first, because the outer errors only wrap the inner ones."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(chain) < 10:
        chain.append(following)
        following = following.__cause__
    return reversed(chain)


def _build_error(
    provider: str,
    failure: ModelFailureKind,
    error_body: ErrorBody,
    *,
    status: int,
    retry_after_s: float | None = None,
    begun: bool = False,
) -> ProviderFailed:
    message = clean_message(error_body.message)
    answer = ProviderAnswer(
        because=f"it says: {message}" if message else "", status=status, retry_after_s=retry_after_s, begun=begun
    )
    return PROVIDER_ERRORS[failure](provider, answer)


# What looks like a key: a known prefix, what follows "key:" or "Bearer", a long alphanumeric run.
_KEY_PATTERNS = (
    re.compile(
        r"\b(?:(?:sk|pk|rk|xai|gsk|csk|hf|ghp|gho|nvapi|pplx|r8|tgp|fw)[-_]|AIza|ya29\.|eyJ)[\w.*+/=-]{6,}",
    ),
    re.compile(r"(?i)\b((?:api[ _-]?key|bearer|token|secret|password)(?: provided)?\s?[:=]\s?[\"'`]?)[^\s\"'`,;]{4,}"),
    re.compile(r"(?i)\b(bearer )[^\s\"'`,;]{8,}"),
    re.compile(r"\b(?!req_)(?=[A-Za-z_]{0,80}\d)(?=[0-9_]{0,80}[A-Za-z])[A-Za-z0-9_]{24,}\b"),
)


def clean_message(message: str) -> str:
    """Return a provider's message for a person: on one line, shortened, with keys redacted."""
    text = " ".join(message[: 4 * MESSAGE_SHOWN_CHARS_MAX].split())
    for pattern in _KEY_PATTERNS:
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + REDACTION, text)
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= MESSAGE_SHOWN_CHARS_MAX else f"{text[: MESSAGE_SHOWN_CHARS_MAX - 1]}…"


def redact_failure(failed: ModelFailed, secrets: Iterable[str]) -> ModelFailed:
    """Remove our own credentials from the error of a failed model call.

    Some servers quote the key in their errors, and a pattern cannot recognize every key.
    """
    sentence, because = failed.sentence, failed.because
    for secret in secrets:
        if len(secret) >= SECRET_CHARS_MIN:
            sentence, because = sentence.replace(secret, REDACTION), because.replace(secret, REDACTION)
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
        may_be_charged=failed.may_be_charged,
    )
