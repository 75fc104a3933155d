"""Converts IRC messages to inbound messages. Pure: a message in, an `InboundMessage` or None out."""

from __future__ import annotations

from datetime import datetime

from retinue.connectors.base import Incoming, Speaker
from retinue.connectors.irc.casemapping import Manners, speaker_id
from retinue.connectors.irc.irc_formatting import ACTION, addressed, ctcp, plain
from retinue.connectors.irc.irc_message import Line
from retinue.connectors.irc.registration import ACCOUNT_TAG, TAGS, TIME
from retinue.domain.envelope import Context
from retinue.domain.session_keys import ChatType

SERVICE = "irc"
MESSAGE_ID_MAX = 200

_BOT = ("bot", "draft/bot", "inspircd.org/bot")


def heard(
    line: Line, *, own_nicks: tuple[str, ...], granted: frozenset[str], manners: Manners, otherwise_id: str
) -> Incoming | None:
    """Convert a message. Returns None for a server notice, a CTCP request or an empty text.

    `fallback_id` is the message id if the server assigns none.
    """
    if "!" not in line.source or "@" not in line.source or len(line.words) < 2:
        return None
    text = _said(line)
    if text is None:
        return None
    target = line.word(0).lstrip("@%+~&") if not manners.is_room(line.word(0)) else line.word(0)
    in_room = manners.is_room(target)
    speaker = _speaker(line, granted, manners)
    text, mentioned = addressed(text, own_nicks, manners)
    return Incoming(
        room=manners.fold(target) if in_room else speaker.id,
        message_id=_message_id(line, granted) or otherwise_id,
        text=text,
        speaker=speaker,
        peer="" if in_room else speaker.id,
        service=SERVICE,
        mentioned=mentioned or not in_room,
        said_at=_said_at(line, granted),
        context=Context(
            sender_name=line.nick,
            username=line.nick,
            chat_title=target if in_room else "",
            chat_type=ChatType.GROUP if in_room else ChatType.DIRECT,
        ),
    )


def _said(line: Line) -> str | None:
    asked = ctcp(line.last)
    if asked is None:
        return plain(line.last).strip() or None
    command, rest = asked
    if command != ACTION or line.command != "PRIVMSG":
        return None  # CTCP requests of other clients, such as VERSION, are not answered
    did = plain(rest).strip()
    return f"* {line.nick} {did}" if did else None


def _speaker(line: Line, granted: frozenset[str], manners: Manners) -> Speaker:
    # Trusted for this message only. With a remembered mapping from nick to account, one missed nick
    # change would identify a stranger as a friend.
    said = line.tags.get("account", "") if ACCOUNT_TAG in granted else ""
    account = "" if said == "*" else said
    return Speaker(
        id=speaker_id(line.source, account, manners),
        vouched=bool(account),
        name=line.nick,
        username=line.nick,
        is_program=line.command == "NOTICE" or (TAGS in granted and any(tag in line.tags for tag in _BOT)),
    )


def _message_id(line: Line, granted: frozenset[str]) -> str:
    named = line.tags.get("msgid", "") if TAGS in granted else ""
    return named if len(named) <= MESSAGE_ID_MAX and named.isprintable() else ""


def _said_at(line: Line, granted: frozenset[str]) -> datetime | None:
    if TIME not in granted or not (written := line.tags.get("time")):
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
