"""Access control for tests: it admits every sender, and trusts a connector that identifies the sender as the owner."""

from __future__ import annotations

from collections.abc import Callable

from retinue.config.access import AccessSettings
from retinue.connectors.base import InboundMessage
from retinue.domain import address
from retinue.domain.access import AmbientMessage, DmPolicy, GroupPolicy
from retinue.domain.address import Address
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.trust import Trust
from retinue.intake.access_control import Admission, get_sender_id
from retinue.intake.routing import OWNER

OPEN_ACCESS = AccessSettings(dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)


class AllowAllAccess:
    """Admits every sender of a message.

    `agent_for_channel` returns the agent that answers in a channel, or None if there is none.
    """

    def __init__(
        self, agent_for_channel: Callable[[Address], Address | None], settings: AccessSettings = OPEN_ACCESS
    ) -> None:
        self._agent_for_channel = agent_for_channel
        self._settings = settings

    async def admit(self, connector: str, incoming: InboundMessage) -> Admission | None:
        agent = self._agent_for_channel(address.parse_address(f"channel:{connector}:{incoming.channel}"))
        if agent is None:
            return None
        is_boss = incoming.context.from_boss
        return Admission(
            agents=(agent.name,),
            trust=Trust.OWNER if is_boss else Trust.UNTRUSTED,
            may_command=is_boss,
            sender_id=get_sender_id(incoming),
            from_boss=is_boss,
            settings=self._settings,
        )

    async def identify_presser(self, connector: str, incoming: InboundMessage) -> Principal | None:
        boss = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)
        return boss if incoming.context.from_boss else None

    async def mark_ambient_read(self, connector: str, channel: str, messages: tuple[AmbientMessage, ...]) -> None: ...

    async def migrate_channel(self, connector: str, incoming: InboundMessage) -> None: ...
