"""The webhook connector: posts messages to a URL as signed requests. Its secret also verifies inbound requests.

Inbound requests arrive at the server's HTTP API (see `intake/inbound_webhooks`), so the connector does not listen.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

import msgspec
from msgspec import Struct

from retinue.connectors.base import (
    Accept,
    ConnectorCapabilities,
    ConnectorCheckResult,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    LengthUnit,
)
from retinue.connectors.webhook import webhook_request, webhook_signature, webhook_templates
from retinue.connectors.webhook.errors import WebhookTemplateInvalid
from retinue.connectors.webhook.settings import WebhookSettings
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX
from retinue.domain.errors import Invalid
from retinue.domain.ids import ID_LENGTH

ATTEMPTS_MAX = 8
USER_AGENT = "retinue"
MESSAGE_TYPE = "message"

_encode = msgspec.json.Encoder().encode
_CAPABILITIES = ConnectorCapabilities(
    text_max=ENVELOPE_TEXT_BYTES_MAX, unit=LengthUnit.BYTES, can_quote=True, can_render_markdown=True
)


class _WebhookBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON body of an outbound webhook request. `id` stays the same when the same part is sent again."""

    id: str
    type: str
    channel: str
    text: str
    sender: str
    created_at: str
    quoted_message_id: str = ""
    part: int = 1
    parts: int = 1


class WebhookConnector:
    """Posts messages to a URL. The receiver deduplicates by id, so sending a message twice is safe."""

    repeats_safely = True
    attempts_max = ATTEMPTS_MAX
    capabilities = _CAPABILITIES

    def __init__(self, settings: WebhookSettings, context: ConnectorContext) -> None:
        for name, mapping in settings.mappings.items():
            for key, text in (("text", mapping.text), ("name", mapping.name), ("session", mapping.session)):
                if wrong := webhook_templates.check_template(text):
                    raise WebhookTemplateInvalid(context.name, name, key, because=wrong)
            if not mapping.text.strip():
                raise WebhookTemplateInvalid(context.name, name, "text", because="it is empty")
        self.settings = settings
        self.name = context.name
        self._clock = context.clock
        self._read_secret = context.read_secret

    def read_secret(self) -> str:
        """Read the shared secret. Raises `Invalid` if there is none."""
        return self._read_secret("secret")

    def make_wrapper_id(self, key: str) -> str:
        """Return the id in the markers around the untrusted text of a request.

        A repeated request gets the same id. The id cannot be guessed without the secret.
        """
        return hmac.new(self.read_secret().encode(), f"wrapper/{key}".encode(), hashlib.sha256).hexdigest()[:ID_LENGTH]

    async def listen(self, accept: Accept) -> None:
        """Wait until cancelled: requests arrive at the server's HTTP API."""
        del accept
        await asyncio.Event().wait()

    async def deliver(self, part: DeliveryPart) -> Delivery:
        url = self.settings.url
        if url is None:
            raise _build_not_sent(f"connectors.{self.name} has no `url` to send to")
        try:
            secret = self.read_secret()
        except Invalid as error:
            raise _build_not_sent(f"{error.sentence}: {error.because}") from None
        target = await webhook_request.check_target(url, private_hosts=self.settings.private_hosts)
        body = _encode(_build_body(part))
        at = str(int(self._clock.now().timestamp()))
        headers = {
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
            webhook_signature.ID_HEADER: part.key,
            webhook_signature.TIMESTAMP_HEADER: at,
            webhook_signature.SIGNATURE_HEADER: webhook_signature.sign(secret, id_=part.key, at=at, body=body),
        }
        status = await webhook_request.post(target, body, headers=headers, timeout_s=self.settings.timeout_s)
        return Delivery(f"HTTP {status}")

    async def check(self) -> ConnectorCheckResult:
        """Check that there is a secret and that the URL is allowed.

        This sends no request, because a request would be a message.
        """
        account = f"/hooks/{self.name}"
        try:
            self.read_secret()
            if self.settings.url is not None:
                await webhook_request.check_target(self.settings.url, private_hosts=self.settings.private_hosts)
        except (Invalid, DeliveryFailed) as error:
            return ConnectorCheckResult(
                ok=False, account=account, sentence=error.sentence, because=error.because, try_this=error.try_this
            )
        outbound = "can be sent" if self.settings.url is not None else "cannot be sent: `url` is not set"
        return ConnectorCheckResult(ok=True, account=account, sentence=f"requests can be received; messages {outbound}")


def _build_body(part: DeliveryPart) -> _WebhookBody:
    return _WebhookBody(
        id=part.key,
        type=MESSAGE_TYPE,
        channel=part.channel,
        text=part.text,
        sender=str(part.envelope.sender),
        created_at=part.envelope.accepted_at.isoformat(),
        quoted_message_id=part.quoted_message_id,
        part=part.index + 1,
        parts=part.count,
    )


def _build_not_sent(sentence: str) -> DeliveryFailed:
    return DeliveryFailed(
        sentence, kind=FailureKind.INVALID_SENDER, permanent=True, try_this="correct the settings of this connector"
    )
