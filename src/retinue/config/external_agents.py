"""Settings that apply to all external agents. The URL of each agent is in its definition."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config import validators
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.config.web import check_host_and_port


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAgentSettings:
    """Requests between the server and external agents, and outgoing webhooks."""

    callback_url: str | None = setting(
        None,
        "URL at which external agents reach this server. Default: `server.public_url`, otherwise the listen address.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_public_url,
        example="http://agents.lan:7717",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts, as HOST:PORT, that the server may reach even if they are in your own network or use a port other than "
        "80 and 443.",
        effect=SettingEffect.MESSAGE,
        check=check_host_and_port,
        example="127.0.0.1:9000",
    )
    webhook_secret: SecretReference | None = setting(
        None,
        "Location of the key that signs outgoing webhooks: an environment variable (`env`) or a file (`file`). "
        "Default: no webhooks are sent.",
        effect=SettingEffect.MESSAGE,
    )
