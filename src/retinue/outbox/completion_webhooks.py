"""Sends a signed notification to the webhook of an envelope when the envelope is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.config import Settings
from retinue.connectors.base import Accept, Delivery, DeliveryFailed, DeliveryPart, FailureKind
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import Envelope, Outcome
from retinue.domain.errors import Invalid
from retinue.domain.ports import Clock
from retinue.domain.webhook import Webhook
from retinue.intake.accept import COMPLETION_CONNECTOR, is_completion
from retinue.net.signatures import (
    MESSAGE_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignaturePurpose,
    sign_message,
)
from retinue.outbox.external_agent_delivery import USER_AGENT, make_http
from retinue.outbox.signed_request import post_signed
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes, webhooks
from retinue.store.runs import delegations, runs

ATTEMPT_S = 10.0
ATTEMPTS_MAX = 5

_encode = msgspec.json.Encoder().encode


class Completion(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The JSON body of a completion webhook.

    `id` is the id of the envelope that is done. `status` is `complete`, `failed` or `cancelled`.
    """

    id: str
    status: str
    agent_id: str
    session_id: str | None
    response: str = ""
    error: str = ""


class CompletionConnector(Struct, frozen=True):
    """The connector that sends completion webhooks.

    The same notification may be sent more than once. Receivers deduplicate it by `id`.
    """

    store: Store
    clock: Clock
    settings: Callable[[], Settings]
    environment: Mapping[str, str]
    redact: Callable[[str], str]
    name: str = COMPLETION_CONNECTOR
    repeats_safely: bool = True
    attempts_max: int = ATTEMPTS_MAX

    async def listen(self, accept: Accept) -> None:
        """Wait forever: this connector only sends."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, part: DeliveryPart) -> Delivery:
        envelope = part.envelope
        found = await self.store.read(partial(_find_completion, envelope=envelope))
        if found is None:
            raise _build_refused("this connector sends only notifications that an envelope with a webhook is done")
        webhook, completion = found
        body = _encode(
            msgspec.structs.replace(
                completion, response=self.redact(completion.response), error=self.redact(completion.error)
            )
        )
        settings = self.settings()
        at = str(int(self.clock.now().timestamp()))
        signature = sign_message(
            self._read_key(settings),
            SignaturePurpose.COMPLETION,
            timestamp=at,
            session=completion.session_id or "",
            message_id=completion.id,
            body=body,
        )
        headers = {
            **webhook.headers,
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            MESSAGE_ID_HEADER: completion.id,
            TIMESTAMP_HEADER: at,
            SIGNATURE_HEADER: signature,
        }
        last = envelope.attempts >= self.attempts_max
        return await post_signed(
            make_http(settings), webhook.url, body, headers=headers, timeout_s=ATTEMPT_S, is_last=last
        )

    def _read_key(self, settings: Settings) -> str:
        secret = settings.external.webhook_secret
        if secret is None:
            raise _build_refused("webhook requests cannot be signed: set `webhook_secret` in [external]")
        try:
            return secret.read(self.environment)
        except Invalid as error:
            raise _build_refused(f"{error.sentence}: {error.because}") from None


def _find_completion(conn: sa.Connection, *, envelope: Envelope) -> tuple[Webhook, Completion] | None:
    if not is_completion(envelope) or envelope.reply_to is None:
        return None
    webhook, subject = webhooks.get(conn, envelope.reply_to), envelopes.get(conn, envelope.reply_to)
    if webhook is None or subject is None:
        return None
    return webhook, build_completion(conn, subject)


def build_completion(conn: sa.Connection, envelope: Envelope) -> Completion:
    """Build the completion notification of an envelope from its stored outcome."""
    form: dict[str, Any] = {"id": envelope.id, "agent_id": envelope.recipient.name, "session_id": envelope.session}
    delegation = delegations.get(conn, envelope.id)
    settled = envelopes.get_outcome(conn, envelope.id)
    if settled is None:
        return Completion(**form, status="failed", error="the envelope has no outcome yet")
    if settled.outcome is not Outcome.ANSWERED:
        cancelled = settled.outcome is Outcome.CANCELLED
        error = delegation.because if delegation is not None and delegation.because else settled.because
        return Completion(**form, status="cancelled" if cancelled else "failed", error=error)
    return Completion(**form, status="complete", response=_get_response(conn, envelope, settled.answer, delegation))


def _get_response(conn: sa.Connection, envelope: Envelope, answer: str | None, delegation: Delegation | None) -> str:
    """Return the text of the answer. For delegated work without an answer, return the run's final text."""
    if (reply := envelopes.get(conn, answer) if answer is not None else None) is not None:
        return reply.text
    if delegation is None or delegation.state is not DelegationState.DONE or envelope.run is None:
        return ""
    run = runs.get(conn, envelope.run)
    return (run.final_text or "") if run is not None else ""


def _build_refused(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(sentence, kind=FailureKind.INVALID_SENDER, permanent=True)
