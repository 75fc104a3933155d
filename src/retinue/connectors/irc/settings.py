"""Settings of an IRC connector."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.setting_metadata import setting

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcSettings:
    """An IRC server, and our account on it."""

    host: str = setting("", "name or address of the server", example='"irc.libera.chat"')
    port: int = setting(6697, "its port", least=1, most=PORT_MAX)
    tls: bool = setting(True, "whether the line is encrypted; without, no password goes to another machine")
    tls_ca_file: str = setting("", "a certificate to trust beside those that the machine trusts")
    nick: str = setting("retinue", "the name we want")
    username: str = setting("", "our user name; empty: the nick")
    real_name: str = setting("retinue", "what the server shows beside our name")
    rooms: tuple[str, ...] = setting((), "rooms that we enter", example='["#home"]')
    password_env: str = setting("", "variable with the password of the server, where it has one")
    password_file: str = setting("", "file with the password of the server")
    account: str = setting("", "our account with the services of the network (SASL PLAIN)")
    account_password_env: str = setting("", "variable with the password of our account")
    account_password_file: str = setting("", "file with the password of our account")
    silence_s: float = setting(60.0, "so long may the server be silent before we ask whether it is there", least=1)
    answer_s: float = setting(30.0, "so long may it take to answer before we take the line for dead", least=0.1)
    flood_lines: int = setting(10, "lines that we send within `flood_window_s`, at most", least=2, most=1000)
    flood_window_s: float = setting(10.0, "see `flood_lines`", least=0.1, most=600)
