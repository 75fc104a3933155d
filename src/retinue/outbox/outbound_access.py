"""Decides where agents may write: to channels of connectors that they are bound to, if the access
rules admit someone there. An answer always goes to the channel of its question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from retinue.config.access import DoorSettings
from retinue.config.connectors import OWN_CONNECTORS
from retinue.connectors.base import FailureKind
from retinue.domain.access import DmPolicy, GroupPolicy, id_space
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import Draft, Envelope, Receipt
from retinue.domain.errors import NotAllowed
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Post
from retinue.domain.session import Origin, OriginKind
from retinue.policy.access.access import group_of
from retinue.policy.access.bindings import reaches
from retinue.store.channels import bindings, identities, pairings
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions

WhyNot = Callable[[sa.Connection, Envelope], str]
"""Why an envelope does not leave the house; empty where it does."""


def everywhere(_conn: sa.Connection, _envelope: Envelope) -> str:
    """For a server without bindings."""
    return ""


class Reach:
    """Outbound access rules.

    `settings` and `get_platform_name` take the name of a connector. `get_default_agent` returns the
    agent that answers without a binding, and so may write.
    """

    def __init__(
        self,
        settings: Callable[[str], DoorSettings],
        kind_of: Callable[[str], str],
        default: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._kind_of = kind_of
        self._default = default

    def of_envelope(self, conn: sa.Connection, envelope: Envelope) -> str:
        return self.why_not(conn, envelope.sender, envelope.recipient, envelope.reply_to)

    def why_not(
        self, conn: sa.Connection, sender: Address, recipient: Address, reply_to: EnvelopeId | None = None
    ) -> str:
        if sender.kind is not AddressKind.AGENT or recipient.kind is not AddressKind.CHANNEL:
            return ""
        if recipient.name in OWN_CONNECTORS or _answers(conn, reply_to, recipient):
            return ""
        agent, instance, room = sender.name, recipient.name, recipient.rest
        service = self._kind_of(instance)
        mine = [
            each
            for each in bindings.everything(conn)
            if reaches(each, agent=agent, service=service, instance=instance, room=room)
        ]
        if not mine and (self._default() or "").casefold() != agent.casefold():
            return f"{agent} is not bound to {instance}, or not to this room of it"
        if any(each.match.peer == room for each in mine) or self._is_known(conn, agent, service, recipient):
            return ""
        return f"nobody in this room may talk to the house at {instance}"

    def _is_known(self, conn: sa.Connection, agent: str, service: str, recipient: Address) -> bool:
        """Whether someone in the channel may write to us. A direct channel is known by the person's
        id, any channel by an earlier session."""
        settings, room = self._settings(recipient.name), recipient.rest
        if settings.dm is DmPolicy.OPEN or room in settings.allow_from:
            return True
        if settings.group_policy is not GroupPolicy.CLOSED and group_of(settings, room) is not None:
            return True
        if identities.who(conn, id_space(service, recipient.name), room) is not None or pairings.is_admitted(
            conn, recipient.name, room
        ):
            return True
        return sessions.by_origin(conn, agent, Origin(OriginKind.CHAT, str(recipient))) is not None


def _answers(conn: sa.Connection, reply_to: EnvelopeId | None, recipient: Address) -> bool:
    question = envelopes.get(conn, reply_to) if reply_to is not None else None
    return question is not None and question.sender == recipient


class WithinReach:
    """Posts an agent's envelopes only where it may write. The agent gets the error at once, not
    only at delivery."""

    def __init__(self, post: Post, store: Store, reach: Reach) -> None:
        self._post = post
        self._store = store
        self._reach = reach

    async def post(self, draft: Draft) -> Receipt:
        if draft.sender.kind is AddressKind.AGENT and draft.recipient.kind is AddressKind.CHANNEL:
            look = partial(self._reach.why_not, sender=draft.sender, recipient=draft.recipient, reply_to=draft.reply_to)
            if because := await self._store.read(look):
                raise NotAllowed(
                    f"{draft.sender.name} may not write to {draft.recipient}",
                    because=f"{FailureKind.NO_BINDING}: {because}",
                    try_this="retinue binding list shows who is bound where",
                    code="delivery.no-binding",
                )
        return await self._post.post(draft)
