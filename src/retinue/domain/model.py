"""Models: references, capabilities, prices and failures."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from retinue.domain.errors import RetinueError
from retinue.domain.record import Usage

EFFORTS = ("none", "low", "medium", "high", "xhigh")
DEFAULT_WINDOW_TOKENS = 200_000
DEFAULT_OUTPUT_TOKENS_MAX = 8_192
PRICE_UNIT_TOKENS = 1_000_000  # prices are per this many tokens


class ModelRef(Struct, frozen=True):
    """The provider and name of a model: `anthropic/claude-opus-5-5`. A built-in model has no provider."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}" if self.provider else self.model


class Price(Struct, frozen=True, kw_only=True):
    """Prices in millionths of a dollar: per million tokens of each kind, and per call."""

    input: int = 0
    output: int = 0
    cache_read: int | None = None  # None: the input price
    cache_write: int | None = None
    call: int = 0

    def cost_microusd(self, usage: Usage) -> int:
        """Return the cost of a call. It is rounded up, so that rounding never causes a budget to be exceeded."""
        plain = max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0)
        total = plain * self.input
        total += usage.cache_read_tokens * (self.input if self.cache_read is None else self.cache_read)
        total += usage.cache_write_tokens * (self.input if self.cache_write is None else self.cache_write)
        total += usage.output_tokens * self.output
        return self.call - (-total // PRICE_UNIT_TOKENS)

    @property
    def is_free(self) -> bool:
        return self.highest_input == self.output == self.call == 0

    @property
    def highest_input(self) -> int:
        return max(self.input, self.cache_read or 0, self.cache_write or 0)


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What is known about a model, such as its price and limits. An unknown price is None, not zero."""

    ref: ModelRef
    window_tokens: int = DEFAULT_WINDOW_TOKENS
    output_tokens_max: int = DEFAULT_OUTPUT_TOKENS_MAX
    price: Price | None = None
    vision: bool = False
    tools: bool = True
    efforts: tuple[str, ...] | None = None  # None: unknown, and passed through unchecked


FREE_PRICE = Price()


class ModelFailureKind(StrEnum):
    """Why a model did not reply. The kind decides what the server tries next."""

    AUTH = "auth"
    PERMISSION = "permission"
    QUOTA = "quota"  # the provider account has no credit left
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    CONTEXT_OVERFLOW = "context_overflow"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    CONTENT_FILTER = "content_filter"
    BAD_REQUEST = "bad_request"
    MALFORMED = "malformed"


class ModelFailed(RetinueError):
    """The model did not reply. The person who is waiting for the reply sees this error.

    `may_be_charged` means that part of the reply arrived or may have been generated. In that case the cost is unknown.
    If `usage` is set, a complete reply arrived that was unusable, and its cost is known.
    """

    code = "model.failed"

    def __init__(
        self,
        sentence: str,
        *,
        because: str = "",
        try_this: str = "",
        code: str | None = None,
        failure: ModelFailureKind = ModelFailureKind.SERVER,
        status: int | None = None,
        retry_after_s: float | None = None,
        may_be_charged: bool = False,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(sentence, because=because, try_this=try_this, code=code)
        self.failure = failure
        self.status = status
        self.retry_after_s = retry_after_s
        self.may_be_charged = may_be_charged
        self.usage = usage
