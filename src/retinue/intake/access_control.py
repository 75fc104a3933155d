"""Access control for connectors: identifies the sender of a message, and applies the access rules.

Only an admitted message becomes an envelope.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Protocol

import sqlalchemy as sa
from msgspec import Struct

from retinue.config.access import DEFAULT_ACCESS, AccessSettings
from retinue.connectors.base import InboundKind, InboundMessage
from retinue.domain import address
from retinue.domain.access import (
    AccessAction,
    AccessDecision,
    Activation,
    AmbientMessage,
    Pairing,
    PairingState,
    RefusedSender,
    id_namespace,
)
from retinue.domain.binding import Binding, ChannelFacts, MatchedBy, PeerKind
from retinue.domain.person import Person, Role
from retinue.domain.ports import Clock, EnvelopeAcceptor, IdSource
from retinue.domain.principal import LEVEL_BY_ROLE, TRUST_BY_ROLE, Principal
from retinue.domain.slash_command import COMMAND_LENGTH_MAX
from retinue.domain.storable_text import make_storable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.log_throttle import LogThrottle
from retinue.intake.unknown_senders import UnknownSenders, to_short_line
from retinue.policy.access.access import AccessFacts, decide_access
from retinue.policy.access.bindings import resolve_binding
from retinue.store.channels import ambient_messages, bindings, connector_state, identities, pairings
from retinue.store.channels.channel_migration import activation_key, migrate_channel
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.text.quantity import format_quantity

log = logging.getLogger(__name__)

CODE_CHARS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without characters that look alike: I and 1, O and 0
CODE_LENGTH = 8
NAME_CHARS_MAX = 256
_NOTICE_KEY = "door"
"""Prefix of the idempotency keys of notices. Do not change it: notices would be sent again after an upgrade."""

_SET_ACTIVATION = re.compile(r"/activation(?:@\S{1,64})?\s+(mention|always)\s*", re.IGNORECASE)


class Admission(Struct, frozen=True, kw_only=True):
    """The decision to admit a message: which agents answer it, and how far it is trusted."""

    agents: tuple[str, ...]
    trust: Trust
    may_command: bool = False
    sender_id: str = ""
    person: str = ""  # the person linked to the sender, if any
    from_boss: bool = False
    settings: AccessSettings = DEFAULT_ACCESS
    ambient_messages: tuple[AmbientMessage, ...] = ()  # ambient messages since the agent last read, not addressed to it
    matched_by: MatchedBy = MatchedBy.DEFAULT


class AccessControl(Protocol):
    """Decides which inbound messages are accepted."""

    async def admit(self, connector: str, incoming: InboundMessage) -> Admission | None:
        """Admit a message, or return None if the sender is refused or did not address the agent.

        None means that the message is completely handled, and the caller does nothing more.
        """
        ...

    async def identify_presser(self, connector: str, incoming: InboundMessage) -> Principal | None:
        """Return the person who pressed a button. None if the sender is not linked to a person, or has no access."""
        ...

    async def mark_ambient_read(self, connector: str, channel: str, messages: tuple[AmbientMessage, ...]) -> None:
        """Delete these ambient messages once an agent has received them, so that they are not sent again."""
        ...

    async def migrate_channel(self, connector: str, incoming: InboundMessage) -> None: ...


class _SenderRecord(Struct, frozen=True, kw_only=True):
    """The stored data about a sender and a channel, read in one transaction."""

    person: Person | None
    is_paired: bool
    bindings: tuple[Binding, ...]
    activation: Activation | None
    ambient_messages: tuple[AmbientMessage, ...]
    pending_pairing: Pairing | None
    is_pairing_full: bool


class PolicyAccessControl:
    """Decides which messages are accepted, by the access rules and the stored identities.

    `settings` and `get_platform_name` take the name of a connector. `get_default_agent` returns the
    agent that answers in channels without a binding.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        settings: Callable[[str], AccessSettings],
        get_platform_name: Callable[[str], str],
        *,
        post: EnvelopeAcceptor,
        get_default_agent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._get_platform_name = get_platform_name
        self._get_default_agent = get_default_agent
        self._throttled_log = LogThrottle(log, clock)
        self._unknown_senders = UnknownSenders(ids, post, self._throttled_log)
        self._bindings: tuple[Binding, ...] | None = None  # cache of the stored bindings; None: read them again
        self._bindings_version = 0
        store.on_commit(self._unknown_senders.recheck_all, t.identities, t.admitted_senders, t.bindings)
        store.on_commit(self._forget_bindings, t.bindings)

    def refusals(self) -> list[RefusedSender]:
        """Return the senders refused since the server started, up to a limit. The latest refusal is last."""
        return self._unknown_senders.refusals()

    async def admit(self, connector: str, incoming: InboundMessage) -> Admission | None:
        settings = self._settings(connector)
        who = (connector, incoming.channel, get_sender_id(incoming))
        if self._is_too_old(connector, incoming, settings) or self._unknown_senders.is_refused(
            who, settings, self._clock.now()
        ):
            return None
        known = await self._load_sender(connector, incoming, settings)
        verdict = decide_access(_build_facts(connector, incoming, known), settings)
        match verdict.action:
            case AccessAction.REFUSE:
                await self._refuse(connector, incoming, settings, verdict)
            case AccessAction.PAIR:
                await self._offer_pairing(connector, incoming, settings, known)
            case AccessAction.AMBIENT:
                await self._store_ambient(connector, incoming, settings)
            case AccessAction.ADMIT:
                return await self._build_admission(connector, incoming, settings, known, verdict)
        return None

    async def identify_presser(self, connector: str, incoming: InboundMessage) -> Principal | None:
        """Return the person who pressed a button, or None if the sender's platform id is not linked to a person.

        A sender without a linked person may not answer questions, even by sending the data of a button.
        """
        settings = self._settings(connector)
        known = await self._load_sender(connector, incoming, settings)
        verdict = decide_access(_build_facts(connector, incoming, known, is_mentioned=True), settings)
        if verdict.action is AccessAction.REFUSE:
            await self._refuse(connector, incoming, settings, verdict, is_silent=True)
            return None
        if verdict.action is not AccessAction.ADMIT or known.person is None:
            # Not recorded as refused: the sender may still write, and the next message is accepted.
            self._throttled_log.info("button press refused", connector)
            return None
        role = known.person.role
        return Principal(
            address=address.person_address(known.person.name), level=LEVEL_BY_ROLE[role], trust=TRUST_BY_ROLE[role]
        )

    async def mark_ambient_read(self, connector: str, channel: str, messages: tuple[AmbientMessage, ...]) -> None:
        if messages:
            body = partial(ambient_messages.delete_shown, connector=connector, channel=channel, upto=messages[-1].seq)
            await self._store.write(body, point="access")

    async def migrate_channel(self, connector: str, incoming: InboundMessage) -> None:
        """Store the new id of a channel, after the platform reported that the id changed."""
        body = partial(
            migrate_channel,
            connector=connector,
            channel=incoming.channel,
            new_channel=incoming.text,
            at_ms=to_ms(self._clock.now()),
        )
        went_along = await self._store.write(body, point="access")
        log.info("channel migrated", extra={"connector": connector, "sessions": went_along})

    # --- lookups ---

    def _is_too_old(self, connector: str, incoming: InboundMessage, settings: AccessSettings) -> bool:
        if incoming.sent_at is None or not settings.catch_up_hours:
            return False
        if self._clock.now() - incoming.sent_at <= timedelta(hours=settings.catch_up_hours):
            return False
        self._throttled_log.info("message too old to answer", connector)
        return True

    async def _load_sender(self, connector: str, incoming: InboundMessage, settings: AccessSettings) -> _SenderRecord:
        body = partial(
            _read_sender,
            service=id_namespace(incoming.service or self._get_platform_name(connector), connector),
            instance=connector,
            incoming=incoming,
            cap=settings.pairing_max,
            now_ms=to_ms(self._clock.now()),
            bound=self._bindings,
        )
        rebound = self._bindings_version
        known = await self._store.read(body)
        if rebound == self._bindings_version:  # else a binding changed meanwhile, and what was read may be outdated
            self._bindings = known.bindings
        return known

    def _forget_bindings(self) -> None:
        self._bindings = None
        self._bindings_version += 1

    def _build_channel_facts(self, connector: str, incoming: InboundMessage) -> ChannelFacts:
        if incoming.peer:
            kind = PeerKind.DM
        else:
            kind = PeerKind.CHANNEL if incoming.guild or incoming.team else PeerKind.GROUP
        return ChannelFacts(
            platform=incoming.service or self._get_platform_name(connector),
            connector=connector,
            kind=kind,
            peer=incoming.peer or incoming.channel,
            channel=incoming.channel,
            parent=incoming.parent,
            guild=incoming.guild,
            team=incoming.team,
        )

    # --- actions ---

    async def _build_admission(
        self,
        connector: str,
        incoming: InboundMessage,
        settings: AccessSettings,
        sender: _SenderRecord,
        verdict: AccessDecision,
    ) -> Admission | None:
        sender_id, now = get_sender_id(incoming), self._clock.now()
        if verdict.trust is Trust.UNTRUSTED and not self._unknown_senders.is_within_rate(
            connector, sender_id, settings, now
        ):
            self._throttled_log.info("message over the rate limit", connector)
            return None
        if await self._apply_activation(connector, incoming, verdict):
            return None
        bound = resolve_binding(
            sender.bindings, self._build_channel_facts(connector, incoming), default=self._get_default_agent()
        )
        if bound is None:
            self._throttled_log.warning("no agent bound to channel", connector)
            await self._unknown_senders.notify_owner(
                f"{_NOTICE_KEY}/unbound/{connector}/{now:%Y-%m-%d}",
                f"A message to {connector} was dropped: no agent is bound to the connector. Bind one: "
                f"retinue binding set AGENT {connector}",
            )
            return None
        log.info(
            "message admitted",
            extra={"connector": connector, "agent": bound.agents[0], "matched_by": bound.matched_by.value},
        )
        person = sender.person
        return Admission(
            agents=bound.agents,
            trust=verdict.trust,
            may_command=verdict.may_command,
            sender_id=sender_id,
            person=person.name if person is not None and incoming.sender.is_verified else "",
            from_boss=verdict.trust is Trust.OWNER,
            settings=settings,
            ambient_messages=sender.ambient_messages,
            matched_by=bound.matched_by,
        )

    async def _refuse(
        self,
        connector: str,
        incoming: InboundMessage,
        settings: AccessSettings,
        verdict: AccessDecision,
        *,
        is_silent: bool = False,
    ) -> None:
        sender, now = incoming.sender, self._clock.now()
        who = (connector, incoming.channel, get_sender_id(incoming))
        because = verdict.because
        self._unknown_senders.refuse(who, settings, name=sender.name, because=because, now=now)
        if is_silent or sender.is_program or not incoming.peer:
            return
        await self._unknown_senders.notify_owner(
            f"{_NOTICE_KEY}/strangers/{connector}/{now:%Y-%m-%d}",
            f"An unknown sender wrote to {connector}: {to_short_line(sender.name) or 'no name'} "
            f"(id {to_short_line(who[2])}). They got no answer, because {because} "
            f"({verdict.setting_key or 'a fixed rule'}). You get this notice at most once a day.",
        )

    async def _offer_pairing(
        self, connector: str, incoming: InboundMessage, settings: AccessSettings, sender: _SenderRecord
    ) -> None:
        """Send a pairing code to an unknown sender, and notify the owner. Each happens only once per pairing."""
        if incoming.kind is not InboundKind.MESSAGE:
            return
        sender_id, now = get_sender_id(incoming), self._clock.now()
        pairing = sender.pending_pairing
        if pairing is None and not sender.is_pairing_full:
            id_ = self._ids.new()
            wanted = Pairing(
                id=id_,
                connector=connector,
                platform=id_namespace(incoming.service or self._get_platform_name(connector), connector),
                sender_id=sender_id,
                name=make_storable(to_short_line(incoming.sender.name)),
                code=make_pairing_code(id_),
                state=PairingState.WAITING,
                requested_at=now,
                expires_at=now + timedelta(minutes=settings.pairing_minutes),
            )
            pairing = await self._store.write(
                partial(_store_pairing, pairing=wanted, cap=settings.pairing_max, now_ms=to_ms(now)), point="pair"
            )
        if pairing is None:
            who = (connector, incoming.channel, sender_id)
            because = "too many access requests are pending"
            self._unknown_senders.refuse(who, settings, name=incoming.sender.name, because=because, now=now)
            return
        await self._unknown_senders.notify_once(
            address.parse_address(f"channel:{connector}:{incoming.channel}"),
            f"{_NOTICE_KEY}/code/{pairing.id}",
            "I do not know you yet. To get access, give this code to the owner of this server: "
            f"{pairing.code}. It is valid for {format_quantity(settings.pairing_minutes, 'minute')}.",
        )
        await self._unknown_senders.notify_owner(
            f"{_NOTICE_KEY}/pairing/{pairing.id}",
            f"{pairing.name or 'Someone'} (id {to_short_line(sender_id)}) wrote to {connector} and is asking for "
            f"access. If they give you the code {pairing.code}, accept it: retinue pairing accept {pairing.code}",
        )

    async def _store_ambient(self, connector: str, incoming: InboundMessage, settings: AccessSettings) -> None:
        if incoming.kind is not InboundKind.MESSAGE or not settings.ambient_messages_max or not incoming.text.strip():
            return
        body = partial(
            ambient_messages.add,
            connector=connector,
            channel=incoming.channel,
            message_id=make_storable(incoming.message_id)[:NAME_CHARS_MAX],
            sender_id=make_storable(get_sender_id(incoming))[:NAME_CHARS_MAX],
            name=make_storable(to_short_line(incoming.sender.name or incoming.context.sender_name)),
            text=make_storable(incoming.text),
            limit=settings.ambient_messages_max,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="ambient")

    async def _apply_activation(self, connector: str, incoming: InboundMessage, verdict: AccessDecision) -> bool:
        """Execute the command `/activation mention|always`, which sets which messages of a group the agent answers.

        Without permission, the command is ignored silently. Returns whether the message was this command.
        """
        wanted = _parse_activation(incoming)
        if wanted is None:
            return False
        if not verdict.may_command:
            self._throttled_log.info("command refused", connector)
            return True
        body = partial(
            connector_state.set_value,
            connector=connector,
            key=activation_key(incoming.channel),
            value=wanted.value,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="access")
        scope = "every message in this channel" if wanted is Activation.ALWAYS else "messages that mention me"
        digest = hashlib.sha256(incoming.message_id.encode(errors="replace")).hexdigest()[:16]
        await self._unknown_senders.notify_once(
            address.parse_address(f"channel:{connector}:{incoming.channel}"),
            f"{_NOTICE_KEY}/activation/{hashlib.sha256(incoming.channel.encode(errors='replace')).hexdigest()[:16]}/{digest}",
            f"I now answer {scope}.",
        )
        return True


