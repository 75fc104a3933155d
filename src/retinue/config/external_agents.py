"""Settings that all external agents share. The address of each is in its agent definition."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config import validators
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting
from retinue.config.web import host_and_port


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSettings:
    """Requests to external agents and to webhooks."""

    callback_url: str | None = setting(
        None,
        "The address of this house as those agents reach it. Not set: `public_url`, and else where the house listens.",
        effect=Effect.MESSAGE,
        check=validators.public_url,
        example="http://house.lan:7717",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts of your own network, or other ports than 80 and 443, that letters may go to, as HOST:PORT.",
        effect=Effect.MESSAGE,
        check=host_and_port,
        example="127.0.0.1:9000",
    )
    webhook_secret: Secret | None = setting(
        None,
        "Where the key is that signs what is sent to a webhook: `env` or `file`. Not set, there are no webhooks.",
        effect=Effect.MESSAGE,
    )
