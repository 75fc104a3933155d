"""Classification of provider errors: a corpus of documented errors and public reports, reworded and shortened."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any

import pytest

from retinue.domain.model import ModelFailureKind
from retinue.models import error_messages
from retinue.models.error_classification import classify_failure, parse_error_body
from retinue.models.errors import PROVIDER_ERRORS, ModelTimedOut, ProviderAnswer, ReplyTooLarge, ReplyTruncated
from retinue.models.retry_after import RETRY_AFTER_S_MAX, parse_duration_s, parse_message_delay_s
from retinue.net.http1_client import ConnectionFailed


def _openai(message: str, *, type_: str | None = "invalid_request_error", code: str | None = None) -> Any:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def _anthropic(type_: str, message: str) -> Any:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_1"}


def _google(code: int, status: str, message: str, *details: Any) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def _openrouter(code: int, message: str, **metadata: Any) -> Any:
    return {"error": {"code": code, "message": message, "metadata": metadata}, "user_id": "user_1"}


# Status, body, and the kind of failure
CORPUS: tuple[tuple[int, Any, str], ...] = (
    # Keys
    (401, _openai("Incorrect API key provided: sk-abc. Find yours in the settings.", code="invalid_api_key"), "auth"),
    (401, _anthropic("authentication_error", "invalid x-api-key"), "auth"),
    (401, {"detail": "Invalid API Key"}, "auth"),
    (401, "Unauthorized", "auth"),
    (401, _openrouter(401, "No auth credentials found"), "auth"),
    (400, _google(400, "INVALID_ARGUMENT", "API key not valid.", {"reason": "API_KEY_INVALID"}), "auth"),
    (400, _google(400, "INVALID_ARGUMENT", "API key expired. Please renew the API key."), "auth"),
    (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xy"}, "auth"),
    (403, _google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers. Please use API Key."), "auth"),
    # Permissions
    (403, _anthropic("permission_error", "Your API key does not have permission to use this resource"), "permission"),
    (403, _google(403, "PERMISSION_DENIED", "Generative Language API has not been used in project 402."), "permission"),
    (403, _openai("Country not supported", code="unsupported_country_region_territory"), "permission"),
    (403, "<html><body>Forbidden</body></html>", "permission"),
    # Credit
    (402, _openrouter(402, "Insufficient credits. Add more at the site."), "quota"),
    (402, _openai("Insufficient Balance", type_="unknown_error", code="invalid_request_error"), "quota"),
    (429, _openai("You exceeded your current quota, check plan and billing.", code="insufficient_quota"), "quota"),
    (
        429,
        {"error": {"code": "1113", "message": "Insufficient balance or no resource package. Please recharge."}},
        "quota",
    ),
    (429, _openai("suspended, check your plan", type_="exceeded_current_quota_error"), "quota"),
    (400, _anthropic("invalid_request_error", "Your credit balance is too low to access the API."), "quota"),
    (400, _anthropic("invalid_request_error", "You have reached your specified API usage limits."), "quota"),
    (403, {"code": "403", "error": "Your team doesn't have any credits yet. Purchase some."}, "quota"),
    (403, _google(403, "PERMISSION_DENIED", "This API method requires billing to be enabled."), "quota"),
    # Rate limits
    (
        429,
        _anthropic("rate_limit_error", "This would exceed your limit of 20,000 input tokens per minute"),
        "rate_limit",
    ),
    (429, _anthropic("rate_limit_error", "Extra usage is required for long context requests."), "rate_limit"),
    (
        429,
        _openai("Rate limit reached on tokens per min (TPM)", type_="tokens", code="rate_limit_exceeded"),
        "rate_limit",
    ),
    (
        429,
        _openai(
            "Request too large on tokens per min (TPM): Limit 30000, Requested 40000. Tokens must be reduced.",
            type_="tokens",
            code="rate_limit_exceeded",
        ),
        "rate_limit",
    ),
    (429, _google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, check your billing."), "rate_limit"),
    (429, _google(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."), "rate_limit"),
    (429, {"message": "Requests rate limit exceeded"}, "rate_limit"),
    (
        429,
        {"object": "error", "message": "Service tier capacity exceeded", "type": "service_tier_capacity_exceeded"},
        "rate_limit",
    ),
    (429, {"statusCode": 429, "message": "Rate limit is exceeded. Try again in 26 seconds."}, "rate_limit"),
    (429, _openrouter(429, "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock more"), "rate_limit"),
    (
        429,
        _openrouter(429, "Provider returned error", raw="x:free is temporarily rate-limited upstream."),
        "rate_limit",
    ),
    (429, {"message": "Too many tokens, please wait before trying again."}, "rate_limit"),
    (429, "", "rate_limit"),
    (
        400,
        {"__type": "ThrottlingException", "message": "Too many tokens, please wait before trying again."},
        "rate_limit",
    ),
    # Overload
    (529, _anthropic("overloaded_error", "Overloaded"), "overloaded"),
    (503, _google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), "overloaded"),
    (503, _google(503, "UNAVAILABLE", "This model is currently experiencing high demand."), "overloaded"),
    (503, _openai("That model is currently overloaded.", type_="server_error"), "overloaded"),
    (503, _openai("Slow down", type_="server_error", code="slow_down"), "overloaded"),
    (429, _openai("The engine is overloaded", type_="engine_overloaded_error"), "overloaded"),
    # Server errors
    (500, _anthropic("api_error", "Internal server error"), "server"),
    (500, _google(500, "INTERNAL", "An internal error has occurred. See issue 402 and 413."), "server"),
    (502, "<html><head><title>502 Bad Gateway</title></head></html>", "server"),
    (503, "<html>Service Temporarily Unavailable</html>", "server"),
    (500, b"\xff\xfe\x00garbage", "server"),
    (520, "", "server"),
    (504, _google(504, "DEADLINE_EXCEEDED", "The request timed out."), "timeout"),
    (408, _openrouter(408, "Request timed out"), "timeout"),
    (524, "<!DOCTYPE html><title>A timeout occurred</title>", "timeout"),
    # Context window exceeded
    (
        400,
        _anthropic("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
        "context_overflow",
    ),
    (
        400,
        _anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000, decrease input length",
        ),
        "context_overflow",
    ),
    (
        400,
        _openai("Your input exceeds the context window of this model.", code="context_length_exceeded"),
        "context_overflow",
    ),
    (400, _openai("This model's maximum context length is 8192 tokens."), "context_overflow"),
    (
        400,
        _google(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        "context_overflow",
    ),
    (
        400,
        {
            "code": "invalid-argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
        "context_overflow",
    ),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
            }
        },
        "context_overflow",
    ),
    (
        500,
        {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
        "context_overflow",
    ),
    (
        400,
        {
            "object": "error",
            "message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
        },
        "context_overflow",
    ),
    (
        422,
        {"error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000"},
        "context_overflow",
    ),
    (
        400,
        {"error": {"message": "Range of input length should be [1, 30720]", "code": "invalid_parameter_error"}},
        "context_overflow",
    ),
    (400, _openai("Invalid request: Your request exceeded model token limit: 8192"), "context_overflow"),
    (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, "context_overflow"),
    (
        413,
        {"error": {"code": "tokens_limit_reached", "message": "Request body too large. Max size: 8000 tokens."}},
        "context_overflow",
    ),
    (413, _anthropic("invalid_request_error", "Prompt is too long"), "context_overflow"),
    (
        400,
        _openrouter(
            400,
            "Provider returned error",
            raw='{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}',
        ),
        "context_overflow",
    ),
    # Request too large
    (413, _anthropic("request_too_large", "Request exceeds the maximum size"), "too_large"),
    (413, "<html><title>413 Request Entity Too Large</title></html>", "too_large"),
    (
        413,
        _openai(
            "Request too large for model on tokens per minute (TPM): Limit 6000",
            type_="tokens",
            code="rate_limit_exceeded",
        ),
        "too_large",
    ),
    (400, _google(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520 bytes."), "too_large"),
    # Unknown model
    (404, _anthropic("not_found_error", "model: claude-nine"), "not_found"),
    (404, _google(404, "NOT_FOUND", "models/gemini-0 is not found for API version v1beta"), "not_found"),
    (404, {"error": "model 'qwen9' not found"}, "not_found"),
    (404, "404 page not found", "not_found"),
    (400, _openai("The requested model 'gpt-0' does not exist.", code="model_not_found"), "not_found"),
    (400, _openai("Model Not Exist"), "not_found"),
    (400, _openrouter(400, "foo/bar is not a valid model ID"), "not_found"),
    (400, {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "code": "1500"}, "not_found"),
    (400, _openai("The model `old` has been decommissioned.", code="model_decommissioned"), "not_found"),
    # Content filter
    (
        400,
        {
            "error": {
                "message": "The prompt triggered the content management policy.",
                "code": "content_filter",
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
        "content_filter",
    ),
    (400, _anthropic("invalid_request_error", "Output blocked by content filtering policy"), "content_filter"),
    (400, _openai("Content Exists Risk"), "content_filter"),
    (400, _openai("Invalid prompt: flagged as violating our usage policy.", code="invalid_prompt"), "content_filter"),
    (
        403,
        _openrouter(403, "This model requires moderation; your input was flagged", reasons=["violence"]),
        "content_filter",
    ),
    (400, _google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."), "permission"),
    # Invalid requests
    (
        400,
        _anthropic("invalid_request_error", "messages.3: `tool_use` ids were found without `tool_result` blocks"),
        "bad_request",
    ),
    (
        400,
        _openai("Invalid schema for function 'x': ['object'] is not valid", code="invalid_function_parameters"),
        "bad_request",
    ),
    (400, _anthropic("invalid_request_error", "messages.0.content.1.image: image exceeds 5 MB maximum"), "bad_request"),
    (
        400,
        {
            "error": {
                "code": "tool_use_failed",
                "message": "Tool call validation failed",
                "type": "invalid_request_error",
            }
        },
        "bad_request",
    ),
    (
        422,
        {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "value_error.missing"}]},
        "bad_request",
    ),
    (
        400,
        _openai("max_tokens is too large: 402000. This model supports at most 4096 completion tokens."),
        "bad_request",
    ),
    (400, "", "bad_request"),
    # No reply body
    (200, _anthropic("overloaded_error", "Overloaded"), "overloaded"),
    (200, _anthropic("api_error", "Internal server error"), "server"),
    (200, _anthropic("rate_limit_error", "Too many tokens"), "rate_limit"),
    (200, _openrouter(502, "Provider disconnected unexpectedly"), "server"),
    (200, _openrouter(429, "Provider returned error", raw="slow down"), "rate_limit"),
    (200, [_google(503, "UNAVAILABLE", "The service is currently unavailable.")], "overloaded"),
    (
        200,
        {"error": {"message": "invalid tool call", "type": "invalid_request_error", "code": "tool_use_failed"}},
        "bad_request",
    ),
    (200, {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}, "context_overflow"),
    (200, {"error": "something broke"}, "server"),
)


def _raw(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


@pytest.mark.spec("C39")
@pytest.mark.parametrize(("status", "body", "meant"), CORPUS, ids=lambda value: str(value)[:60])
def test_each_documented_provider_error_is_classified_as_its_model_failure_kind(
    status: int, body: Any, meant: str
) -> None:
    assert classify_failure(status, parse_error_body(_raw(body))) == meant


@pytest.mark.spec("C39")
def test_rate_limit_errors_of_providers_are_never_classified_as_overflow_or_vice_versa() -> None:
    for status in (200, 400, 413, 429, 500):
        for body, meant in ((body, meant) for _, body, meant in CORPUS if meant in ("rate_limit", "context_overflow")):
            found = classify_failure(status, parse_error_body(_raw(body)))
            assert not (meant == "rate_limit" and found is ModelFailureKind.CONTEXT_OVERFLOW), (status, body)
            assert not (meant == "context_overflow" and found is ModelFailureKind.RATE_LIMIT and status != 429), (
                status,
                body,
            )


def test_a_provider_error_with_status_429_is_never_an_overflow_whatever_its_message() -> None:
    assert classify_failure(429, parse_error_body(b'{"message": "prompt is too long"}')) is ModelFailureKind.RATE_LIMIT


# The kinds that also have an error of our own: an error that the provider reported has another code.
REPORTED_CODES = {
    ModelFailureKind.TIMEOUT: "model.provider_timeout",
    ModelFailureKind.CONNECTION: "model.connection_lost",
    ModelFailureKind.NOT_FOUND: "model.not_offered",
    ModelFailureKind.MALFORMED: "model.reply_invalid",
}


def test_every_model_failure_kind_has_its_own_error_sentence_and_code() -> None:
    seen: set[str] = set()
    for failure in ModelFailureKind:
        error = PROVIDER_ERRORS[failure]("acme", ProviderAnswer(status=400))
        assert "acme" in error.sentence
        assert error.because and error.try_this
        assert error.failure is failure
        assert error.code == REPORTED_CODES.get(failure, f"model.{failure.value}")
        seen.add(error.sentence)
    assert len(seen) == len(ModelFailureKind)


def test_a_model_failure_quotes_the_provider_message_but_no_raw_body() -> None:
    body = _raw(_anthropic("invalid_request_error", "messages: at least one message is required"))
    failed = error_messages.build_response_error("anthropic", 400, {}, body)
    assert failed.code == "model.bad_request"
    assert failed.status == 400
    assert "anthropic" in failed.sentence
    assert failed.because == "it says: messages: at least one message is required"
    assert "{" not in str(failed) and "req_1" not in str(failed)


def test_an_html_error_page_of_a_provider_is_not_shown() -> None:
    failed = error_messages.build_response_error(
        "acme", 502, {}, b"<!DOCTYPE html><html><body>Bad gateway <b>cf-ray</b></body></html>"
    )
    assert "<" not in str(failed) and "cf-ray" not in str(failed)


def test_a_json_body_quoted_in_a_provider_error_message_is_classified_and_not_shown() -> None:
    quoted = 'upstream said no: {"error": {"type": "rate_limit_error", "message": "Slower, please."}}'
    failed = error_messages.build_response_error("proxy", 400, {}, _raw({"error": {"message": quoted}}))
    assert failed.failure is ModelFailureKind.RATE_LIMIT
    assert "{" not in failed.because


def test_a_truncated_error_body_of_a_provider_is_not_shown() -> None:
    failed = error_messages.build_response_error("acme", 500, {}, b'{"error": {"message": "' + b"x" * 100)
    assert "{" not in str(failed)


def test_a_long_provider_error_message_is_truncated() -> None:
    failed = error_messages.build_response_error("acme", 400, {}, _raw({"error": {"message": "no " * 2000}}))
    assert len(failed.because) <= error_messages.MESSAGE_SHOWN_CHARS_MAX + len("it says: ")
    assert failed.because.endswith("…")


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdef0123456789",
        "sk-ant-api03-AbCdEf-0123456789",
        "AIzaSyA0123456789abcdefghijklmnopqrstuvw",
        "gsk_0123456789abcdefghij",
        "0123456789abcdef0123456789abcdef",
        "xai-0123456789abcdefghij",
    ],
)
def test_a_text_that_looks_like_a_key_is_redacted_in_a_provider_error_message(secret: str) -> None:
    for words in (f"Incorrect API key provided: {secret}.", f"bad {secret} here", f"header was Bearer {secret}"):
        failed = error_messages.build_response_error("acme", 401, {}, _raw({"error": {"message": words}}))
        assert secret not in str(failed) and secret not in repr(failed)
        assert error_messages.REDACTION in failed.because


def test_in_a_provider_error_message_a_text_after_the_words_api_key_is_redacted_in_any_shape() -> None:
    assert "hunter2" not in error_messages.clean_message(
        "Incorrect API key provided: hunter2. Find it in the settings."
    )


def test_names_of_models_and_limits_are_not_redacted_in_a_provider_error_message() -> None:
    words = "The model claude-sonnet-4-5-20250929 on generate_content_free_tier_requests is skipping gemini-2.5"
    assert error_messages.clean_message(words) == words


# Retry time

DATE = "Wed, 08 Apr 2026 14:32:30 GMT"


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "21"}, "", 21.0),
        ({"Retry-After": "0.5"}, "", 0.5),
        ({"retry-after": "Wed, 08 Apr 2026 14:33:00 GMT", "date": DATE}, "", 30.0),
        ({"retry-after": "Wed, 08 Apr 2026 14:33:00 GMT"}, "", None),  # without a `date`, the clocks cannot be compared
        ({"retry-after": "Wed, 08 Apr 2026 14:00:00 GMT", "date": DATE}, "", None),
        ({"retry-after-ms": "18642", "retry-after": "19"}, "", 18.642),
        ({"retry-after-ms": "0", "retry-after": "1"}, "", 1.0),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "-5"}, "", None),
        ({"retry-after": "99999999999"}, "", RETRY_AFTER_S_MAX),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, "", 360.0),
        ({"x-ratelimit-reset-requests": "250ms"}, "", 0.25),
        ({"x-ratelimit-reset-requests": "2s", "x-ratelimit-remaining-requests": "7"}, "", None),
        ({"x-ratelimit-reset-requests": "1.5s", "x-ratelimit-reset-tokens": "9s"}, "", 9.0),
        ({"x-ratelimit-reset": "1741305600000"}, "", None),  # a time in an unknown unit
        (
            {
                "anthropic-ratelimit-tokens-reset": "2026-04-08T14:32:51Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "date": DATE,
            },
            "",
            21.0,
        ),
        ({}, _google(429, "RESOURCE_EXHAUSTED", "Please retry in 34.07s.", {"retryDelay": "34s"}), 34.0),
        ({}, _google(429, "RESOURCE_EXHAUSTED", "Please retry in 34.07s."), 34.07),
        ({}, _openai("Please try again in 20s. Visit the site.", code="rate_limit_exceeded"), 20.0),
        ({}, _openai("Please try again in 1m26.4s.", code="rate_limit_exceeded"), 86.4),
        ({}, _openai("Please try again in 6ms.", code="rate_limit_exceeded"), 0.006),
        ({}, {"message": "Rate limit is exceeded. Try again in 26 seconds."}, 26.0),
        ({}, {"message": "Please retry after 1 minute, 30 seconds."}, 90.0),
        ({}, {"message": "Please wait 5 sheep."}, None),
        ({}, {"message": "Try again later."}, None),
    ],
)
def test_the_retry_delay_of_a_provider_error_is_read_from_its_headers_or_body(
    headers: Any, body: Any, seconds: float | None
) -> None:
    assert error_messages.build_response_error("acme", 429, headers, _raw(body)).retry_after_s == pytest.approx(seconds)


def test_a_bad_request_error_of_a_provider_has_no_retry_delay() -> None:
    headers = {"x-ratelimit-reset-requests": "2ms", "retry-after": "3"}
    assert error_messages.build_response_error("acme", 400, headers, _raw(_openai("bad image"))).retry_after_s is None


def test_retry_delays_in_provider_error_messages_are_parsed() -> None:
    assert parse_duration_s("1h2m3s") == 3723.0
    assert parse_duration_s("12") == 12.0
    assert parse_duration_s("1d") == 86400.0
    assert parse_duration_s("5x") is None
    assert parse_duration_s("") is None
    assert parse_duration_s("1" * 100) is None
    assert parse_message_delay_s("wait for 2 hours") == 7200.0


def test_hostile_error_bodies_of_a_provider_are_classified() -> None:
    deep = "[" * 20_000 + "]" * 20_000
    nested: Any = "x"
    for _ in range(500):
        nested = {"error": nested}
    for body in (
        deep,
        json.dumps(nested),
        json.dumps({"errors": [{"message": "a"}] * 20_000}),
        json.dumps({"error": {"message": "try again in " + "1m" * 30_000}}),
        json.dumps({"error": {"message": "rate " * 20_000}}),
        json.dumps({"error": {"message": json.dumps({"error": json.dumps({"error": deep})})}}),
        "\ud800".encode(errors="surrogatepass"),
    ):
        assert error_messages.build_response_error("acme", 429, {}, _raw(body)).failure is ModelFailureKind.RATE_LIMIT


# No answer


def test_a_redirect_of_a_provider_is_reported_as_moved() -> None:
    location = "https://elsewhere.example/v2/messages?key=secret"
    failed = error_messages.build_response_error("acme", 308, {"location": location}, b"")
    assert failed.code == "model.moved"
    assert failed.failure is ModelFailureKind.NOT_FOUND
    assert "elsewhere.example" in failed.because
    assert "secret" not in str(failed)


def _make_connection_failed(cause: Exception | None) -> ConnectionFailed:
    failed = ConnectionFailed("no line")
    failed.__cause__ = cause
    return failed


def test_each_connection_failure_of_a_model_call_has_its_own_reason() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message = "self-signed certificate"
    failures = {
        name: error_messages.build_connection_error("acme", _make_connection_failed(cause), begun=False)
        for name, cause in {
            "dns": socket.gaierror(-2, "Name or service not known"),
            "refused": ConnectionRefusedError(111, "refused"),
            "certificate": untrusted,
            "tls": ssl.SSLError(1, "wrong version number"),
            "reset": ConnectionResetError(104, "reset"),
            "gone": None,
            "no route": OSError(113, "No route to host"),
        }.items()
    }
    assert {failed.failure for failed in failures.values()} == {ModelFailureKind.CONNECTION}
    assert {failed.code for failed in failures.values()} == {"model.connection"}
    becauses = [failed.because for failed in failures.values()]
    assert len(set(becauses)) == len(becauses)
    assert "self-signed" in failures["certificate"].because
    # A request that was sent may have been answered and charged.
    assert [name for name, failed in failures.items() if failed.may_be_charged] == ["reset", "gone"]


def test_model_timeouts_and_reply_size_limits_have_their_own_errors() -> None:
    late = ModelTimedOut("acme", begun=False, timeout_s=120)
    silent = ModelTimedOut("acme", begun=True, timeout_s=30)
    assert late.sentence != silent.sentence
    assert "120 seconds" in late.because and "30 seconds" in silent.because
    assert late.failure is silent.failure is ModelFailureKind.TIMEOUT
    assert ReplyTooLarge("acme", bytes_max=1024).failure is ModelFailureKind.MALFORMED
    assert ReplyTruncated("acme").may_be_charged


def test_a_model_error_in_a_stream_may_be_charged() -> None:
    failed = error_messages.build_stream_error("anthropic", _anthropic("overloaded_error", "Overloaded"))
    assert (failed.failure, failed.status, failed.may_be_charged) == (ModelFailureKind.OVERLOADED, 200, True)
