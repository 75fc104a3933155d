"""Which conversations in channels are one session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config import checks
from retinue.config.rules import Effect, setting
from retinue.domain.session_keys import DmScope


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Which conversations are one session."""

    dm_scope: DmScope = setting(
        DmScope.PER_ACCOUNT_CHANNEL_PEER,
        "Which letters from people in channels go to one session of an agent: all (`main`), those of one person "
        "(`per-peer`), of one person in one service (`per-channel-peer`), or of one person at one account there "
        "(`per-account-channel-peer`).",
        effect=Effect.MESSAGE,
    )
    identity_links: Mapping[str, tuple[str, ...]] = setting(
        cast("Mapping[str, tuple[str, ...]]", {}),
        "For a name, who is that person in which service, as `SERVICE:ID`: the name then stands for the id in keys.",
        effect=Effect.MESSAGE,
        check=checks.name,
        example="maria",
    )


PLAIN = SessionSettings()


def plain() -> SessionSettings:
    """In a house whose settings say nothing of it."""
    return PLAIN
