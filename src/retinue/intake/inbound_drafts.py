"""Builds envelope drafts from inbound messages: keys, texts and context. All functions are pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings
from retinue.connectors.base import InboundMessage
from retinue.domain import address, session_keys
from retinue.domain.access import AmbientMessage, id_namespace
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    ENVELOPE_TEXT_BYTES_MAX,
    IDEMPOTENCY_KEY_LENGTH_MAX,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
)
from retinue.domain.ids import EnvelopeId, short_id
from retinue.domain.session import Origin, OriginKind
from retinue.domain.session_keys import ChatType, DmScope
from retinue.domain.slash_command import parse_commands as read_command
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.domain.trust import Trust
from retinue.intake.access_control import Admission
from retinue.intake.errors import MessageIdMissing
from retinue.intake.unknown_senders import to_short_line
from retinue.text.quantity import format_quantity

CONTEXT_CHARS_MAX = 256
QUOTED_CHARS_MAX = 500
NOTE_CHARS_MAX = 20_000  # characters of all ambient messages together; the oldest are left out first
TRANSCRIPT_PREFIX = "[heard in "  # before the transcript of a voice message
_EDIT = "/edit/"
_HASH_CHARS = 16
_KEY_CHARS_MAX = IDEMPOTENCY_KEY_LENGTH_MAX - len(_EDIT) - _HASH_CHARS

_encode = msgspec.json.Encoder().encode


# --- keys ---


def make_message_key(channel: str, message_id: str) -> str:
    """Return the idempotency key of a message: `CHANNEL/MESSAGE_ID`.

    Slashes in the message id are escaped to keep the key unambiguous.
    """
    if not message_id:
        raise MessageIdMissing
    return _limit_key(f"{channel}/{make_storable(message_id).replace('%', '%25').replace('/', '%2F')}")


def _limit_key(key: str) -> str:
    # A hash has no slash, and every unhashed key has one, so the two never collide.
    return key if len(key) <= _KEY_CHARS_MAX else hashlib.sha256(key.encode()).hexdigest()


def derive_key(key: str, *purpose: str) -> str:
    """Return the idempotency key of an envelope that belongs to another one, such as a note before a message."""
    return _limit_key("/".join((key, *purpose)))


def get_source(connector: str) -> str:
    return f"connector:{connector}"


# --- drafts ---


def build_draft(
    connector: str,
    incoming: InboundMessage,
    admission: Admission,
    *,
    id_: EnvelopeId,
    agent: str,
    text: str,
    settings: SessionSettings,
) -> EnvelopeDraft:
    """Return the draft of a message for one agent.

    Only the draft for the first agent has the key of the message. Edits and replies find it by this
    key.
    """
    key = make_message_key(incoming.channel, incoming.message_id)
    return EnvelopeDraft(
        id=id_,
        sender=address.parse_address(f"channel:{connector}:{incoming.channel}"),
        recipient=address.agent_address(agent),
        text=text,
        source=get_source(connector),
        idempotency_key=key if agent == admission.agents[0] else derive_key(key, "to", agent),
        origin=get_origin(connector, incoming, admission, agent, settings),
        attachments=incoming.attachments[:ATTACHMENTS_MAX],
        context=_build_context(incoming, admission),
        trust=_get_trust(text, admission, is_forwarded=incoming.forwarded),
    )


def _get_trust(text: str, admission: Admission, *, is_forwarded: bool) -> Trust:
    """Return the trust of a message's text.

    A slash command is untrusted, and thus not executed, if the text was forwarded or the sender may
    not give commands.
    """
    commands = not admission.may_command or is_forwarded
    return Trust.UNTRUSTED if commands and read_command(text) else admission.trust


def build_edit(draft: EnvelopeDraft, original: Envelope | None, *, revision: str) -> EnvelopeDraft:
    body = _encode([draft.text, [attachment.hash for attachment in draft.attachments], make_storable(revision)])
    which = f" of {short_id(original.id)}" if original else ""
    return replace(
        draft,
        text=truncate_bytes(f"[edit{which}]\n{draft.text}", ENVELOPE_TEXT_BYTES_MAX),
        idempotency_key=f"{draft.idempotency_key}{_EDIT}{hashlib.sha256(body).hexdigest()[:_HASH_CHARS]}",
        reply_to=original.id if original else None,
    )


def build_note(
    draft: EnvelopeDraft, text: str, purpose: str, *, id_: EnvelopeId, trust: Trust = Trust.UNTRUSTED
) -> EnvelopeDraft:
    """Build a note: a silent envelope that the agent reads in its next turn and does not answer.

    A note contains text from other people, so it is separate from the sender's message, and untrusted
    by default.
    """
    return replace(
        draft,
        id=id_,
        kind=EnvelopeKind.SYSTEM,
        text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX),
        idempotency_key=derive_key(draft.idempotency_key, purpose),
        attachments=(),
        trust=trust,
        silent=True,
    )


def build_text(incoming: InboundMessage, missing: Sequence[str] = ()) -> str:
    """Return the text of a message for the envelope. If it is too long, it is truncated, with a note at the end."""
    lines = [make_storable(incoming.text)] if incoming.text else []
    left_out = len(incoming.attachments) - ATTACHMENTS_MAX
    if left_out > 0:
        lines.append(f"[left out: {format_quantity(left_out, 'more attachment')}]")
    return truncate_bytes("\n".join((*lines, *missing)), ENVELOPE_TEXT_BYTES_MAX)


def format_transcript(name: str, transcript: str) -> str:
    """Format the transcript of a voice message as a quote, so that it cannot be mistaken for the sender's text."""
    lines = "\n".join(f"> {line}" for line in transcript.splitlines())
    source = to_short_line(name) or "a voice message"
    return f"{TRANSCRIPT_PREFIX}{source} by a program that may be wrong, untrusted:]\n{lines}"


