"""Settings of an email connector: the servers, the login, and how senders are verified."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retinue.config import validators
from retinue.config.setting_metadata import setting
from retinue.connectors.email.email_addresses import parse_address

IMAP_PORT = 993
SMTP_PORT = 465
MIB = 1024 * 1024


class EmailSecurity(StrEnum):
    """How the connection to an email server is encrypted."""

    TLS = "tls"  # from the first byte
    STARTTLS = "starttls"  # by an upgrade before the login; without it, the connection is refused
    NONE = "none"  # only to this machine


class EmailLogin(StrEnum):
    PASSWORD = "password"
    XOAUTH2 = "xoauth2"  # the secret is an access token, which another program refreshes


def check_email_address(text: str) -> str | None:
    return None if parse_address(text) == text.lower() else "must be one email address, such as agents@example.org"


def check_one_line(text: str) -> str | None:
    return None if text.isprintable() and len(text) <= 200 else "must be one line of at most 200 characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSettings:
    """An email account. Email is read over IMAP and sent over SMTP."""

    address: str = setting("", "Email address of the account.", check=check_email_address, example="agents@example.org")
    aliases: tuple[str, ...] = setting(
        (), "Other email addresses whose email arrives in this account.", check=check_email_address
    )
    display_name: str = setting(
        "", "Name that recipients see as the sender. Default: only the address.", check=check_one_line
    )
    username: str = setting(
        "", "Username for logging in to the IMAP and SMTP servers. Default: `address`.", check=check_one_line
    )
    password_env: str = setting("", "Name of the environment variable that contains the password or access token.")
    password_file: str = setting("", "File that contains only the password or access token.")
    login: EmailLogin = setting(
        EmailLogin.PASSWORD, "Login method: with a password (`password`), or with an OAuth access token (`xoauth2`)."
    )
    imap_host: str = setting("", "Host of the IMAP server.", check=validators.check_host, example="imap.example.org")
    imap_port: int = setting(IMAP_PORT, "Port of the IMAP server.", least=1, most=validators.PORT_MAX)
    imap_security: EmailSecurity = setting(
        EmailSecurity.TLS,
        "Encryption of the IMAP connection: `tls`, `starttls`, or `none` (only for a server on this machine).",
    )
    smtp_host: str = setting("", "Host of the SMTP server.", check=validators.check_host, example="smtp.example.org")
    smtp_port: int = setting(SMTP_PORT, "Port of the SMTP server.", least=1, most=validators.PORT_MAX)
    smtp_security: EmailSecurity = setting(
        EmailSecurity.TLS,
        "Encryption of the SMTP connection: `tls`, `starttls`, or `none` (only for a server on this machine).",
    )
    ca_bundle: str = setting(
        "", "File with CA certificates to trust instead of the system's. Default: the system's CA certificates."
    )
    mailbox: str = setting("INBOX", "Mailbox (mail folder) from which email is read.", check=check_one_line)
    authserv_id: str = setting(
        "",
        "Name of your provider's server at the beginning of the header `Authentication-Results`. This header is used "
        "to verify the sender of an email. Empty: no sender is verified, not even the owner.",
        check=check_one_line,
        example="mx.example.org",
    )
    poll_s: float = setting(
        60.0,
        "Time between checks for new email if the IMAP server does not support IDLE, in seconds.",
        least=1,
        most=3600,
    )
    idle_s: float = setting(300.0, "Maximum duration of one IDLE command, in seconds.", least=1, most=1680)
    answer_timeout_s: float = setting(
        60.0, "Maximum time to wait for an answer from the IMAP or SMTP server, in seconds.", least=1, most=600
    )
    email_bytes_max: int = setting(
        25 * MIB,
        "Maximum size of an email, in bytes. Only the beginning of a larger email is read, without attachments.",
        least=64 * 1024,
        most=100 * MIB,
    )
    emails_per_hour: int = setting(
        30,
        "Maximum number of emails per hour from one address. Further emails count as automated and are not answered.",
        least=1,
        most=10_000,
    )
