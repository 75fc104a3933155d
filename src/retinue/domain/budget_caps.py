"""How a budget is enforced: the maximum cost of a model call is reserved before the call is made.

The bound assumes the longest possible input at the highest input price, and an output no longer
than requested. Nothing is estimated downwards, so a budget holds whatever the call costs.
`store/runs/money` provides the sums, in the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from msgspec import Struct

from retinue.domain.model import TOKENS_PRICED, Price
from retinue.domain.money import BudgetSpent, CallTerms, Days, date_of, usd

OUTPUT_TOKENS_LEAST = 1_024  # a shorter reply is not worth requesting


class Standing(Struct, frozen=True, kw_only=True):
    """The status of one budget: what is spent, and what is reserved for calls in progress."""

    what: str  # a name from `BudgetLimits.by_name`
    cap_microusd: int
    settled_microusd: int
    held_microusd: int = 0

    @property
    def left_microusd(self) -> int:
        return self.cap_microusd - self.settled_microusd - self.held_microusd


class Payer(Struct, frozen=True, kw_only=True):
    """Who makes a call and for whom, for error texts. An empty `person` means that no person is
    charged.

    `delegators` are the agents that delegated the work. Their budgets limit it too.
    """

    agent: str
    person: str = ""
    above: tuple[str, ...] = ()


def bound_microusd(price: Price, *, input_tokens: int, output_tokens: int) -> int:
    """Return the maximum cost of a call that reads and writes at most this much, rounded up like its actual cost."""
    total = input_tokens * price.dearest_input + output_tokens * price.output
    return price.call - (-total // TOKENS_PRICED)


def affordable(price: Price, *, input_tokens_bound: int, output_tokens_max: int, left_microusd: int) -> int:
    """Return how many output tokens are affordable, up to the maximum; 0 if not even the input is."""
    left = (left_microusd - price.call) * TOKENS_PRICED - input_tokens_bound * price.dearest_input
    if left < 0:
        return 0
    return output_tokens_max if price.output == 0 else min(output_tokens_max, left // price.output)


def grant(terms: CallTerms, price: Price, standings: Sequence[Standing], *, payer: Payer, days: Days) -> int:
    """Return how many output tokens a call may use without exceeding any budget. Raises BudgetSpent
    if that is too few."""
    wanted = terms.output_tokens_max
    if not standings:
        return wanted
    tightest = min(standings, key=lambda standing: standing.left_microusd)
    tokens = terms.input_tokens_bound
    least = min(OUTPUT_TOKENS_LEAST, wanted)
    needs = bound_microusd(price, input_tokens=tokens, output_tokens=least)
    if needs > tightest.left_microusd:
        raise _spent(tightest, needs, payer, days)
    return affordable(price, input_tokens_bound=tokens, output_tokens_max=wanted, left_microusd=tightest.left_microusd)


def warning(standing: Standing, share: float, *, last_microusd: int, payer: Payer) -> str | None:
    """Return a warning if the latest settled cost took a budget over this share of its limit.

    Settled sums only rise, so exactly one call per day, month or run triggers the warning.
    """
    bar = standing.cap_microusd * share
    if standing.settled_microusd < bar or standing.settled_microusd - last_microusd >= bar:
        return None
    amounts = f"{usd(standing.settled_microusd)} of {usd(standing.cap_microusd)}"
    spent = standing.settled_microusd / standing.cap_microusd
    return f"{spent:.0%} of {_whose(standing.what, payer)} is spent: {amounts}"


def free_again(what: str, days: Days) -> date | None:
    """Return the day on which this budget resets. The budget of one run never does."""
    if what.endswith("day"):
        return date_of(days.day + 1)
    return date_of(days.month_to + 1) if what.endswith("month") else None


def key_of(what: str, agent: str) -> str:
    """Return what to raise for a higher budget: a setting, or a field of an agent."""
    match what:
        case "run":
            return f"the lower of `cost_microusd_max` of agent '{agent}' and `budgets.run_usd`"
        case "tree":
            return f"the lower of `tree_microusd_max` of agent '{agent}' and `budgets.tree_usd`"
        case "agent's day":
            return f"`day_microusd_max` of agent '{agent}'"
        case "agent's month":
            return f"`month_microusd_max` of agent '{agent}'"
        case _:
            who, period = what.split("'s ")
            return f"`budgets.{who}_{period}_usd`"


def _shared_key(payer: Payer) -> str:
    names = ", ".join(f"'{name}'" for name in dict.fromkeys((*payer.above, payer.agent)))
    return f"the lowest of `cost_microusd_max` and `tree_microusd_max` of {names}, and of those in `budgets`"


def _whose(what: str, payer: Payer) -> str:
    match what:
        case "run":
            return "the budget of this run"
        case "tree":
            return "the budget of this run and those that came of it"
        case _:
            who, period = what.split("'s ")
            name = {"agent": f"agent '{payer.agent}'", "person": f"'{payer.person}'", "house": "the house"}[who]
            return f"the budget of {name} for {'today' if period == 'day' else 'this month'}"


def _spent(standing: Standing, needs_microusd: int, payer: Payer, days: Days) -> BudgetSpent:
    held = f" and {usd(standing.held_microusd)} held for calls under way" if standing.held_microusd else ""
    again = free_again(standing.what, days)
    raise_it = f"raise {_shared_key(payer) if payer.above and again is None else key_of(standing.what, payer.agent)}"
    return BudgetSpent(
        f"{_whose(standing.what, payer)} is spent",
        because=f"{usd(standing.settled_microusd)} of {usd(standing.cap_microusd)} is spent{held}, "
        f"and the next call may cost {usd(needs_microusd)}",
        try_this=f"wait until {again}, or {raise_it}" if again else raise_it,
    )