def get_sender_id(incoming: InboundMessage) -> str:
    """Return the sender's permanent platform id. In a private channel, that is the id of the person there."""
    return incoming.sender.id or incoming.peer


def make_pairing_code(id_: str) -> str:
    """Return a readable pairing code, derived from an unpredictable id."""
    digest = hashlib.sha256(f"pairing/{id_}".encode()).digest()
    return "".join(CODE_CHARS[byte % len(CODE_CHARS)] for byte in digest[:CODE_LENGTH])


def _parse_activation(incoming: InboundMessage) -> Activation | None:
    if incoming.peer or incoming.kind is not InboundKind.MESSAGE or len(incoming.text) > 4 * COMMAND_LENGTH_MAX:
        return None
    found = _SET_ACTIVATION.fullmatch(incoming.text.strip())
    return Activation(found[1].casefold()) if found else None


def _build_facts(
    connector: str, incoming: InboundMessage, sender: _SenderRecord, *, is_mentioned: bool = False
) -> AccessFacts:
    person = sender.person
    ours = incoming.quoted is not None and incoming.quoted.ours
    reacts = incoming.kind is InboundKind.REACTION  # whether the message was ours is checked later
    return AccessFacts(
        connector=connector,
        is_direct=bool(incoming.peer),
        channel=incoming.channel,
        parent_channel=incoming.parent,
        sender_id=get_sender_id(incoming),
        is_program=incoming.sender.is_program,
        is_verified=incoming.sender.is_verified,
        person=person.name if person is not None else "",
        is_owner=person is not None and person.role is Role.OWNER,
        is_paired=sender.is_paired,
        is_mentioned=is_mentioned or incoming.mentioned or ours or reacts or _parse_activation(incoming) is not None,
        activation=sender.activation,
        text=incoming.text,
    )


