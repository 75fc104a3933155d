"""Settings of an IRC connector."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import setting

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcSettings:
    """An IRC server, and the nickname and account that the agent uses there."""

    host: str = setting("", "Host name or IP address of the IRC server.", example='"irc.libera.chat"')
    port: int = setting(6697, "Port of the IRC server.", least=1, most=PORT_MAX)
    tls: bool = setting(
        True, "Whether the connection uses TLS. Without TLS, passwords are sent only to a server on this machine."
    )
    tls_ca_file: str = setting("", "File with a CA certificate to trust, in addition to those of the system.")
    nick: str = setting("retinue", "Nickname of the agent.")
    username: str = setting("", "Username of the agent. Default: `nick`.")
    real_name: str = setting("retinue", "Real name of the agent, which IRC servers show in addition to the nickname.")
    channels: tuple[str, ...] = setting((), "Channels to join. Default: none.", example='["#home"]')
    password_env: str = setting(
        "", "Name of the environment variable that contains the password of the IRC server. Default: no password."
    )
    password_file: str = setting("", "File that contains only the password of the IRC server.")
    account: str = setting(
        "", "Name of the account on the IRC network, for a login with SASL PLAIN. Default: no login."
    )
    account_password_env: str = setting(
        "", "Name of the environment variable that contains the password of the account."
    )
    account_password_file: str = setting("", "File that contains only the password of the account.")
    ping_after_s: float = setting(
        60.0, "Time without data after which the connector sends a PING to the IRC server, in seconds.", least=1
    )
    answer_timeout_s: float = setting(
        30.0,
        "Maximum time to wait for an answer from the IRC server, in seconds. After that, the connector reconnects.",
        least=0.1,
    )
    flood_lines: int = setting(
        10, "Maximum number of lines to send within `flood_window_s`. Further lines wait.", least=2, most=1000
    )
    flood_window_s: float = setting(10.0, "Period to which `flood_lines` applies, in seconds.", least=0.1, most=600)
