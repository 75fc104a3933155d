"""Looks up what an envelope needs before it is sent: the message it quotes, and the values for its
prefix."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.delivery_part import Abilities
from retinue.domain.envelope import Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.record import Reply, bare_model
from retinue.domain.reply_delivery import Quoting, Words
from retinue.intake.connector_intake import message_key
from retinue.policy.delivery_split import CURRENT, NOTHING_KNOWN, Setting, is_agents_own, untagged, variables
from retinue.store.channels import delivery_parts
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions

LOOKED_AT_MAX = 100  # records, from the newest back, to find the last model reply
_OF_THE_MODEL = frozenset({"model", "modelfull", "provider"})


def setting_of(conn: sa.Connection, envelope: Envelope, able: Abilities, words: Words) -> Setting:
    own = is_agents_own(envelope)
    quotes = able.quotes and words.quoting is not Quoting.OFF
    wanted = variables(words.prefix) if own and words.prefix else frozenset[str]()
    if not quotes and not wanted:
        return NOTHING_KNOWN
    asked = untagged(envelope.text).reply_to if own else ""
    return Setting(
        quote=_quoted(conn, envelope, asked) if quotes else "",
        known=_known(conn, envelope, wanted) if wanted else {},
    )


def message_of(conn: sa.Connection, letter: Envelope, channel: str) -> str:
    """The platform's id of an envelope's message in a channel; empty if it was never there."""
    if str(letter.sender) == channel:
        return letter.context.platform_id
    return (delivery_parts.first(conn, letter.id) or "") if str(letter.recipient) == channel else ""


def _quoted(conn: sa.Connection, envelope: Envelope, asked: str) -> str:
    """The message id to quote. Only a message of the same channel can be quoted."""
    channel = str(envelope.recipient)
    if asked and asked != CURRENT:
        return _named(conn, envelope, asked)
    letter = envelopes.get(conn, envelope.reply_to) if envelope.reply_to is not None else None
    return message_of(conn, letter, channel) if letter is not None else ""


def _named(conn: sa.Connection, envelope: Envelope, asked: str) -> str:
    """The message that an agent names, by the platform's id or by the envelope's."""
    to = envelope.recipient
    try:
        if envelopes.by_key(conn, f"connector:{to.name}", message_key(to.rest, asked)) is not None:
            return asked
        if delivery_parts.named(conn, str(to), asked) is not None:
            return asked
        letter = envelopes.get(conn, envelopes.resolve(conn, asked))
    except RetinueError:
        return ""
    return message_of(conn, letter, str(to)) if letter is not None else ""


def _known(conn: sa.Connection, envelope: Envelope, wanted: frozenset[str]) -> dict[str, str]:
    name = envelope.sender.name
    known = {"agent": name, "identity.name": name, "identityname": name}
    if wanted & _OF_THE_MODEL and (reply := _last_reply(conn, envelope)) is not None:
        bare = bare_model(reply)
        full = f"{reply.provider}/{bare}" if reply.provider else bare
        known |= {"model": bare, "modelfull": full, "provider": reply.provider}
    return known


def _last_reply(conn: sa.Connection, envelope: Envelope) -> Reply | None:
    """The last model reply of the run that wrote this envelope."""
    if envelope.source != "run":
        return None
    named = next((word for word in envelope.key.split("/") if word != "said"), "")
    run = runs.get(conn, named)
    if run is None:
        return None
    session = sessions.get(conn, run.session)
    last = session.record_seq if session is not None else run.first_seq
    found, _ = records.read(conn, run.session, first=max(run.first_seq, last - LOOKED_AT_MAX), last=last)
    replies = [record.body for record in found if record.run == run.id and isinstance(record.body, Reply)]
    return next((reply for reply in reversed(replies) if reply.model), None)
