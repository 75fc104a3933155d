"""Classifies a provider's error: by the HTTP status, then the typed parts of its body, then its message.

Messages change and mislead: "too many tokens" is a rate limit with one provider and a context
overflow with another. They are matched as plain phrases, in a limited text, and only if nothing
typed has decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.domain.model import Failure

WORDS_CHARS_MAX = 4_000  # how much of a message is searched
NODES_MAX = 200  # how much of a body is visited
DEPTH_MAX = 6


class Said(Struct, frozen=True, kw_only=True):
    """A parsed error body: its message, its typed codes in lower case from the outside in, a status and a delay."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    retry_s: float | str | None = None  # as given: a number of seconds, or "34s"


def said_in(body: Any) -> Said:
    """Parse an error body, as bytes or already decoded, in any of the shapes that providers use."""
    walk = _Walk()
    walk.into(_decoded(body), 0)
    best = max(walk.messages, key=lambda found: found[0], default=(0, ""))
    return Said(message=best[1], codes=tuple(walk.codes), status=walk.status, retry_s=walk.retry_s)


_TYPED = ("type", "code", "status", "reason", "error_type", "error_code", "statusCode", "status_code", "__type")
_WORDS = ("message", "msg", "detail", "error", "errors", "error_message", "title")
_INSIDE = (
    "error",
    "errors",
    "details",
    "detail",
    "innererror",
    "inner_error",
    "message",
    "metadata",
    "raw",
    "response",
)
_DELAYS = ("retryDelay", "retry_after", "retry_after_seconds", "resets_in_seconds")
_SAYS_NOTHING = frozenset({"provider returned error", "error", "bad request", "internal server error"})


