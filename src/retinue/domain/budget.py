"""Budgets: the limits on what model calls may cost, and the cost reserved for a call.

Amounts are millionths of a dollar.
"""

from __future__ import annotations

from datetime import date

from msgspec import Struct

from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelRef, Price

MICROUSD_PER_USD = 1_000_000
DEFAULT_WARN_SHARE = 0.8

_NO_FOUR, _NO_THREE = (None,) * 4, (None,) * 3
_FIRST_DAY = date(1970, 1, 1).toordinal()


class BudgetLimits(Struct, frozen=True, kw_only=True):
    """The limits of all budgets that apply to a model call, from the narrowest to the widest. None means no limit."""

    run_microusd: int | None = None
    tree_microusd: int | None = None
    agent_day_microusd: int | None = None
    agent_month_microusd: int | None = None
    person_day_microusd: int | None = None
    person_month_microusd: int | None = None
    instance_day_microusd: int | None = None
    instance_month_microusd: int | None = None
    warn_share: float = DEFAULT_WARN_SHARE

    @property
    def has_any(self) -> bool:
        ours = (self.run_microusd, self.tree_microusd, self.agent_day_microusd, self.agent_month_microusd)
        others = (self.person_day_microusd, self.person_month_microusd, self.instance_day_microusd)
        return ours != _NO_FOUR or others != _NO_THREE or self.instance_month_microusd is not None

    def by_name(self) -> dict[str, int | None]:
        """Return each limit with its name, in the order in which the limits are checked."""
        return {
            "run": self.run_microusd,
            "tree": self.tree_microusd,
            "agent's day": self.agent_day_microusd,
            "agent's month": self.agent_month_microusd,
            "person's day": self.person_day_microusd,
            "person's month": self.person_month_microusd,
            "instance's day": self.instance_day_microusd,
            "instance's month": self.instance_month_microusd,
        }


NO_BUDGET_LIMITS = BudgetLimits()


class ModelCallReservationRequest(Struct, frozen=True, kw_only=True):
    """A request to reserve the cost of a model call. It is stored with the call's intent, in the same commit."""

    ref: ModelRef
    credential: str = ""
    price: Price | None = None
    input_tokens_max: int = 0
    output_tokens_max: int = 0
    limits: BudgetLimits = NO_BUDGET_LIMITS

    @property
    def is_charged(self) -> bool:
        """Whether costs are reserved for the call."""
        return self.price is not None and not self.price.is_free


class ModelCallReservation(Struct, frozen=True, kw_only=True):
    """The reservation for a model call: the maximum number of output tokens, and the reserved amount.

    `warnings` are messages to people. Each says that the run's previous call raised the spent amount of a
    budget above the warning threshold.
    """

    output_tokens_max: int
    reserved_microusd: int = 0
    warnings: tuple[str, ...] = ()


class BudgetPeriod(Struct, frozen=True, kw_only=True):
    """A day, and the first and last day of its month, in the owner's time zone. Days are counted from 1970-01-01."""

    day: int
    month_first_day: int
    month_last_day: int


def day_number(day: date) -> int:
    return day.toordinal() - _FIRST_DAY


def date_of_day_number(day: int) -> date:
    """Return the date of a day number. The inverse of `day_number`."""
    return date.fromordinal(day + _FIRST_DAY)


def format_usd(microusd: int) -> str:
    """Format an amount in dollars and cents, with more digits for small amounts."""
    size = abs(microusd)
    digits = (
        2
        if size % 10_000 == 0 or size >= 100 * MICROUSD_PER_USD
        else 4
        if size % 100 == 0 or size >= MICROUSD_PER_USD
        else 6
    )
    return f"{'-' if microusd < 0 else ''}${size / MICROUSD_PER_USD:,.{digits}f}"


class BudgetSpent(RetinueError):
    """A model call was refused, because a budget does not cover the maximum cost of the call."""

    code = "budget.spent"

    def __init__(
        self,
        budget: str,
        *,
        spent_microusd: int,
        reserved_microusd: int,
        limit_microusd: int,
        needed_microusd: int,
        resets_on: date | None,
        setting: str,
    ) -> None:
        reserved = f", {format_usd(reserved_microusd)} is reserved for calls in progress" if reserved_microusd else ""
        super().__init__(
            f"{budget} does not cover the next model call",
            because=f"{format_usd(spent_microusd)} of {format_usd(limit_microusd)} is spent{reserved}, "
            f"and the next call may cost {format_usd(needed_microusd)}",
            try_this=f"wait until {resets_on}, or raise {setting}" if resets_on else f"raise {setting}",
        )


class PriceUnknown(RetinueError):
    """A model call was refused, because a budget applies and the price of the model is unknown."""

    code = "model.price_unknown"

    def __init__(self, ref: ModelRef) -> None:
        super().__init__(
            f"{ref} cannot be used under a budget, because its price is unknown",
            because="without a price, the server cannot limit the cost of a call",
            try_this=f'set `input_usd` and `output_usd` under [models.entries."{ref}"] in retinue.toml; 0 means free',
        )
        self.ref = ref
