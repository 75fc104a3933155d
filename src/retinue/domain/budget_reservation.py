"""Enforces budgets: the maximum cost of a model call is reserved before the call is made.

The maximum assumes the longest possible input at the highest input price, and the longest output that the call may
produce. It is never too low, so no call exceeds a budget. `store/runs/budget_reservations` computes the amounts
that are spent and reserved, in the same commit that stores the reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from msgspec import Struct

from retinue.domain.budget import (
    BudgetPeriod,
    BudgetSpent,
    ModelCallReservationRequest,
    date_of_day_number,
    format_usd,
)
from retinue.domain.model import PRICE_UNIT_TOKENS, Price

OUTPUT_TOKENS_MIN = 1_024  # a shorter reply is not worth requesting


class BudgetBalance(Struct, frozen=True, kw_only=True):
    """One budget, with the amount spent and the amount reserved for calls in progress."""

    name: str  # a name from `BudgetLimits.by_name`
    limit_microusd: int
    spent_microusd: int
    reserved_microusd: int = 0

    @property
    def remaining_microusd(self) -> int:
        return self.limit_microusd - self.spent_microusd - self.reserved_microusd


class BudgetPayer(Struct, frozen=True, kw_only=True):
    """The agent that makes a call and the person who is charged for it. Error messages name both.

    If `person` is empty, no person is charged. `delegators` are the agents that delegated the work.
    The budgets of these agents limit the call too.
    """

    agent: str
    person: str = ""
    delegators: tuple[str, ...] = ()


def max_cost_microusd(price: Price, *, input_tokens: int, output_tokens: int) -> int:
    """Return the maximum cost of a call with at most this many tokens. It is rounded up like the actual cost."""
    total = input_tokens * price.highest_input + output_tokens * price.output
    return price.call - (-total // PRICE_UNIT_TOKENS)


def affordable_output_tokens(
    price: Price, *, input_tokens_max: int, output_tokens_max: int, remaining_microusd: int
) -> int:
    """Return how many output tokens an amount pays for, up to the maximum.

    Returns 0 if even the input costs too much.
    """
    left = (remaining_microusd - price.call) * PRICE_UNIT_TOKENS - input_tokens_max * price.highest_input
    if left < 0:
        return 0
    return output_tokens_max if price.output == 0 else min(output_tokens_max, left // price.output)


def grant_output_tokens(
    request: ModelCallReservationRequest,
    price: Price,
    budgets: Sequence[BudgetBalance],
    *,
    payer: BudgetPayer,
    period: BudgetPeriod,
) -> int:
    """Return how many output tokens a call may use without exceeding any budget.

    Raises `BudgetSpent` if the tightest budget does not cover the input and a minimum of output.
    """
    wanted = request.output_tokens_max
    if not budgets:
        return wanted
    tightest = min(budgets, key=lambda standing: standing.remaining_microusd)
    tokens = request.input_tokens_max
    least = min(OUTPUT_TOKENS_MIN, wanted)
    needs = max_cost_microusd(price, input_tokens=tokens, output_tokens=least)
    if needs > tightest.remaining_microusd:
        raise _budget_spent_error(tightest, needs, payer, period)
    return affordable_output_tokens(
        price, input_tokens_max=tokens, output_tokens_max=wanted, remaining_microusd=tightest.remaining_microusd
    )


def budget_warning(budget: BudgetBalance, share: float, *, last_microusd: int, payer: BudgetPayer) -> str | None:
    """Return a warning if the last call raised the spent amount above `share` of the budget's limit.

    The spent amount only rises, so at most one call per day, month or run triggers the warning.
    """
    bar = budget.limit_microusd * share
    if budget.spent_microusd < bar or budget.spent_microusd - last_microusd >= bar:
        return None
    amounts = f"{format_usd(budget.spent_microusd)} of {format_usd(budget.limit_microusd)}"
    spent = budget.spent_microusd / budget.limit_microusd
    return f"{spent:.0%} of {_describe_budget(budget.name, payer)} is spent: {amounts}"


def reset_date(budget_name: str, period: BudgetPeriod) -> date | None:
    """Return the day on which this budget resets, or None for the budget of a run or tree, which never resets."""
    if budget_name.endswith("day"):
        return date_of_day_number(period.day + 1)
    return date_of_day_number(period.month_last_day + 1) if budget_name.endswith("month") else None


def budget_setting(budget_name: str, agent: str) -> str:
    """Return the setting or agent field that a person can change to raise this budget."""
    match budget_name:
        case "run":
            return f"the lower of `cost_microusd_max` of agent '{agent}' and `budgets.run_usd`"
        case "tree":
            return f"the lower of `tree_microusd_max` of agent '{agent}' and `budgets.tree_usd`"
        case "agent's day":
            return f"`day_microusd_max` of agent '{agent}'"
        case "agent's month":
            return f"`month_microusd_max` of agent '{agent}'"
        case _:
            who, period = budget_name.split("'s ")
            return f"`budgets.{who}_{period}_usd`"


def _shared_budget_settings(payer: BudgetPayer) -> str:
    names = ", ".join(f"'{name}'" for name in dict.fromkeys((*payer.delegators, payer.agent)))
    return (
        f"the lowest of `cost_microusd_max` and `tree_microusd_max` of {names}, "
        "and of `budgets.run_usd` and `budgets.tree_usd`"
    )


def _describe_budget(budget_name: str, payer: BudgetPayer) -> str:
    match budget_name:
        case "run":
            return "the budget of this run"
        case "tree":
            return "the budget of this run and the runs it started"
        case _:
            who, period = budget_name.split("'s ")
            name = {"agent": f"agent '{payer.agent}'", "person": f"'{payer.person}'", "instance": "this server"}[who]
            return f"the budget of {name} for {'today' if period == 'day' else 'this month'}"


def _budget_spent_error(
    budget: BudgetBalance, needed_microusd: int, payer: BudgetPayer, period: BudgetPeriod
) -> BudgetSpent:
    resets_on = reset_date(budget.name, period)
    is_shared = bool(payer.delegators) and resets_on is None
    return BudgetSpent(
        _describe_budget(budget.name, payer),
        spent_microusd=budget.spent_microusd,
        reserved_microusd=budget.reserved_microusd,
        limit_microusd=budget.limit_microusd,
        needed_microusd=needed_microusd,
        resets_on=resets_on,
        setting=_shared_budget_settings(payer) if is_shared else budget_setting(budget.name, payer.agent),
    )