class _Walk:
    """Walks through a body once, from the outside in and limited, and collects what it finds."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str]] = []
        self.codes: list[str] = []
        self.status: int | None = None
        self.retry_s: float | str | None = None
        self._nodes = 0

    def into(self, value: Any, depth: int) -> None:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            return
        match value:
            case str():
                self._words(value, depth)
            case dict():
                self._mapping(cast("dict[str, Any]", value), depth)
            case list():
                for part in cast("list[Any]", value):
                    self.into(part, depth + 1)
            case _:
                pass

    def _mapping(self, found: Mapping[str, Any], depth: int) -> None:
        for name in _TYPED:
            self._typed(found.get(name))
        for name in _DELAYS:
            if self.retry_s is None and isinstance(delay := found.get(name), int | float | str):
                self.retry_s = delay
        for name in _WORDS:
            if isinstance(words := found.get(name), str):
                self._words(words, depth)
        for name in _INSIDE:
            inside = found.get(name)
            if isinstance(inside, dict | list) or (name == "raw" and isinstance(inside, str)):
                self.into(inside, depth + 1)

    def _typed(self, value: Any) -> None:
        match value:
            case bool():
                pass
            case int() if 400 <= value <= 599:
                self.status = self.status or value
            case str() if value:
                self.codes.append(value.lower().replace("-", "_").replace(" ", "_"))
            case _:
                pass

    def _words(self, words: str, depth: int) -> None:
        """Add a message. It may contain the body of another error: proxies like to quote it whole."""
        words = words.strip()
        at = words.find("{")
        inner = _decoded(words[at:]) if at >= 0 and depth < DEPTH_MAX else ""
        if isinstance(inner, dict | list):
            self.into(inner, depth + 1)
            words = words[:at].rstrip(" -:[\n")
        if words and words[0] not in "{[":  # the rest of a truncated body is not worth showing
            # The first informative message wins. Later ones repeat it or come from a proxy.
            worth = 0 if words.lower() in _SAYS_NOTHING else 1
            self.messages.append((worth, words))


_HTML = re.compile(r"\s*<(?:!doctype|html|head|\?xml)", re.I)


def _decoded(body: Any) -> Any:
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if not isinstance(body, str):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "" if _HTML.match(body) else body  # an HTML page means nothing to a person here


# Codes that decide alone. Codes that say no more than the status are not listed.
_CODES: Mapping[str, Failure] = {
    code: failure
    for failure, codes in {
        Failure.AUTH: "authentication_error invalid_api_key api_key_invalid unauthenticated invalid_authentication"
        " invalid_authentication_error unauthorized invalid_token expired_token token_expired account_deactivated"
        " unrecognizedclientexception api_key_expired invalid_x_api_key",
        Failure.PERMISSION: "permission_error permission_denied forbidden access_denied accessdeniedexception"
        " unsupported_country_region_territory service_disabled consumer_suspended api_key_service_blocked"
        " access_terminated_error",
        Failure.QUOTA: "insufficient_quota billing_error billing_not_active billing_hard_limit_reached"
        " insufficient_balance insufficient_credits insufficient_funds payment_required credit_balance_too_low"
        " exceeded_current_quota_error arrearage billing_disabled personal_team_blocked:spending_limit",
        Failure.RATE_LIMIT: "rate_limit_error rate_limit_exceeded rate_limited rate_limit rate_limit_reached"
        " rate_limit_reached_error ratelimitreached resource_exhausted too_many_requests throttlingexception throttling"
        " service_tier_capacity_exceeded usage_limit_reached model_rate_limit tokens_usage_based requests_limit",
        Failure.OVERLOADED: "overloaded_error overloaded server_is_overloaded slow_down engine_overloaded"
        " engine_overloaded_error model_overloaded unavailable modelnotreadyexception",
        Failure.TIMEOUT: "timeout_error deadline_exceeded request_timeout timeout modeltimeoutexception",
        Failure.CONTEXT_OVERFLOW: "context_length_exceeded context_window_exceeded model_context_window_exceeded"
        " exceed_context_size_error model_max_prompt_tokens_exceeded tokens_limit_reached prompt_too_long"
        " context_limit_exceeded context_exceeded contextwindowexceedederror",
        Failure.TOO_LARGE: "request_too_large payload_too_large request_entity_too_large string_above_max_length",
        Failure.NOT_FOUND: "model_not_found not_found_error not_found deploymentnotfound invalid_model unknown_model"
        " model_decommissioned model_not_available model_not_exist resource_not_found model_not_supported"
        " unknownmodel",
        Failure.CONTENT_FILTER: "content_filter content_policy_violation responsibleaipolicyviolation invalid_prompt"
        " data_inspection_failed content_filtered moderation_blocked safety image_content_policy_violation"
        " prohibited_content",
        Failure.MALFORMED: "malformed_function_call",
    }.items()
    for code in codes.split()
}

# Codes inside a stream, where there is no status. They decide only if nothing else does.
_VAGUE: Mapping[str, Failure] = {
    code: failure
    for failure, codes in {
        Failure.BAD_REQUEST: "invalid_request_error invalid_argument bad_request tool_use_failed failed_precondition",
        Failure.SERVER: "server_error api_error internal_error internal internal_server_error unknown",
    }.items()
    for code in codes.split()
}

# A phrase matches if it occurs in the message; "a & b" if both parts do.
_PHRASES: Mapping[Failure, tuple[str, ...]] = {
    failure: tuple(phrases.split(" | "))
    for failure, phrases in {
        Failure.RATE_LIMIT: "rate limit | rate-limit | ratelimit | rate_limit | too many requests"
        " | too many tokens, please wait | tokens per min | requests per min | tokens per day"
        " | requests per day | (tpm) | (rpm) | throttl | usage limit has been reached"
        " | quota exceeded for | too many concurrent | concurrency limit"
        " | resource has been exhausted",
        Failure.AUTH: "api key not valid | api key not found | invalid api key | incorrect api key"
        " | invalid x-api-key | invalid api-key | api key expired | api key is invalid"
        " | api key & leaked | invalid authentication | invalid bearer token"
        " | unregistered callers | auth credentials found | provide an api key"
        " | oauth token has expired | authentication fails",
        Failure.QUOTA: "credit balance is too low | insufficient balance | insufficient credit"
        " | insufficient fund | insufficient_quota | exceeded your current quota"
        " | exceeded your monthly included credits | billing hard limit"
        " | specified api usage limits | payment required | check your billing"
        " | requires more credits | requires billing | enable billing | billing is not enabled"
        " | billing account | spending limit | spend limit | out of credits | have any credits"
        " | used all available credits | please recharge",
        Failure.CONTEXT_OVERFLOW: "maximum context length | context length exceeded | context_length_exceeded"
        " | exceeds the context window | exceeds the context length"
        " | exceeds the available context size | exceed context limit"
        " | context window exceeds limit | context size has been exceeded"
        " | greater than the context length | longer than the model's context length"
        " | longer than the maximum model length | model is loaded with context length"
        " | prompt is too long | prompt exceeds max length | input is too long for"
        " | input token count & exceeds | prompt token count & exceeds | maximum prompt length"
        " | reduce the length of the messages | tokens in the prompt cannot exceed"
        " | tokens + `max_new_tokens` must be | `inputs` must have less than"
        " | range of input length should be | exceeded model token limit | max size: & tokens"
        " | prompt too long | exceeded max context length | context length is only"
        " | too long to fit into the model | contextwindowexceedederror | exceed context window"
        " | exceeds context size | configured context size is | maximum allowed input length"
        " | input tokens exceed the configured limit",
        Failure.NOT_FOUND: "model & does not exist | model & not found | model not exist | not a valid model"
        " | unknown model | invalid model | no such model | model & decommissioned"
        " | model & is not available | model & not supported when using",
        Failure.PERMISSION: "location is not supported | not available in your country | not available in your region",
        Failure.CONTENT_FILTER: "content management policy | content policy | content filter | usage polic"
        " | content exists risk | inappropriate content | input was flagged | prompt was flagged"
        " | safety system | blocked by & safety",
        Failure.TOO_LARGE: "request too large | request is too large | request entity too large"
        " | request exceeds the maximum size | payload size exceeds | payload too large"
        " | body too large | string too long",
        Failure.OVERLOADED: "overloaded | over capacity | at capacity | high demand | no available capacity"
        " | insufficient capacity | server is busy",
        Failure.TIMEOUT: "timed out | deadline exceeded | timeout",
    }.items()
}


# A retired model. The same words about a parameter of a model mean something else.
_GONE = re.compile(
    r"(?<!for this )(?<!of this )(?<!with this )\bmodels?\b"
    r"(?:(?!parameter|argument|field|option|header|tool|feature|endpoint).){0,120}?"
    r"\b(?:has been|have been|was|were|is|are)(?: now| already)? "
    r"(?:deprecated|retired|decommissioned|discontinued|sunset|shut ?down|turned off"
    r"|no longer (?:available|accessible|offered))"
)

_CONTEXT = ("context window", "context length", "context size", "context limit")


def reason(status: int, said: Said) -> Failure:
    """Return why a provider refused."""
    typed = next((_CODES[code] for code in said.codes if code in _CODES), None)
    spoken = _Spoken(said.message)
    match status:
        case 401:
            return Failure.QUOTA if typed is Failure.QUOTA else Failure.AUTH
        case 402:
            return Failure.QUOTA
        case 403:
            return _one_of(typed, spoken, Failure.QUOTA, Failure.CONTENT_FILTER, Failure.AUTH) or Failure.PERMISSION
        case 404 | 405 | 410:
            return Failure.NOT_FOUND
        case 408 | 504 | 522 | 524:
            return Failure.TIMEOUT
        case 413:
            return Failure.CONTEXT_OVERFLOW if _overflows(typed, spoken) else Failure.TOO_LARGE
        case 429:
            return _too_much(typed, spoken)
        case 529:
            return Failure.OVERLOADED
        case _ if status >= 500:
            return _server(typed, spoken)
        case _ if status >= 400:
            return _request(typed, spoken)
        case _:
            return _untold(said, typed, spoken)


def _one_of(typed: Failure | None, spoken: _Spoken, *failures: Failure) -> Failure | None:
    if typed in failures:
        return typed
    return spoken.first(*failures)


def _overflows(typed: Failure | None, spoken: _Spoken) -> bool:
    """Whether a request is too large in tokens, not in bytes: any mention of the context says so."""
    return typed is Failure.CONTEXT_OVERFLOW or spoken.of(Failure.CONTEXT_OVERFLOW) or spoken.of_context()


def _too_much(typed: Failure | None, spoken: _Spoken) -> Failure:
    """Classify a 429. It is never a context overflow, whatever its message says about tokens and limits."""
    if typed is Failure.QUOTA or typed is Failure.OVERLOADED:
        return typed
    if typed is None and not spoken.of(Failure.RATE_LIMIT) and spoken.of(Failure.QUOTA):
        return Failure.QUOTA
    return Failure.RATE_LIMIT


_OF_SERVERS = (Failure.OVERLOADED, Failure.CONTEXT_OVERFLOW, Failure.RATE_LIMIT, Failure.QUOTA, Failure.TIMEOUT)


def _server(typed: Failure | None, spoken: _Spoken) -> Failure:
    if typed is not None and typed in _OF_SERVERS:
        return typed
    return spoken.first(Failure.OVERLOADED, Failure.CONTEXT_OVERFLOW) or Failure.SERVER


_OF_REQUESTS = (
    Failure.AUTH,
    Failure.QUOTA,
    Failure.PERMISSION,
    Failure.CONTEXT_OVERFLOW,
    Failure.NOT_FOUND,
    Failure.CONTENT_FILTER,
    Failure.TOO_LARGE,
    Failure.RATE_LIMIT,
)


def _request(typed: Failure | None, spoken: _Spoken) -> Failure:
    return typed or spoken.first(*_OF_REQUESTS) or Failure.BAD_REQUEST


def _untold(said: Said, typed: Failure | None, spoken: _Spoken) -> Failure:
    """Classify an error in place of a reply. Its status may be inside the body."""
    if said.status is not None:
        return reason(said.status, said)
    vague = next((_VAGUE[code] for code in said.codes if code in _VAGUE), Failure.SERVER)
    if vague is Failure.BAD_REQUEST:
        return typed or spoken.first(*_OF_REQUESTS) or vague
    return typed or spoken.first(Failure.OVERLOADED, *_OF_REQUESTS, Failure.TIMEOUT) or vague


class _Spoken:
    """Matches the message of an error against the phrases of each failure."""

    def __init__(self, message: str) -> None:
        self._words = message[:WORDS_CHARS_MAX].lower().replace("\u2019", "'")

    def first(self, *failures: Failure) -> Failure | None:
        return next((failure for failure in failures if self.of(failure)), None)

    def of(self, failure: Failure) -> bool:
        if failure is Failure.NOT_FOUND and _GONE.search(self._words):
            return True
        if failure is Failure.CONTEXT_OVERFLOW and self._has(_PHRASES[Failure.RATE_LIMIT]):
            return False  # rate limits mention tokens too, and compaction does not help against them
        return self._has(_PHRASES[failure])

    def of_context(self) -> bool:
        """Whether the message mentions the size of the model's context."""
        return self._has(_CONTEXT) and not self._has(_PHRASES[Failure.RATE_LIMIT])

    def _has(self, phrases: Sequence[str]) -> bool:
        return any(all(part in self._words for part in phrase.split(" & ")) for phrase in phrases)
