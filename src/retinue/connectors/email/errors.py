"""Errors in the settings of an email connector."""

from __future__ import annotations

from retinue.domain.errors import Invalid


class EmailSettingMissing(Invalid):
    """A required setting of an email connector is missing."""

    code = "email.setting_missing"

    def __init__(self, connector: str, key: str) -> None:
        super().__init__(
            f"connectors.{connector}.{key} is missing",
            because="an email connector needs an address, an IMAP host and an SMTP host",
            try_this=f"set {key}, or add the connector again: retinue connector add email",
        )


class EmailConnectionUnencrypted(Invalid):
    """The connection to another machine would not be encrypted."""

    code = "email.unencrypted"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the connection to {host} would not be encrypted",
            because='`security = "none"` sends the password in plain text, and is only for servers on this machine',
            try_this='use "tls" or "starttls"',
        )
