"""Access control for tests that admits every sender and believes a connector about who the owner is."""

from __future__ import annotations

from collections.abc import Callable

from retinue.config.access import DoorSettings
from retinue.connectors.base import Incoming
from retinue.domain import address
from retinue.domain.access import DmPolicy, GroupPolicy, Overheard
from retinue.domain.address import Address
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.trust import Trust
from retinue.intake.access_control import Welcome, speaker_of
from retinue.intake.routing import OWNER

WIDE_OPEN = DoorSettings(dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)


class OpenDoor:
    """Admits everyone. `agent_for_channel` returns the agent that answers in a channel, or None if there is none."""

    def __init__(self, bound: Callable[[Address], Address | None], settings: DoorSettings = WIDE_OPEN) -> None:
        self._bound = bound
        self._settings = settings

    async def meet(self, instance: str, incoming: Incoming) -> Welcome | None:
        agent = self._bound(address.parse(f"channel:{instance}:{incoming.room}"))
        if agent is None:
            return None
        is_boss = incoming.context.from_boss
        return Welcome(
            agents=(agent.name,),
            trust=Trust.OWNER if is_boss else Trust.UNTRUSTED,
            may_command=is_boss,
            speaker=speaker_of(incoming),
            from_boss=is_boss,
            settings=self._settings,
        )

    async def who_pressed(self, instance: str, incoming: Incoming) -> Principal | None:
        boss = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)
        return boss if incoming.context.from_boss else None

    async def told(self, instance: str, room: str, before: tuple[Overheard, ...]) -> None: ...

    async def moved(self, instance: str, incoming: Incoming) -> None: ...
