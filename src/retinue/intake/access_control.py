"""Access control for connectors: identifies the sender, asks the policy, and acts on its decision.
Only admitted messages go on to the intake."""

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

from retinue.config.access import CLOSED, DoorSettings
from retinue.connectors.base import Heard, Incoming
from retinue.domain import address
from retinue.domain.access import Activation, Entry, Overheard, Pairing, PairingState, Refusal, Verdict, id_space
from retinue.domain.binding import Binding, MatchedBy, PeerKind, Place
from retinue.domain.person import Person, Role
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.principal import LEVEL_OF, TRUST_OF, Principal
from retinue.domain.slash_command import COMMAND_LENGTH_MAX
from retinue.domain.storable_text import storable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.log_throttle import Sparing
from retinue.intake.unknown_senders import Strangers, plain
from retinue.policy.access.access import Facts, may_talk
from retinue.policy.access.bindings import who_answers
from retinue.store.channels import ambient_messages, bindings, connector_state, identities, pairings
from retinue.store.channels.channel_migration import activation_key, move_room
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page

log = logging.getLogger(__name__)

CODE_CHARS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # no characters that can be confused
CODE_LENGTH = 8
NAME_CHARS_MAX = 256

_SET_ACTIVATION = re.compile(r"/activation(?:@\S{1,64})?\s+(mention|always)\s*", re.IGNORECASE)


class Welcome(Struct, frozen=True, kw_only=True):
    """An admitted message: who answers it, and how far it is trusted."""

    agents: tuple[str, ...]
    trust: Trust
    may_command: bool = False
    speaker: str = ""
    person: str = ""  # the linked person, if the sender is one
    from_boss: bool = False
    settings: DoorSettings = CLOSED
    before: tuple[Overheard, ...] = ()  # ambient messages since the agent last read, not addressed to it
    matched_by: MatchedBy = MatchedBy.DEFAULT


class Keeper(Protocol):
    """Decides which inbound messages are accepted."""

    async def meet(self, instance: str, incoming: Incoming) -> Welcome | None:
        """Admit a message. None: the sender is refused or did not address us, and all consequences
        are handled."""
        ...

    async def who_pressed(self, instance: str, incoming: Incoming) -> Principal | None:
        """The linked person who pressed a button; None if the sender may not."""
        ...

    async def told(self, instance: str, room: str, before: tuple[Overheard, ...]) -> None:
        """Record that these ambient messages were passed on, so that they are not repeated."""
        ...

    async def moved(self, instance: str, incoming: Incoming) -> None: ...


class _Known(Struct, frozen=True, kw_only=True):
    """Stored facts about a sender and a channel at one moment."""

    person: Person | None
    paired: bool
    bindings: tuple[Binding, ...]
    activation: Activation | None
    before: tuple[Overheard, ...]
    waiting: Pairing | None
    full: bool


