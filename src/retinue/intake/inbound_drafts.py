"""Builds envelope drafts from inbound messages: keys, texts and context. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings
from retinue.connectors.base import Incoming
from retinue.domain import address, session_keys
from retinue.domain.access import Overheard, id_space
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import ATTACHMENTS_MAX, KEY_LENGTH_MAX, TEXT_BYTES_MAX, Context, Draft, Envelope, Kind
from retinue.domain.errors import Invalid
from retinue.domain.ids import EnvelopeId, short
from retinue.domain.session import Origin, OriginKind
from retinue.domain.session_keys import ChatType, DmScope
from retinue.domain.slash_command import read as read_command
from retinue.domain.storable_text import clipped_bytes, storable
from retinue.domain.trust import Trust
from retinue.intake.access_control import Welcome
from retinue.intake.unknown_senders import plain

CONTEXT_CHARS_MAX = 256
QUOTED_CHARS_MAX = 500
NOTE_CHARS_MAX = 20_000  # of all ambient messages together: the oldest are left out first
HEARD = "[heard in "  # before the transcript of a voice message
_EDIT = "/edit/"
_HASH_CHARS = 16
_KEY_CHARS_MAX = KEY_LENGTH_MAX - len(_EDIT) - _HASH_CHARS

_encode = msgspec.json.Encoder().encode


# --- keys ---


def message_key(room: str, message_id: str) -> str:
    """The key `CHANNEL/MESSAGE_ID`. It is unambiguous: a channel may contain slashes, so those of
    the id are escaped."""
    if not message_id:
        raise Invalid(
            "this message has no id",
            because="without one, a message that is delivered twice would be two",
            try_this="have the connector name each message",
            code="message.no-id",
        )
    return _fitting(f"{room}/{storable(message_id).replace('%', '%25').replace('/', '%2F')}")


def _fitting(key: str) -> str:
    # A hash has no slash, and every unhashed key has one, so the two never collide.
    return key if len(key) <= _KEY_CHARS_MAX else hashlib.sha256(key.encode()).hexdigest()


def below(key: str, *purpose: str) -> str:
    """The key of an envelope that belongs to another, such as a note."""
    return _fitting("/".join((key, *purpose)))


def source_of(instance: str) -> str:
    return f"connector:{instance}"


# --- drafts ---


def letter(
    instance: str,
    incoming: Incoming,
    welcome: Welcome,
    *,
    id_: EnvelopeId,
    agent: str,
    text: str,
    settings: SessionSettings,
) -> Draft:
    """The draft for one agent. Only the first agent's has the key of the message: edits are found
    by it."""
    key = message_key(incoming.room, incoming.message_id)
    return Draft(
        id=id_,
        sender=address.parse(f"channel:{instance}:{incoming.room}"),
        recipient=address.agent(agent),
        text=text,
        source=source_of(instance),
        key=key if agent == welcome.agents[0] else below(key, "to", agent),
        origin=origin(instance, incoming, welcome, agent, settings),
        attachments=incoming.attachments[:ATTACHMENTS_MAX],
        context=_context(incoming, welcome),
        trust=_trust(text, welcome, forwarded=incoming.forwarded),
    )


def _trust(text: str, welcome: Welcome, *, forwarded: bool) -> Trust:
    """A command of a sender who may not give commands is untrusted, so the server refuses it.

    Forwarded text cannot be a command, even from a sender who may give some: a slash in it is plain
    text.
    """
    commands = not welcome.may_command or forwarded
    return Trust.UNTRUSTED if commands and read_command(text) else welcome.trust


def edit(draft: Draft, original: Envelope | None, *, revision: str) -> Draft:
    body = _encode([draft.text, [attachment.hash for attachment in draft.attachments], storable(revision)])
    which = f" of {short(original.id)}" if original else ""
    return replace(
        draft,
        text=clipped_bytes(f"[edit{which}]\n{draft.text}", TEXT_BYTES_MAX),
        key=f"{draft.key}{_EDIT}{hashlib.sha256(body).hexdigest()[:_HASH_CHARS]}",
        reply_to=original.id if original else None,
    )


def note(draft: Draft, text: str, purpose: str, *, id_: EnvelopeId, trust: Trust = Trust.UNTRUSTED) -> Draft:
    """A note that the agent reads with its next turn, without answering.

    It contains text of others. So it is separate from the sender's message, and less trusted.
    """
    return replace(
        draft,
        id=id_,
        kind=Kind.SYSTEM,
        text=clipped_bytes(text, TEXT_BYTES_MAX),
        key=below(draft.key, purpose),
        attachments=(),
        trust=trust,
        silent=True,
    )


def text_of(incoming: Incoming, missing: Sequence[str] = ()) -> str:
    """The text of a message. A platform's input cannot be returned for correction: it is kept as
    far as possible, with a visible mark if cut."""
    lines = [storable(incoming.text)] if incoming.text else []
    left_out = len(incoming.attachments) - ATTACHMENTS_MAX
    if left_out > 0:
        lines.append(f"[left out: {left_out} more attachments]")
    return clipped_bytes("\n".join((*lines, *missing)), TEXT_BYTES_MAX)


def overheard(name: str, said: str) -> str:
    """Format a transcript as a quote, so that it cannot be mistaken for the sender's text."""
    lines = "\n".join(f"> {line}" for line in said.splitlines())
    return f"{HEARD}{plain(name) or 'a voice message'} by a program that may be wrong, untrusted:]\n{lines}"


