"""Settings of an email connector: where it reads, where it sends, and which server authenticates
senders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retinue.config import validators
from retinue.config.setting_metadata import setting
from retinue.connectors.email.email_addresses import address_of

IMAP_PORT = 993
SMTP_PORT = 465
MIB = 1024 * 1024


class Security(StrEnum):
    """How a connection is encrypted."""

    TLS = "tls"  # from the first byte
    STARTTLS = "starttls"  # by an upgrade before the login; never without
    NONE = "none"  # only to this machine


class Login(StrEnum):
    PASSWORD = "password"
    XOAUTH2 = "xoauth2"  # the secret is an access token, which another program refreshes


def mail_address(text: str) -> str | None:
    return (
        None if address_of(text) == text.lower() else "must be an address such as house@example.org, and nothing else"
    )


def one_line(text: str) -> str | None:
    return None if text.isprintable() and len(text) <= 200 else "must be one line of at most 200 characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """An email account: read by IMAP, sent by SMTP."""

    address: str = setting("", "The address of the account.", check=mail_address, example="house@example.org")
    aliases: tuple[str, ...] = setting((), "Other addresses whose mail arrives in it.", check=mail_address)
    display_name: str = setting("", "The name beside the address, in what is sent.", check=one_line)
    username: str = setting("", "Who logs in. Not set: the address.", check=one_line)
    password_env: str = setting("", "The variable that holds the password, or the access token.")
    password_file: str = setting("", "The file that holds the password, or the access token, and nothing else.")
    login: Login = setting(Login.PASSWORD, "What is handed over to log in: `password` or `xoauth2`.")
    imap_host: str = setting("", "Where mail is read.", check=validators.host, example="imap.example.org")
    imap_port: int = setting(IMAP_PORT, "Its port.", least=1, most=validators.PORT_MAX)
    imap_security: Security = setting(Security.TLS, "How: `tls`, `starttls`, or on this machine `none`.")
    smtp_host: str = setting("", "Where mail is sent.", check=validators.host, example="smtp.example.org")
    smtp_port: int = setting(SMTP_PORT, "Its port.", least=1, most=validators.PORT_MAX)
    smtp_security: Security = setting(Security.TLS, "How: `tls`, `starttls`, or on this machine `none`.")
    ca_bundle: str = setting("", "A file of certificates to trust instead of the system's.")
    mailbox: str = setting("INBOX", "The mailbox that is read.", check=one_line)
    authserv_id: str = setting(
        "",
        "The name under which the receiving server says, in `Authentication-Results`, whether senders are who they "
        "claim to be. Not set, nobody's address counts as proved, and nobody who writes is the owner.",
        check=one_line,
        example="mx.example.org",
    )
    poll_s: float = setting(60.0, "How often to look, where the server does not tell by itself.", least=1, most=3600)
    idle_s: float = setting(
        300.0, "How long to wait for the server to tell before asking whether it is still there.", least=1, most=1680
    )
    answer_s: float = setting(60.0, "How long a server may take to answer.", least=1, most=600)
    mail_bytes_max: int = setting(
        25 * MIB, "Of larger mail only the beginning is read, and its files are left.", least=64 * 1024, most=100 * MIB
    )
    mails_per_hour: int = setting(
        30, "Whoever writes more than this is taken for an answering machine, and not answered.", least=1, most=10_000
    )
