"""Money: what a call of a model may cost before it is made, and what it came to. Millionths of a dollar throughout."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.domain.model import ModelRef, Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What may be spent, from the narrowest to the widest. None: no cap."""

    run_microusd: int | None = None
    tree_microusd: int | None = None
    agent_day_microusd: int | None = None
    agent_month_microusd: int | None = None
    person_day_microusd: int | None = None
    person_month_microusd: int | None = None
    house_day_microusd: int | None = None
    house_month_microusd: int | None = None
    warn_share: float = 0.8

    @property
    def any(self) -> bool:
        return any(cap is not None for cap in self.of_each().values())

    def of_each(self) -> dict[str, int | None]:
        """Each cap under the name of what it caps, in the order in which they are looked at."""
        return {
            "run": self.run_microusd,
            "tree": self.tree_microusd,
            "agent's day": self.agent_day_microusd,
            "agent's month": self.agent_month_microusd,
            "person's day": self.person_day_microusd,
            "person's month": self.person_month_microusd,
            "house's day": self.house_day_microusd,
            "house's month": self.house_month_microusd,
        }


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What one call of a model is about to be: reserved with its intent, in the same commit."""

    ref: ModelRef
    credential: str = ""
    price: Price | None = None
    input_tokens_bound: int = 0
    output_tokens_max: int = 0
    caps: Caps = NO_CAPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What a call may take: no more output than this was paid for. `warnings` are caps that are nearly reached."""

    output_tokens_max: int
    reserved_microusd: int = 0
    warnings: tuple[str, ...] = ()
