"""Settings that all external agents share. The address of each is in its agent definition."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config import validators
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.config.web import check_host_and_port


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAgentSettings:
    """Requests that the server sends to external agents and webhooks."""

    callback_url: str | None = setting(
        None,
        "URL of this server as external agents reach it. Default: `public_url`, otherwise the address of the listener.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_public_url,
        example="http://agents.lan:7717",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts to which requests are allowed although they are in your own network or use ports other than 80 and "
        "443, as HOST:PORT.",
        effect=SettingEffect.MESSAGE,
        check=check_host_and_port,
        example="127.0.0.1:9000",
    )
    webhook_secret: SecretReference | None = setting(
        None,
        "Location of the key that signs outgoing webhooks: `env` or `file`. Default: no webhooks are sent.",
        effect=SettingEffect.MESSAGE,
    )
