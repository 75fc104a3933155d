"""Settings of an IRC connector."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import setting

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcSettings:
    """An IRC server, and the account that the agent uses on it."""

    host: str = setting("", "Host name or address of the server.", example='"irc.libera.chat"')
    port: int = setting(6697, "Port of the server.", least=1, most=PORT_MAX)
    tls: bool = setting(
        True, "Whether the connection is encrypted. Without TLS, no password is sent to another machine."
    )
    tls_ca_file: str = setting("", "File with a certificate to trust, besides those of the system.")
    nick: str = setting("retinue", "Nickname to use.")
    username: str = setting("", "Username. Default: the nickname.")
    real_name: str = setting("retinue", "Real name, which the server shows beside the nickname.")
    channels: tuple[str, ...] = setting((), "Channels to join.", example='["#home"]')
    password_env: str = setting("", "Environment variable with the server password, if there is one.")
    password_file: str = setting("", "File with the server password.")
    account: str = setting("", "Name of the account on the IRC network, for SASL PLAIN.")
    account_password_env: str = setting("", "Environment variable with the password of the account.")
    account_password_file: str = setting("", "File with the password of the account.")
    ping_after_s: float = setting(60.0, "Time without data after which the server is pinged, in seconds.", least=1)
    answer_timeout_s: float = setting(
        30.0, "Time without an answer after which the connection counts as lost, in seconds.", least=0.1
    )
    flood_lines: int = setting(10, "Maximum number of lines to send within `flood_window_s`.", least=2, most=1000)
    flood_window_s: float = setting(
        10.0, "Period in which the connector sends at most `flood_lines` lines, in seconds.", least=0.1, most=600
    )