def is_same_message(stored: Envelope, incoming: InboundMessage, *, is_merged: bool) -> bool:
    """Whether a received message equals a stored one, so that it is a redelivery and not an edit."""
    text = build_text(incoming)
    if is_merged:
        return f"\n{text}\n" in f"\n{stored.text}\n"
    if incoming.files:  # the files are not fetched again to be compared
        return stored.text == text or stored.text.startswith(f"{text}\n[" if text else "[")
    if stored.attachments != incoming.attachments[:ATTACHMENTS_MAX]:
        return False
    # A transcript is not part of the message, and may differ the next time.
    return stored.text == text or stored.text.startswith(f"{text}\n{TRANSCRIPT_PREFIX}" if text else TRANSCRIPT_PREFIX)


# --- context ---


def get_origin(
    connector: str, incoming: InboundMessage, admission: Admission, agent: str, settings: SessionSettings
) -> Origin | None:
    """Return the origin that selects the session of a direct message, or None to use the channel's session.

    The channel's session is used for groups, and for direct messages with the scope
    `per-account-channel-peer` and no identity links.
    """
    narrow = settings.dm_scope is DmScope.PER_ACCOUNT_CHANNEL_PEER and not settings.identity_links
    if not incoming.peer or narrow:
        return None
    service = id_namespace(incoming.service or connector, connector)
    links = dict(settings.identity_links)
    if admission.person:  # add the person's linked platform id; the settings take precedence
        links.setdefault(admission.person, (f"{service}:{incoming.peer}",))
    key = session_keys.direct_key(
        agent,
        scope=settings.dm_scope,
        platform=service,
        account=connector,
        peer=incoming.peer,
        links=links,
    )
    same_as_room = key.account and key.id == incoming.peer.casefold()
    return None if same_as_room else Origin(OriginKind.CHAT, str(key))


def _build_context(incoming: InboundMessage, admission: Admission) -> EnvelopeContext:
    """Return the context of an envelope: facts about the sender, the chat and the linked person."""
    given, sender = incoming.context, incoming.sender
    return EnvelopeContext(
        sender_name=_limit_field(given.sender_name or sender.name),
        username=_limit_field(given.username or sender.username),
        chat_title=_limit_field(given.chat_title),
        from_boss=admission.from_boss,
        person=admission.person,
        sender_id=_limit_field(admission.sender_id),
        platform_id=_limit_field(incoming.message_id),
        chat_type=given.chat_type or (ChatType.DIRECT if incoming.peer else ChatType.GROUP),
    )


def _limit_field(text: str) -> str:
    return make_storable(text[:CONTEXT_CHARS_MAX])


# --- notes before a message ---


def format_ambient(
    ambient_messages: Sequence[AmbientMessage], incoming: InboundMessage, *, is_quote_stored: bool
) -> str:
    """Return the note before a message: the ambient messages, and the quoted message if it is not stored."""
    lines: list[str] = []
    chars_left = NOTE_CHARS_MAX
    for each in reversed(ambient_messages):
        line = f"{_format_name(each.sender_name or each.sender_id)}: {_indent_lines(each.text)}"
        chars_left -= len(line)
        if chars_left < 0:
            lines.append("(earlier messages are left out)")
            break
        lines.append(line)
    notes = ["Earlier messages in this channel, not addressed to you:", *reversed(lines)] if lines else []
    quoted = incoming.quoted
    if quoted is not None and not is_quote_stored and quoted.text.strip():
        whose = "you" if quoted.ours else _format_name(quoted.author) if quoted.author else "someone"
        notes.append(f"The next message replies to this message from {whose}:")
        notes.append(f"> {_indent_lines(quoted.text[:QUOTED_CHARS_MAX])}")
    return make_storable("\n".join(notes))


def format_reaction(incoming: InboundMessage, target: Envelope) -> str:
    who = _format_name(incoming.sender.name or incoming.context.sender_name) or "Someone"
    emoji = to_short_line(incoming.text)
    did = f"reacted with {emoji} to" if emoji else "removed their reaction to"
    return make_storable(f"{who} {did} envelope {short_id(target.id)}.")


def _format_name(name: str) -> str:
    """Format a sender's name for `NAME: text`.

    Colons in the name are removed, so that no part of the name can be mistaken for the text.
    """
    return to_short_line(name).replace(":", "")


def _indent_lines(text: str) -> str:
    """Indent all lines but the first, so that no line can be mistaken for another sender's message."""
    return "\n    ".join(text.splitlines())


def add_attachments(incoming: InboundMessage, files: Sequence[Attachment]) -> InboundMessage:
    return replace(incoming, attachments=(*incoming.attachments, *files))