def is_the_same(seen: Envelope, incoming: Incoming, *, is_joined: bool) -> bool:
    """Whether the stored message equals this one: redelivered, and not edited since."""
    text = text_of(incoming)
    if is_joined:
        return f"\n{text}\n" in f"\n{seen.text}\n"
    if incoming.files:  # the files are not fetched again to be compared
        return seen.text == text or seen.text.startswith(f"{text}\n[" if text else "[")
    if seen.attachments != incoming.attachments[:ATTACHMENTS_MAX]:
        return False
    # A transcript is not part of the message, and may differ the next time.
    return seen.text == text or seen.text.startswith(f"{text}\n{HEARD}" if text else HEARD)


# --- context ---


def origin(instance: str, incoming: Incoming, welcome: Welcome, agent: str, settings: SessionSettings) -> Origin | None:
    """The session of a person who writes directly; None if it is that of the channel.

    That is so if several people write there, and with the narrowest scope: one person at one of our
    accounts.
    """
    narrow = settings.dm_scope is DmScope.PER_ACCOUNT_CHANNEL_PEER and not settings.identity_links
    if not incoming.peer or narrow:
        return None
    service = id_space(incoming.service or instance, instance)
    links = dict(settings.identity_links)
    if welcome.person:  # by their linked id; the settings take precedence
        links.setdefault(welcome.person, (f"{service}:{incoming.peer}",))
    key = session_keys.direct(
        agent,
        scope=settings.dm_scope,
        channel=service,
        account=instance,
        peer=incoming.peer,
        links=links,
    )
    same_as_room = key.account and key.id == incoming.peer.casefold()
    return None if same_as_room else Origin(OriginKind.CHAT, str(key))


def _context(incoming: Incoming, welcome: Welcome) -> Context:
    """Facts of the connector about the sender, and the person that it is linked to. It never
    carries a decision of an approval."""
    given, speaker = incoming.context, incoming.speaker
    return Context(
        sender_name=_named(given.sender_name or speaker.name),
        username=_named(given.username or speaker.username),
        chat_title=_named(given.chat_title),
        from_boss=welcome.from_boss,
        person=welcome.person,
        speaker=_named(welcome.speaker),
        platform_id=_named(incoming.message_id),
        chat_type=given.chat_type or (ChatType.DIRECT if incoming.peer else ChatType.GROUP),
    )


def _named(text: str) -> str:
    return storable(text[:CONTEXT_CHARS_MAX])


# --- notes before a message ---


def said_before(before: Sequence[Overheard], incoming: Incoming, *, quote_known: bool) -> str:
    """The note before a message: ambient messages by sender, and the quoted message if it is not
    stored."""
    lines: list[str] = []
    room = NOTE_CHARS_MAX
    for each in reversed(before):
        line = f"{_label(each.name or each.speaker)}: {_in_one_block(each.text)}"
        room -= len(line)
        if room < 0:
            lines.append("(and more before that)")
            break
        lines.append(line)
    told = ["Said here before, and not to you:", *reversed(lines)] if lines else []
    quoted = incoming.quoted
    if quoted is not None and not quote_known and quoted.text.strip():
        whose = "yourself" if quoted.ours else _label(quoted.author) if quoted.author else "somebody"
        told.append(f"The next message answers words of {whose}:")
        told.append(f"> {_in_one_block(quoted.text[:QUOTED_CHARS_MAX])}")
    return storable("\n".join(told))


def reaction(incoming: Incoming, to: Envelope) -> str:
    who = _label(incoming.speaker.name or incoming.context.sender_name) or "Somebody"
    emoji = plain(incoming.text)
    did = f"reacted with {emoji} to" if emoji else "took back their reaction to"
    return storable(f"{who} {did} envelope {short(to.id)}.")


def _label(name: str) -> str:
    """A name that can neither be mistaken for the text after it, nor end it."""
    return plain(name).replace(":", "")


def _in_one_block(text: str) -> str:
    """Indent all lines but the first, so that none can be mistaken for another sender's."""
    return "\n    ".join(text.splitlines())


def attached(incoming: Incoming, files: Sequence[Attachment]) -> Incoming:
    return replace(incoming, attachments=(*incoming.attachments, *files))
