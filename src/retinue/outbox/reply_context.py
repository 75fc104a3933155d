"""Looks up the message that an outbound envelope quotes, and the variables of its reply prefix."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.delivery_part import ConnectorCapabilities
from retinue.domain.envelope import INTERIM_KEY, Envelope
from retinue.domain.errors import RetinueError
from retinue.domain.record import Reply, model_without_provider
from retinue.domain.reply_delivery import QuoteMode, ReplyDelivery
from retinue.intake.connector_intake import make_message_key
from retinue.policy.delivery_split import (
    CURRENT_MESSAGE,
    NO_CONTEXT,
    DeliveryContext,
    is_written_by_agent,
    list_prefix_variables,
    parse_reply_tags,
)
from retinue.store.channels import delivery_parts
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions

RECORDS_MAX = 100  # the newest records, which are searched for the last model reply
_MODEL_VARIABLES = frozenset({"model", "modelfull", "provider"})


def build_reply_setting(
    conn: sa.Connection, envelope: Envelope, capabilities: ConnectorCapabilities, reply_delivery: ReplyDelivery
) -> DeliveryContext:
    own = is_written_by_agent(envelope)
    quotes = capabilities.can_quote and reply_delivery.quoting is not QuoteMode.OFF
    wanted = list_prefix_variables(reply_delivery.prefix) if own and reply_delivery.prefix else frozenset[str]()
    if not quotes and not wanted:
        return NO_CONTEXT
    asked = parse_reply_tags(envelope.text).reply_to if own else ""
    return DeliveryContext(
        quote=_find_quoted_id(conn, envelope, asked) if quotes else "",
        known=_get_variables(conn, envelope, wanted) if wanted else {},
    )


def get_platform_message_id(conn: sa.Connection, envelope: Envelope, channel: str) -> str:
    """Return the platform's message id of an envelope in a channel, or an empty string if it was never there."""
    if str(envelope.sender) == channel:
        return envelope.context.platform_id
    return (delivery_parts.get_first_receipt(conn, envelope.id) or "") if str(envelope.recipient) == channel else ""


def _find_quoted_id(conn: sa.Connection, envelope: Envelope, requested: str) -> str:
    """Return the platform's id of the message to quote. Only a message in the same channel can be quoted."""
    channel = str(envelope.recipient)
    if requested and requested != CURRENT_MESSAGE:
        return _find_named_message(conn, envelope, requested)
    quoted = envelopes.get(conn, envelope.reply_to) if envelope.reply_to is not None else None
    return get_platform_message_id(conn, quoted, channel) if quoted is not None else ""


def _find_named_message(conn: sa.Connection, envelope: Envelope, requested: str) -> str:
    """Return the platform's id of the message that an agent asks to quote, or an empty string if there is none.

    `requested` is the platform's id, or the id of an envelope.
    """
    to = envelope.recipient
    try:
        if envelopes.get_by_key(conn, f"connector:{to.name}", make_message_key(to.rest, requested)) is not None:
            return requested
        if delivery_parts.find_envelope(conn, str(to), requested) is not None:
            return requested
        named = envelopes.get(conn, envelopes.resolve_id(conn, requested))
    except RetinueError:
        return ""
    return get_platform_message_id(conn, named, str(to)) if named is not None else ""


def _get_variables(conn: sa.Connection, envelope: Envelope, wanted: frozenset[str]) -> dict[str, str]:
    name = envelope.sender.name
    known = {"agent": name, "identity.name": name, "identityname": name}
    if wanted & _MODEL_VARIABLES and (reply := _get_last_reply(conn, envelope)) is not None:
        bare = model_without_provider(reply)
        full = f"{reply.provider}/{bare}" if reply.provider else bare
        known |= {"model": bare, "modelfull": full, "provider": reply.provider}
    return known


def _get_last_reply(conn: sa.Connection, envelope: Envelope) -> Reply | None:
    """Return the last model reply of the run that wrote this envelope."""
    if envelope.source != "run":
        return None
    named = next((word for word in envelope.idempotency_key.split("/") if word != INTERIM_KEY), "")
    run = runs.get(conn, named)
    if run is None:
        return None
    session = sessions.get(conn, run.session)
    last = session.record_seq if session is not None else run.first_seq
    found, _ = records.read_range(conn, run.session, first=max(run.first_seq, last - RECORDS_MAX), last=last)
    replies = [record.body for record in found if record.run == run.id and isinstance(record.body, Reply)]
    return next((reply for reply in reversed(replies) if reply.model), None)
