"""Classifies a provider's error: by the HTTP status, then the error codes in its body, then its message.

Messages change and mislead: "too many tokens" is a rate limit with one provider and a context
overflow with another. The message therefore counts only if the codes did not decide. Only the
beginning of the message is searched, for fixed phrases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.domain.model import ModelFailureKind

MESSAGE_CHARS_MAX = 4_000  # characters of a message that are searched
NODES_MAX = 200  # nodes of a body that are visited
DEPTH_MAX = 6


class ErrorBody(Struct, frozen=True, kw_only=True):
    """A parsed error body: its message, its codes (lower case, outermost first), a status and a retry delay."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    retry_s: float | str | None = None  # as given: a number of seconds, or "34s"


def parse_error_body(body: Any) -> ErrorBody:
    """Parse an error body, as bytes or already decoded, in any of the shapes that providers use."""
    walk = _ErrorBodyWalker()
    walk.visit(_decode_body(body), 0)
    best = max(walk.messages, key=lambda found: found[0], default=(0, ""))
    return ErrorBody(message=best[1], codes=tuple(walk.codes), status=walk.status, retry_s=walk.retry_s)


_CODE_FIELDS = ("type", "code", "status", "reason", "error_type", "error_code", "statusCode", "status_code", "__type")
_MESSAGE_FIELDS = ("message", "msg", "detail", "error", "errors", "error_message", "title")
_NESTED_FIELDS = (
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
_DELAY_FIELDS = ("retryDelay", "retry_after", "retry_after_seconds", "resets_in_seconds")
_UNINFORMATIVE = frozenset({"provider returned error", "error", "bad request", "internal server error"})


class _ErrorBodyWalker:
    """Collects codes, messages and delays from a nested error body, outermost first, up to a limit."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str]] = []
        self.codes: list[str] = []
        self.status: int | None = None
        self.retry_s: float | str | None = None
        self._nodes = 0

    def visit(self, value: Any, depth: int) -> None:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            return
        match value:
            case str():
                self._add_message(value, depth)
            case dict():
                self._visit_object(cast("dict[str, Any]", value), depth)
            case list():
                for part in cast("list[Any]", value):
                    self.visit(part, depth + 1)
            case _:
                pass

    def _visit_object(self, found: Mapping[str, Any], depth: int) -> None:
        for name in _CODE_FIELDS:
            self._add_code(found.get(name))
        for name in _DELAY_FIELDS:
            if self.retry_s is None and isinstance(delay := found.get(name), int | float | str):
                self.retry_s = delay
        for name in _MESSAGE_FIELDS:
            if isinstance(words := found.get(name), str):
                self._add_message(words, depth)
        for name in _NESTED_FIELDS:
            inside = found.get(name)
            if isinstance(inside, dict | list) or (name == "raw" and isinstance(inside, str)):
                self.visit(inside, depth + 1)

    def _add_code(self, value: Any) -> None:
        match value:
            case bool():
                pass
            case int() if 400 <= value <= 599:
                self.status = self.status or value
            case str() if value:
                self.codes.append(value.lower().replace("-", "_").replace(" ", "_"))
            case _:
                pass

    def _add_message(self, message: str, depth: int) -> None:
        """Add a message. It may contain the body of another error, because proxies quote whole bodies."""
        message = message.strip()
        at = message.find("{")
        inner = _decode_body(message[at:]) if at >= 0 and depth < DEPTH_MAX else ""
        if isinstance(inner, dict | list):
            self.visit(inner, depth + 1)
            message = message[:at].rstrip(" -:[\n")
        if message and message[0] not in "{[":  # the rest of a truncated body is not worth showing
            # The first informative message wins. Later ones repeat it or come from a proxy.
            worth = 0 if message.lower() in _UNINFORMATIVE else 1
            self.messages.append((worth, message))


_HTML = re.compile(r"\s*<(?:!doctype|html|head|\?xml)", re.I)


def _decode_body(body: Any) -> Any:
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if not isinstance(body, str):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "" if _HTML.match(body) else body  # an HTML page means nothing to a person here


# Codes that decide alone. Codes that say no more than the status are not listed.
_FAILURE_BY_CODE: Mapping[str, ModelFailureKind] = {
    code: failure
    for failure, codes in {
        ModelFailureKind.AUTH: "authentication_error invalid_api_key api_key_invalid unauthenticated"
        " invalid_authentication"
        " invalid_authentication_error unauthorized invalid_token expired_token token_expired account_deactivated"
        " unrecognizedclientexception api_key_expired invalid_x_api_key",
        ModelFailureKind.PERMISSION: "permission_error permission_denied forbidden access_denied accessdeniedexception"
        " unsupported_country_region_territory service_disabled consumer_suspended api_key_service_blocked"
        " access_terminated_error",
        ModelFailureKind.QUOTA: "insufficient_quota billing_error billing_not_active billing_hard_limit_reached"
        " insufficient_balance insufficient_credits insufficient_funds payment_required credit_balance_too_low"
        " exceeded_current_quota_error arrearage billing_disabled personal_team_blocked:spending_limit",
        ModelFailureKind.RATE_LIMIT: "rate_limit_error rate_limit_exceeded rate_limited rate_limit rate_limit_reached"
        " rate_limit_reached_error ratelimitreached resource_exhausted too_many_requests throttlingexception throttling"
        " service_tier_capacity_exceeded usage_limit_reached model_rate_limit tokens_usage_based requests_limit",
        ModelFailureKind.OVERLOADED: "overloaded_error overloaded server_is_overloaded slow_down engine_overloaded"
        " engine_overloaded_error model_overloaded unavailable modelnotreadyexception",
        ModelFailureKind.TIMEOUT: "timeout_error deadline_exceeded request_timeout timeout modeltimeoutexception",
        ModelFailureKind.CONTEXT_OVERFLOW: "context_length_exceeded context_window_exceeded"
        " model_context_window_exceeded"
        " exceed_context_size_error model_max_prompt_tokens_exceeded tokens_limit_reached prompt_too_long"
        " context_limit_exceeded context_exceeded contextwindowexceedederror",
        ModelFailureKind.TOO_LARGE: "request_too_large payload_too_large request_entity_too_large"
        " string_above_max_length",
        ModelFailureKind.NOT_FOUND: "model_not_found not_found_error not_found deploymentnotfound invalid_model"
        " unknown_model"
        " model_decommissioned model_not_available model_not_exist resource_not_found model_not_supported"
        " unknownmodel",
        ModelFailureKind.CONTENT_FILTER: "content_filter content_policy_violation responsibleaipolicyviolation"
        " invalid_prompt"
        " data_inspection_failed content_filtered moderation_blocked safety image_content_policy_violation"
        " prohibited_content",
        ModelFailureKind.MALFORMED: "malformed_function_call",
    }.items()
    for code in codes.split()
}

# Codes inside a stream, where there is no status. They decide only if nothing else does.
_FAILURE_BY_VAGUE_CODE: Mapping[str, ModelFailureKind] = {
    code: failure
    for failure, codes in {
        ModelFailureKind.BAD_REQUEST: "invalid_request_error invalid_argument bad_request tool_use_failed"
        " failed_precondition",
        ModelFailureKind.SERVER: "server_error api_error internal_error internal internal_server_error unknown",
    }.items()
    for code in codes.split()
}

# A phrase matches if it occurs in the message; "a & b" if both parts do.
_PHRASES: Mapping[ModelFailureKind, tuple[str, ...]] = {
    failure: tuple(phrases.split(" | "))
    for failure, phrases in {
        ModelFailureKind.RATE_LIMIT: "rate limit | rate-limit | ratelimit | rate_limit | too many requests"
        " | too many tokens, please wait | tokens per min | requests per min | tokens per day"
        " | requests per day | (tpm) | (rpm) | throttl | usage limit has been reached"
        " | quota exceeded for | too many concurrent | concurrency limit"
        " | resource has been exhausted",
        ModelFailureKind.AUTH: "api key not valid | api key not found | invalid api key | incorrect api key"
        " | invalid x-api-key | invalid api-key | api key expired | api key is invalid"
        " | api key & leaked | invalid authentication | invalid bearer token"
        " | unregistered callers | auth credentials found | provide an api key"
        " | oauth token has expired | authentication fails",
        ModelFailureKind.QUOTA: "credit balance is too low | insufficient balance | insufficient credit"
        " | insufficient fund | insufficient_quota | exceeded your current quota"
        " | exceeded your monthly included credits | billing hard limit"
        " | specified api usage limits | payment required | check your billing"
        " | requires more credits | requires billing | enable billing | billing is not enabled"
        " | billing account | spending limit | spend limit | out of credits | have any credits"
        " | used all available credits | please recharge",
        ModelFailureKind.CONTEXT_OVERFLOW: "maximum context length | context length exceeded | context_length_exceeded"
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
        ModelFailureKind.NOT_FOUND: "model & does not exist | model & not found | model not exist | not a valid model"
        " | unknown model | invalid model | no such model | model & decommissioned"
        " | model & is not available | model & not supported when using",
        ModelFailureKind.PERMISSION: "location is not supported | not available in your country"
        " | not available in your region",
        ModelFailureKind.CONTENT_FILTER: "content management policy | content policy | content filter | usage polic"
        " | content exists risk | inappropriate content | input was flagged | prompt was flagged"
        " | safety system | blocked by & safety",
        ModelFailureKind.TOO_LARGE: "request too large | request is too large | request entity too large"
        " | request exceeds the maximum size | payload size exceeds | payload too large"
        " | body too large | string too long",
        ModelFailureKind.OVERLOADED: "overloaded | over capacity | at capacity | high demand | no available capacity"
        " | insufficient capacity | server is busy",
        ModelFailureKind.TIMEOUT: "timed out | deadline exceeded | timeout",
    }.items()
}


# A retired model. The same words about a parameter of a model mean something else.
_RETIRED_MODEL = re.compile(
    r"(?<!for this )(?<!of this )(?<!with this )\bmodels?\b"
    r"(?:(?!parameter|argument|field|option|header|tool|feature|endpoint).){0,120}?"
    r"\b(?:has been|have been|was|were|is|are)(?: now| already)? "
    r"(?:deprecated|retired|decommissioned|discontinued|sunset|shut ?down|turned off"
    r"|no longer (?:available|accessible|offered))"
)

_CONTEXT_PHRASES = ("context window", "context length", "context size", "context limit")


def classify_failure(status: int, error_body: ErrorBody) -> ModelFailureKind:
    """Return why a provider refused a request."""
    typed = next((_FAILURE_BY_CODE[code] for code in error_body.codes if code in _FAILURE_BY_CODE), None)
    spoken = _MessageMatcher(error_body.message)
    match status:
        case 401:
            return ModelFailureKind.QUOTA if typed is ModelFailureKind.QUOTA else ModelFailureKind.AUTH
        case 402:
            return ModelFailureKind.QUOTA
        case 403:
            return (
                _pick_failure(
                    typed, spoken, ModelFailureKind.QUOTA, ModelFailureKind.CONTENT_FILTER, ModelFailureKind.AUTH
                )
                or ModelFailureKind.PERMISSION
            )
        case 404 | 405 | 410:
            return ModelFailureKind.NOT_FOUND
        case 408 | 504 | 522 | 524:
            return ModelFailureKind.TIMEOUT
        case 413:
            return (
                ModelFailureKind.CONTEXT_OVERFLOW if _is_context_overflow(typed, spoken) else ModelFailureKind.TOO_LARGE
            )
        case 429:
            return _classify_429(typed, spoken)
        case 529:
            return ModelFailureKind.OVERLOADED
        case _ if status >= 500:
            return _classify_server_error(typed, spoken)
        case _ if status >= 400:
            return _classify_request_error(typed, spoken)
        case _:
            return _classify_without_status(error_body, typed, spoken)


def _pick_failure(
    typed: ModelFailureKind | None, message: _MessageMatcher, *failures: ModelFailureKind
) -> ModelFailureKind | None:
    if typed in failures:
        return typed
    return message.find_first(*failures)


def _is_context_overflow(typed: ModelFailureKind | None, message: _MessageMatcher) -> bool:
    """Whether the request was refused for too many tokens, not for too many bytes.

    A message that mentions the context is about tokens.
    """
    return (
        typed is ModelFailureKind.CONTEXT_OVERFLOW
        or message.matches(ModelFailureKind.CONTEXT_OVERFLOW)
        or message.mentions_context()
    )


def _classify_429(typed: ModelFailureKind | None, message: _MessageMatcher) -> ModelFailureKind:
    """Classify a response with status 429.

    It is never a context overflow, whatever its message says about tokens and limits.
    """
    if typed is ModelFailureKind.QUOTA or typed is ModelFailureKind.OVERLOADED:
        return typed
    if typed is None and not message.matches(ModelFailureKind.RATE_LIMIT) and message.matches(ModelFailureKind.QUOTA):
        return ModelFailureKind.QUOTA
    return ModelFailureKind.RATE_LIMIT


_SERVER_FAILURES = (
    ModelFailureKind.OVERLOADED,
    ModelFailureKind.CONTEXT_OVERFLOW,
    ModelFailureKind.RATE_LIMIT,
    ModelFailureKind.QUOTA,
    ModelFailureKind.TIMEOUT,
)


def _classify_server_error(typed: ModelFailureKind | None, message: _MessageMatcher) -> ModelFailureKind:
    if typed is not None and typed in _SERVER_FAILURES:
        return typed
    return message.find_first(ModelFailureKind.OVERLOADED, ModelFailureKind.CONTEXT_OVERFLOW) or ModelFailureKind.SERVER


_REQUEST_FAILURES = (
    ModelFailureKind.AUTH,
    ModelFailureKind.QUOTA,
    ModelFailureKind.PERMISSION,
    ModelFailureKind.CONTEXT_OVERFLOW,
    ModelFailureKind.NOT_FOUND,
    ModelFailureKind.CONTENT_FILTER,
    ModelFailureKind.TOO_LARGE,
    ModelFailureKind.RATE_LIMIT,
)


def _classify_request_error(typed: ModelFailureKind | None, message: _MessageMatcher) -> ModelFailureKind:
    return typed or message.find_first(*_REQUEST_FAILURES) or ModelFailureKind.BAD_REQUEST


def _classify_without_status(
    error_body: ErrorBody, typed: ModelFailureKind | None, message: _MessageMatcher
) -> ModelFailureKind:
    """Classify an error that came without an HTTP error status, for example inside a stream.

    If the body contains a status, that status is used.
    """
    if error_body.status is not None:
        return classify_failure(error_body.status, error_body)
    vague = next(
        (_FAILURE_BY_VAGUE_CODE[code] for code in error_body.codes if code in _FAILURE_BY_VAGUE_CODE),
        ModelFailureKind.SERVER,
    )
    if vague is ModelFailureKind.BAD_REQUEST:
        return typed or message.find_first(*_REQUEST_FAILURES) or vague
    return (
        typed or message.find_first(ModelFailureKind.OVERLOADED, *_REQUEST_FAILURES, ModelFailureKind.TIMEOUT) or vague
    )


class _MessageMatcher:
    """Matches a provider's error message against the phrases that identify each kind of failure."""

    def __init__(self, message: str) -> None:
        self._message = message[:MESSAGE_CHARS_MAX].lower().replace("\u2019", "'")

    def find_first(self, *failures: ModelFailureKind) -> ModelFailureKind | None:
        return next((failure for failure in failures if self.matches(failure)), None)

    def matches(self, failure: ModelFailureKind) -> bool:
        if failure is ModelFailureKind.NOT_FOUND and _RETIRED_MODEL.search(self._message):
            return True
        if failure is ModelFailureKind.CONTEXT_OVERFLOW and self._has_phrase(_PHRASES[ModelFailureKind.RATE_LIMIT]):
            return False  # rate limits mention tokens too, and compaction does not help against them
        return self._has_phrase(_PHRASES[failure])

    def mentions_context(self) -> bool:
        """Whether the message mentions the size of the model's context."""
        return self._has_phrase(_CONTEXT_PHRASES) and not self._has_phrase(_PHRASES[ModelFailureKind.RATE_LIMIT])

    def _has_phrase(self, phrases: Sequence[str]) -> bool:
        return any(all(part in self._message for part in phrase.split(" & ")) for phrase in phrases)
