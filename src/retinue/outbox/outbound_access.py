"""Decides which channels an agent may write to.

An agent may write to the channels of its bindings, if the access rules admit someone in the
channel. It may always answer in the channel in which a question was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from retinue.config.access import AccessSettings
from retinue.config.connectors import INTERNAL_CONNECTORS
from retinue.connectors.base import FailureKind
from retinue.domain.access import DmPolicy, GroupPolicy, id_namespace
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import Envelope, EnvelopeDraft, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import EnvelopeAcceptor
from retinue.domain.session import Origin, OriginKind
from retinue.outbox.errors import ChannelNotWritable
from retinue.policy.access.access import find_group_settings
from retinue.policy.access.bindings import allows_writing
from retinue.store.channels import bindings, identities, pairings
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions

GetRefusal = Callable[[sa.Connection, Envelope], str]
"""Returns why an envelope must not be sent, or an empty string if it may be sent."""


def allow_all(_conn: sa.Connection, _envelope: Envelope) -> str:
    """Refuse nothing: agents may write to every channel. Used if no other check is configured."""
    return ""


class OutboundAccess:
    """Decides whether an agent may write to a channel.

    `settings` and `get_platform_name` take the name of a connector. `get_default_agent` returns the
    agent that answers in channels without a binding, and so may write to them.
    """

    def __init__(
        self,
        settings: Callable[[str], AccessSettings],
        get_platform_name: Callable[[str], str],
        get_default_agent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._get_platform_name = get_platform_name
        self._get_default_agent = get_default_agent

    def get_envelope_refusal(self, conn: sa.Connection, envelope: Envelope) -> str:
        return self.get_refusal(conn, envelope.sender, envelope.recipient, envelope.reply_to)

    def get_refusal(
        self, conn: sa.Connection, sender: Address, recipient: Address, reply_to: EnvelopeId | None = None
    ) -> str:
        if sender.kind is not AddressKind.AGENT or recipient.kind is not AddressKind.CHANNEL:
            return ""
        if recipient.name in INTERNAL_CONNECTORS or _is_answer(conn, reply_to, recipient):
            return ""
        agent, instance, channel = sender.name, recipient.name, recipient.rest
        service = self._get_platform_name(instance)
        mine = [
            each
            for each in bindings.list_all(conn)
            if allows_writing(each, agent=agent, platform=service, connector=instance, channel=channel)
        ]
        if not mine and (self._get_default_agent() or "").casefold() != agent.casefold():
            return f"{agent} is not bound to {instance}, or its binding does not include this channel"
        if any(each.match.peer == channel for each in mine) or self._is_known(conn, agent, service, recipient):
            return ""
        return f"no one in this channel may write to {instance}"

    def _is_known(self, conn: sa.Connection, agent: str, service: str, recipient: Address) -> bool:
        """Whether someone in the channel may write to this server, or the agent already has a session there.

        The id of a direct channel is also the platform id of the person in it.
        """
        settings, channel = self._settings(recipient.name), recipient.rest
        if settings.dm_policy is DmPolicy.OPEN or channel in settings.allow_from:
            return True
        if settings.group_policy is not GroupPolicy.CLOSED and find_group_settings(settings, channel) is not None:
            return True
        if identities.find_person(
            conn, id_namespace(service, recipient.name), channel
        ) is not None or pairings.is_admitted(conn, recipient.name, channel):
            return True
        return sessions.get_by_origin(conn, agent, Origin(OriginKind.CHAT, str(recipient))) is not None


def _is_answer(conn: sa.Connection, reply_to: EnvelopeId | None, recipient: Address) -> bool:
    question = envelopes.get(conn, reply_to) if reply_to is not None else None
    return question is not None and question.sender == recipient


class AccessCheckedPost:
    """Accepts an envelope from an agent to a channel only if the agent may write there.

    Otherwise it raises `ChannelNotWritable` and stores nothing.
    """

    def __init__(self, post: EnvelopeAcceptor, store: Store, access: OutboundAccess) -> None:
        self._post = post
        self._store = store
        self._access = access

    async def accept(self, draft: EnvelopeDraft) -> Receipt:
        if draft.sender.kind is AddressKind.AGENT and draft.recipient.kind is AddressKind.CHANNEL:
            look = partial(
                self._access.get_refusal, sender=draft.sender, recipient=draft.recipient, reply_to=draft.reply_to
            )
            if because := await self._store.read(look):
                raise ChannelNotWritable(
                    draft.sender.name, str(draft.recipient), because=f"{FailureKind.NO_BINDING}: {because}"
                )
        return await self._post.accept(draft)
