"""Webhooks: signed HTTP requests become messages to an agent, and its answers are posted to a URL."""

from __future__ import annotations

from retinue.connectors.base import ConnectorKind, Question
from retinue.connectors.webhook.connector import WebhookConnector
from retinue.connectors.webhook.settings import WebhookSettings

KIND = ConnectorKind(
    name="webhook",
    title="Webhooks",
    settings=WebhookSettings,
    make=WebhookConnector,
    questions=(
        Question(
            key="secret",
            ask="The secret that both sides share",
            secret=True,
            help="At least 32 random characters, or what the other side gave you (such as whsec_...).",
        ),
        Question(
            key="proof",
            ask="How the other side proves that it knows it: standard, github, stripe or token",
            default="standard",
        ),
        Question(
            key="url",
            ask="Where messages are posted, if any are to leave",
            help="An https address. Leave it empty where requests only come in.",
        ),
    ),
    next_steps=(
        "Have the other side post to /hooks/INSTANCE/agent or /hooks/INSTANCE/wake at this house's address.",
        "For a service that knows nothing of this house, add [connectors.INSTANCE.mappings.NAME].",
    ),
)
