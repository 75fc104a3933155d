"""Messages of servers for a request that exceeds the context window, quoted from public source code and reports. Each
must lead to a compaction: if it is taken for a bad request, the conversation can never continue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.domain.model import ModelFailureKind
from retinue.models.error_classification import classify_failure, parse_error_body
from retinue.models.error_messages import build_response_error, build_stream_error


def _error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


# Server, status, body.
OVERFLOWS: tuple[tuple[str, int, Any], ...] = (
    ("ollama", 400, {"error": "prompt too long; exceeded max context length by 4 tokens"}),
    ("ollama", 400, _error("prompt too long; exceeded max context length by 65590 tokens", type="invalid_request")),
    ("ollama", 400, {"error": "the input length exceeds the context length"}),
    ("ollama", 413, {"error": "the input length exceeds the context length"}),
    ("ollama", 500, {"error": "the input length exceeds the context length"}),
    (
        "vllm",
        400,
        _error(
            "You passed 10243 input tokens and requested 6142 output tokens. However, the model's context length is "
            "only 16384 tokens, resulting in a maximum input length of 10242 tokens. Please reduce the length of the "
            "input prompt. (parameter=input_tokens, value=10243)",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
    ),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "You passed 65537 input tokens and requested 0 output tokens. However, the model's context "
            "length is only 65536 tokens",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    (
        "vllm",
        400,
        _error(
            "You passed 90000 input characters and requested 512 output tokens. However, the model's context length "
            "is only 16384 tokens, resulting in a maximum input length of 15872 tokens.",
            type="BadRequestError",
        ),
    ),
    (
        "vllm",
        400,
        _error(
            "The prompt (total length 25938) is too long to fit into the model (context length 4096). Make sure that "
            "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens."
        ),
    ),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 131072 tokens. However, you requested 156632 tokens "
            "(152536 in the messages, 4096 in the completion). Please reduce the length of the messages.",
        },
    ),
    ("litellm", 400, _error("litellm.ContextWindowExceededError", type=None, param=None, code="400")),
    ("litellm", 400, _error("litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError", code="400")),
    (
        "litellm",
        400,
        _error(
            "ContextWindowExceededError: OpenAIException - Input tokens exceed the configured limit of 272000 tokens."
        ),
    ),
    ("litellm", 400, {"error": {"message": "", "type": "ContextWindowExceededError"}}),
    (
        "litellm",
        503,
        _error(
            "litellm.ServiceUnavailableError: litellm.APIConnectionError: OpenAIException - Requested token count "
            "exceeds the model's maximum context length of 131072 tokens."
        ),
    ),
    (
        "perplexity",
        400,
        _error("Input length (262144) exceeds or equals model's maximum context length", type="bad_request", code=400),
    ),
    (
        "llama.cpp",
        400,
        _error(
            "request (18414 tokens) exceeds the available context size (16384 tokens), try increasing it",
            type="exceed_context_size_error",
            n_prompt_tokens=18414,
            n_ctx=16384,
        ),
    ),
    ("llama.cpp", 400, _error("the request exceeds the available context size, try increasing it")),
    ("llama.cpp", 500, _error("Context size has been exceeded.", type="server_error", code=500)),
    ("llama-cpp-python", 400, _error("Requested tokens (2285) exceed context window of 2048")),
    ("llama-cpp-python", 500, _error("Requested tokens (2285) exceed context window of 2048", type="internal_error")),
    ("ds4", 400, _error("Prompt tokens (9000) exceeds context size (8192)", type="context_exceeded")),
    ("ds4", 400, _error("Prompt has 40,000 tokens, but the configured context size is 32,768 tokens")),
    (
        "lm studio",
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
    ),
    ("openrouter", 400, _error("Input length 300000 exceeds the maximum allowed input length of 262,144 tokens.")),
    ("openai", 400, _error("Input tokens exceed the configured limit of 272000 tokens.", type="invalid_request_error")),
    ("a gateway", 413, _error("Request size exceeds model context window")),
    ("a gateway", 413, _error("The request is larger than the context window of this model (131072 tokens).")),
    ("a gateway", 413, {"detail": "payload does not fit the context length"}),
)


@pytest.mark.parametrize(("server", "status", "body"), OVERFLOWS)
def test_every_known_overflow_message_is_classified_as_context_overflow(server: str, status: int, body: Any) -> None:
    raw = json.dumps(body).encode()
    assert classify_failure(status, parse_error_body(raw)) is ModelFailureKind.CONTEXT_OVERFLOW, server
    failed = build_response_error(server, status, {}, raw)
    assert (failed.code, failed.failure) == ("model.context_overflow", ModelFailureKind.CONTEXT_OVERFLOW)


@pytest.mark.parametrize(("server", "body"), [(server, body) for server, status, body in OVERFLOWS if status == 400])
def test_an_overflow_error_within_a_stream_is_classified_as_context_overflow(server: str, body: Any) -> None:
    assert build_stream_error(server, body).failure is ModelFailureKind.CONTEXT_OVERFLOW


# Messages that look similar. A shorter context would not help.
NOT_OVERFLOWS: tuple[tuple[int, Any, ModelFailureKind], ...] = (
    (413, _error("Request Entity Too Large (ref: 632ffad5)"), ModelFailureKind.TOO_LARGE),
    (413, _error("Request body exceeds the limit of 33554432 bytes"), ModelFailureKind.TOO_LARGE),
    (
        413,
        _error("Request too large on tokens per minute (TPM): Limit 6000, Requested 12000. See context window limits."),
        ModelFailureKind.TOO_LARGE,
    ),
    (429, _error("You passed too much: the model's context length is only 8 tokens"), ModelFailureKind.RATE_LIMIT),
    (400, _error("max_tokens must be at least 16 for sonar."), ModelFailureKind.BAD_REQUEST),
    (400, _error("thinking.budget_tokens must be smaller than max_tokens"), ModelFailureKind.BAD_REQUEST),
)


@pytest.mark.parametrize(("status", "body", "meant"), NOT_OVERFLOWS)
def test_errors_about_size_rate_and_output_limits_are_not_context_overflows(
    status: int, body: Any, meant: ModelFailureKind
) -> None:
    assert classify_failure(status, parse_error_body(json.dumps(body).encode())) is meant