def _read_sender(
    conn: sa.Connection,
    *,
    service: str,
    instance: str,
    incoming: InboundMessage,
    cap: int,
    now_ms: int,
    bound: tuple[Binding, ...] | None,
) -> _SenderRecord:
    """Read the stored data about the sender of a message.

    `bound` is the cached list of all bindings, or None to read them. There may be thousands of
    bindings, and they seldom change.
    """
    sender_id, direct = get_sender_id(incoming), bool(incoming.peer)
    person = identities.find_person(conn, service, sender_id) if incoming.sender.is_verified else None
    waiting = pairings.get_waiting(conn, instance, sender_id, now_ms=now_ms) if direct and person is None else None
    word = None if direct else connector_state.get_value(conn, instance, activation_key(incoming.channel))
    return _SenderRecord(
        person=person,
        is_paired=pairings.is_admitted(conn, instance, sender_id),
        bindings=tuple(bindings.list_all(conn)) if bound is None else bound,
        activation=Activation(word) if word in tuple(Activation) else None,
        ambient_messages=() if direct else tuple(ambient_messages.list_messages(conn, instance, incoming.channel)),
        pending_pairing=waiting,
        is_pairing_full=direct and person is None and pairings.is_full(conn, instance, cap=cap, now_ms=now_ms),
    )


def _store_pairing(conn: sa.Connection, *, pairing: Pairing, cap: int, now_ms: int) -> Pairing | None:
    tx = Transaction(conn, now_ms)
    asked = pairings.request_access(conn, pairing, cap=cap, at_ms=tx.at_ms)
    tx.close()
    return asked.pairing
