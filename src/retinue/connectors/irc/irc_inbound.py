"""Converts IRC messages to inbound messages."""

from __future__ import annotations

from datetime import datetime

from retinue.connectors.base import InboundMessage, PlatformUser
from retinue.connectors.irc.casemapping import IrcServerFeatures, make_user_id
from retinue.connectors.irc.irc_formatting import ACTION, parse_ctcp, strip_address, strip_formatting
from retinue.connectors.irc.irc_message import IrcMessage
from retinue.connectors.irc.registration import ACCOUNT_TAG, MESSAGE_TAGS, SERVER_TIME
from retinue.domain.envelope import EnvelopeContext
from retinue.domain.session_keys import ChatType

SERVICE = "irc"
MESSAGE_ID_MAX = 200

_BOT = ("bot", "draft/bot", "inspircd.org/bot")


def to_inbound(
    message: IrcMessage,
    *,
    own_nicks: tuple[str, ...],
    granted: frozenset[str],
    features: IrcServerFeatures,
    fallback_id: str,
) -> InboundMessage | None:
    """Convert an IRC message to an inbound message. Returns None for a server notice, a CTCP request or empty text.

    `fallback_id` is the message id to use if the server assigns none.
    """
    if "!" not in message.source or "@" not in message.source or len(message.params) < 2:
        return None
    text = _get_text(message)
    if text is None:
        return None
    target = (
        message.get_param(0).lstrip("@%+~&") if not features.is_channel(message.get_param(0)) else message.get_param(0)
    )
    in_channel = features.is_channel(target)
    sender = _build_user(message, granted, features)
    text, mentioned = strip_address(text, own_nicks, features)
    return InboundMessage(
        channel=features.fold(target) if in_channel else sender.id,
        message_id=_get_message_id(message, granted) or fallback_id,
        text=text,
        sender=sender,
        peer="" if in_channel else sender.id,
        service=SERVICE,
        mentioned=mentioned or not in_channel,
        sent_at=_get_time(message, granted),
        context=EnvelopeContext(
            sender_name=message.nick,
            username=message.nick,
            chat_title=target if in_channel else "",
            chat_type=ChatType.GROUP if in_channel else ChatType.DIRECT,
        ),
    )


def _get_text(message: IrcMessage) -> str | None:
    asked = parse_ctcp(message.last_param)
    if asked is None:
        return strip_formatting(message.last_param).strip() or None
    command, rest = asked
    if command != ACTION or message.command != "PRIVMSG":
        return None  # CTCP requests of other clients, such as VERSION, are not answered
    did = strip_formatting(rest).strip()
    return f"* {message.nick} {did}" if did else None


def _build_user(message: IrcMessage, granted: frozenset[str], features: IrcServerFeatures) -> PlatformUser:
    # The account is used for this message only. If it were remembered for the nick, one missed nick
    # change would give a stranger the id of a known user.
    account_tag = message.tags.get("account", "") if ACCOUNT_TAG in granted else ""
    account = "" if account_tag == "*" else account_tag
    return PlatformUser(
        id=make_user_id(message.source, account, features),
        is_verified=bool(account),
        name=message.nick,
        username=message.nick,
        is_program=message.command == "NOTICE"
        or (MESSAGE_TAGS in granted and any(tag in message.tags for tag in _BOT)),
    )


def _get_message_id(message: IrcMessage, granted: frozenset[str]) -> str:
    named = message.tags.get("msgid", "") if MESSAGE_TAGS in granted else ""
    return named if len(named) <= MESSAGE_ID_MAX and named.isprintable() else ""


def _get_time(message: IrcMessage, granted: frozenset[str]) -> datetime | None:
    if SERVER_TIME not in granted or not (written := message.tags.get("time")):
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