class Doorkeeper:
    """Access control by rules and stored identities.

    `settings` and `get_platform_name` take the name of a connector. `get_default_agent` returns the
    agent that answers without a binding.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        settings: Callable[[str], DoorSettings],
        kind_of: Callable[[str], str],
        *,
        post: Post,
        default: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._kind_of = kind_of
        self._default = default
        self._lines = Sparing(log, clock)
        self._strangers = Strangers(ids, post, self._lines)
        self._bindings: tuple[Binding, ...] | None = None  # as stored; None: read again
        self._rebound = 0
        store.on_commit(self._strangers.forget, t.identities, t.admitted, t.bindings)
        store.on_commit(self._forget_bindings, t.bindings)

    def refusals(self) -> list[Refusal]:
        """Refusals since the server started, the latest last. Limited in number."""
        return self._strangers.refusals()

    async def meet(self, instance: str, incoming: Incoming) -> Welcome | None:
        settings = self._settings(instance)
        who = (instance, incoming.room, speaker_of(incoming))
        if self._is_too_old(instance, incoming, settings) or self._strangers.is_turned_away(
            who, settings, self._clock.now()
        ):
            return None
        known = await self._look(instance, incoming, settings)
        verdict = may_talk(_facts(instance, incoming, known), settings)
        match verdict.entry:
            case Entry.REFUSE:
                await self._refuse(instance, incoming, settings, verdict)
            case Entry.PAIR:
                await self._pair(instance, incoming, settings, known)
            case Entry.OVERHEAR:
                await self._overhear(instance, incoming, settings)
            case Entry.ADMIT:
                return await self._admit(instance, incoming, settings, known, verdict)
        return None

    async def who_pressed(self, instance: str, incoming: Incoming) -> Principal | None:
        """Only linked people: a press decides something, and others may have read its data."""
        settings = self._settings(instance)
        known = await self._look(instance, incoming, settings)
        verdict = may_talk(_facts(instance, incoming, known, mentioned=True), settings)
        if verdict.entry is Entry.REFUSE:
            await self._refuse(instance, incoming, settings, verdict, quietly=True)
            return None
        if verdict.entry is not Entry.ADMIT or known.person is None:
            # Not recorded as refused: the sender may still write, and the next message is accepted.
            self._lines.info("press refused at the door", instance)
            return None
        role = known.person.role
        return Principal(address=address.person(known.person.name), level=LEVEL_OF[role], trust=TRUST_OF[role])

    async def told(self, instance: str, room: str, before: tuple[Overheard, ...]) -> None:
        if before:
            body = partial(ambient_messages.told, instance=instance, room=room, upto=before[-1].seq)
            await self._store.write(body, point="door")

    async def moved(self, instance: str, incoming: Incoming) -> None:
        """A channel has a new id. Only the platform reports this, and an invalid id is refused."""
        body = partial(
            move_room, instance=instance, room=incoming.room, new_room=incoming.text, at_ms=to_ms(self._clock.now())
        )
        went_along = await self._store.write(body, point="door")
        log.info("room moved", extra={"connector": instance, "sessions": went_along})

    # --- lookups ---

    def _is_too_old(self, instance: str, incoming: Incoming, settings: DoorSettings) -> bool:
        if incoming.said_at is None or not settings.catch_up_hours:
            return False
        if self._clock.now() - incoming.said_at <= timedelta(hours=settings.catch_up_hours):
            return False
        self._lines.info("message too old to be answered", instance)
        return True

    async def _look(self, instance: str, incoming: Incoming, settings: DoorSettings) -> _Known:
        body = partial(
            _look,
            service=id_space(incoming.service or self._kind_of(instance), instance),
            instance=instance,
            incoming=incoming,
            cap=settings.pairing_max,
            now_ms=to_ms(self._clock.now()),
            bound=self._bindings,
        )
        rebound = self._rebound
        known = await self._store.read(body)
        if rebound == self._rebound:  # else a binding changed meanwhile, and these may be outdated
            self._bindings = known.bindings
        return known

    def _forget_bindings(self) -> None:
        self._bindings = None
        self._rebound += 1

    def _place(self, instance: str, incoming: Incoming) -> Place:
        if incoming.peer:
            kind = PeerKind.DM
        else:
            kind = PeerKind.CHANNEL if incoming.guild or incoming.team else PeerKind.GROUP
        return Place(
            service=incoming.service or self._kind_of(instance),
            instance=instance,
            kind=kind,
            peer=incoming.peer or incoming.room,
            room=incoming.room,
            parent=incoming.parent,
            guild=incoming.guild,
            team=incoming.team,
        )

    # --- actions ---

    async def _admit(
        self, instance: str, incoming: Incoming, settings: DoorSettings, known: _Known, verdict: Verdict
    ) -> Welcome | None:
        speaker, now = speaker_of(incoming), self._clock.now()
        if verdict.trust is Trust.UNTRUSTED and not self._strangers.has_room_for(instance, speaker, settings, now):
            self._lines.info("message beyond the rate", instance)
            return None
        if await self._sets_activation(instance, incoming, verdict):
            return None
        bound = who_answers(known.bindings, self._place(instance, incoming), default=self._default())
        if bound is None:
            self._lines.warning("no agent answers here", instance)
            await self._strangers.tell_owner(
                f"door/unbound/{instance}/{now:%Y-%m-%d}",
                f"Somebody who may talk wrote to {instance}, and no agent answers there. Bind one: "
                f"retinue binding set AGENT {instance}",
            )
            return None
        log.info(
            "message let in",
            extra={"connector": instance, "agent": bound.agents[0], "matched_by": bound.matched_by.value},
        )
        person = known.person
        return Welcome(
            agents=bound.agents,
            trust=verdict.trust,
            may_command=verdict.may_command,
            speaker=speaker,
            person=person.name if person is not None and incoming.speaker.vouched else "",
            from_boss=verdict.trust is Trust.OWNER,
            settings=settings,
            before=known.before,
            matched_by=bound.matched_by,
        )

    async def _refuse(
        self, instance: str, incoming: Incoming, settings: DoorSettings, verdict: Verdict, *, quietly: bool = False
    ) -> None:
        speaker, now = incoming.speaker, self._clock.now()
        who = (instance, incoming.room, speaker_of(incoming))
        because = verdict.because
        self._strangers.turn_away(who, settings, name=speaker.name, because=because, now=now)
        if quietly or speaker.is_program or not incoming.peer:
            return
        await self._strangers.tell_owner(
            f"door/strangers/{instance}/{now:%Y-%m-%d}",
            f"Somebody who is not known here wrote to {instance}: {plain(speaker.name) or 'without a name'} "
            f"(id {plain(who[2])}). They were not answered, because {because} ({verdict.key or 'always so'}). "
            "You are told this once a day, however many write.",
        )

    async def _pair(self, instance: str, incoming: Incoming, settings: DoorSettings, known: _Known) -> None:
        """Send a code to an unknown sender, and notify the owner. Both happen once, whatever else
        the sender writes."""
        if incoming.kind is not Heard.MESSAGE:
            return
        speaker, now = speaker_of(incoming), self._clock.now()
        pairing = known.waiting
        if pairing is None and not known.full:
            id_ = self._ids.new()
            wanted = Pairing(
                id=id_,
                instance=instance,
                service=id_space(incoming.service or self._kind_of(instance), instance),
                speaker=speaker,
                name=storable(plain(incoming.speaker.name)),
                code=code_from(id_),
                state=PairingState.WAITING,
                asked_at=now,
                expires_at=now + timedelta(minutes=settings.pairing_minutes),
            )
            pairing = await self._store.write(
                partial(_ask, pairing=wanted, cap=settings.pairing_max, now_ms=to_ms(now)), point="pair"
            )
        if pairing is None:
            who = (instance, incoming.room, speaker)
            because = "as many wait to be let in as may"
            self._strangers.turn_away(who, settings, name=incoming.speaker.name, because=because, now=now)
            return
        await self._strangers.tell(
            address.parse(f"channel:{instance}:{incoming.room}"),
            f"door/code/{pairing.id}",
            "I do not know you yet. Give this code to whoever runs this house, and they can let you in: "
            f"{pairing.code}. It holds for {settings.pairing_minutes} minutes.",
        )
        await self._strangers.tell_owner(
            f"door/pairing/{pairing.id}",
            f"{pairing.name or 'Somebody'} (id {plain(speaker)}) wrote to {instance} and asks to be let in. If they "
            f"tell you the code {pairing.code}, it is they: retinue pairing accept {pairing.code}",
        )

    async def _overhear(self, instance: str, incoming: Incoming, settings: DoorSettings) -> None:
        if incoming.kind is not Heard.MESSAGE or not settings.history_limit or not incoming.text.strip():
            return
        body = partial(
            ambient_messages.add,
            instance=instance,
            room=incoming.room,
            message_id=storable(incoming.message_id)[:NAME_CHARS_MAX],
            speaker=storable(speaker_of(incoming))[:NAME_CHARS_MAX],
            name=storable(plain(incoming.speaker.name or incoming.context.sender_name)),
            text=storable(incoming.text),
            limit=settings.history_limit,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="overhear")

    async def _sets_activation(self, instance: str, incoming: Incoming, verdict: Verdict) -> bool:
        """Apply `/activation mention|always` to its channel, until it is given again. An
        unauthorized command is ignored silently."""
        wanted = _activation_in(incoming)
        if wanted is None:
            return False
        if not verdict.may_command:
            self._lines.info("command refused at the door", instance)
            return True
        body = partial(
            connector_state.put,
            instance=instance,
            key=activation_key(incoming.room),
            value=wanted.value,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="door")
        said = "whatever is said here" if wanted is Activation.ALWAYS else "what names me"
        digest = hashlib.sha256(incoming.message_id.encode(errors="replace")).hexdigest()[:16]
        await self._strangers.tell(
            address.parse(f"channel:{instance}:{incoming.room}"),
            f"door/activation/{hashlib.sha256(incoming.room.encode(errors='replace')).hexdigest()[:16]}/{digest}",
            f"From now on I answer {said}.",
        )
        return True


def speaker_of(incoming: Incoming) -> str:
    """The permanent id of the sender. In a channel with one person, that person is the sender."""
    return incoming.speaker.id or incoming.peer


def code_from(id_: str) -> str:
    """A readable code, derived from an unpredictable id."""
    digest = hashlib.sha256(f"pairing/{id_}".encode()).digest()
    return "".join(CODE_CHARS[byte % len(CODE_CHARS)] for byte in digest[:CODE_LENGTH])


def _activation_in(incoming: Incoming) -> Activation | None:
    if incoming.peer or incoming.kind is not Heard.MESSAGE or len(incoming.text) > 4 * COMMAND_LENGTH_MAX:
        return None
    found = _SET_ACTIVATION.fullmatch(incoming.text.strip())
    return Activation(found[1].casefold()) if found else None


def _facts(instance: str, incoming: Incoming, known: _Known, *, mentioned: bool = False) -> Facts:
    person = known.person
    ours = incoming.quoted is not None and incoming.quoted.ours
    reacts = incoming.kind is Heard.REACTION  # to any message; whether it is ours is checked later
    return Facts(
        instance=instance,
        direct=bool(incoming.peer),
        room=incoming.room,
        parent=incoming.parent,
        speaker=speaker_of(incoming),
        is_program=incoming.speaker.is_program,
        vouched=incoming.speaker.vouched,
        person=person.name if person is not None else "",
        is_owner=person is not None and person.role is Role.OWNER,
        is_paired=known.paired,
        mentioned=mentioned or incoming.mentioned or ours or reacts or _activation_in(incoming) is not None,
        activation=known.activation,
        text=incoming.text,
    )


def _look(
    conn: sa.Connection,
    *,
    service: str,
    instance: str,
    incoming: Incoming,
    cap: int,
    now_ms: int,
    bound: tuple[Binding, ...] | None,
) -> _Known:
    """`bound` is the cached list of all bindings. There may be thousands, and they seldom change."""
    speaker, direct = speaker_of(incoming), bool(incoming.peer)
    person = identities.who(conn, service, speaker) if incoming.speaker.vouched else None
    waiting = pairings.waiting(conn, instance, speaker, now_ms=now_ms) if direct and person is None else None
    word = None if direct else connector_state.get(conn, instance, activation_key(incoming.room))
    return _Known(
        person=person,
        paired=pairings.is_admitted(conn, instance, speaker),
        bindings=tuple(bindings.everything(conn)) if bound is None else bound,
        activation=Activation(word) if word in tuple(Activation) else None,
        before=() if direct else tuple(ambient_messages.read(conn, instance, incoming.room)),
        waiting=waiting,
        full=direct and person is None and pairings.is_full(conn, instance, cap=cap, now_ms=now_ms),
    )


def _ask(conn: sa.Connection, *, pairing: Pairing, cap: int, now_ms: int) -> Pairing | None:
    page = Page(conn, now_ms)
    asked = pairings.ask(conn, pairing, cap=cap, at_ms=page.at_ms)
    page.close()
    return asked.pairing
