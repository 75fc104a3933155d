"""The webhook platform: signed HTTP requests become messages to an agent, and its answers are posted to a URL."""

from __future__ import annotations

from retinue.connectors.base import Platform, SettingQuestion
from retinue.connectors.webhook.connector import WebhookConnector
from retinue.connectors.webhook.settings import WebhookSettings

PLATFORM = Platform(
    name="webhook",
    title="Webhooks",
    settings=WebhookSettings,
    make_connector=WebhookConnector,
    questions=(
        SettingQuestion(
            key="secret",
            ask="Shared secret",
            secret=True,
            help="At least 32 random characters, or the secret that the other service gave you (such as whsec_...).",
        ),
        SettingQuestion(
            key="signature_scheme",
            ask="Signature scheme: standard, github, stripe or token",
            default="standard",
        ),
        SettingQuestion(
            key="url",
            ask="URL to send messages to",
            help="An https URL. Leave it empty to only receive requests.",
        ),
    ),
    next_steps=(
        "Send requests to /hooks/CONNECTOR/agent or /hooks/CONNECTOR/wake at the address of this server.",
        "For a service with a fixed format, add a mapping: [connectors.CONNECTOR.mappings.NAME].",
    ),
)
