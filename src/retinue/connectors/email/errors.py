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
            because="the password would be sent in plain text, which is allowed only to a server on this machine",
            try_this='set `imap_security` and `smtp_security` to "tls" or "starttls"',
        )
