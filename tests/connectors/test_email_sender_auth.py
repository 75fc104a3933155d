"""Test how far the sender of an email is proved, and whether it is a program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from connectors.email_instance import make_email

from retinue.connectors.email.mime import parse_message
from retinue.connectors.email.sender_auth import SenderAuthenticator, SenderAuthResult
from retinue.testing.email_servers import AUTHSERV, MARIA_ADDRESS, SERVER_ADDRESS

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
DMARC_PASS = f"{AUTHSERV}; dmarc=pass header.from=example.org"


def make_authenticator(*, authserv_id: str = AUTHSERV, emails_per_hour: int = 1000) -> SenderAuthenticator:
    return SenderAuthenticator.create(
        addresses=frozenset({SERVER_ADDRESS}), authserv_id=authserv_id, emails_per_hour=emails_per_hour
    )


def authenticate_email(
    *lines: str,
    by: SenderAuthenticator | None = None,
    sender: str = MARIA_ADDRESS,
    to: str = SERVER_ADDRESS,
    at: datetime = NOW,
) -> SenderAuthResult:
    made = make_email("words", sender=sender, to=to, now=NOW)
    raw = "".join(f"{line}\r\n" for line in lines).encode() + bytes(made)
    return (by or make_authenticator()).authenticate(parse_message(raw), received_at=at)


@pytest.mark.parametrize(
    "results",
    [
        DMARC_PASS,
        f"{AUTHSERV};\r\n spf=pass smtp.mailfrom=x.test;\r\n dmarc=pass (p=REJECT sp=NONE) header.from=example.org",
        f"{AUTHSERV} 1; dkim=pass (2048-bit key) header.d=example.org header.s=s1 header.b=abc",
        f"{AUTHSERV}; dkim=fail header.d=example.org; dkim=pass header.i=@example.org",
        f"{AUTHSERV.upper()}; DMARC=PASS header.from=Example.ORG",
        f'{AUTHSERV}; dkim=pass header.i=@x.test header.b="a/b+c="; spf=pass (of a@x.test) smtp.mailfrom=a@x.test;'
        " dmarc=pass (p=REJECT) header.from=example.org",
    ],
)
def test_an_email_sender_authenticated_by_the_receiving_server_is_verified(results: str) -> None:
    auth_result = authenticate_email(f"Authentication-Results: {results}")

    assert (auth_result.is_verified, auth_result.sender_id, auth_result.because) == (True, MARIA_ADDRESS, "")


@pytest.mark.parametrize(
    "results",
    [
        f"{AUTHSERV}; none",
        f"{AUTHSERV}; dmarc=fail header.from=example.org",
        f"{AUTHSERV}; dmarc=pass header.from=evil.test",
        f"{AUTHSERV}; dmarc=pass",  # it does not say which domain passed
        f"{AUTHSERV}; spf=pass smtp.mailfrom=example.org",  # the envelope sender, not the From header
        f"{AUTHSERV}; dkim=pass header.d=evil.test",
        f"{AUTHSERV}; dkim=pass header.d=sub.example.org",  # control of a subdomain is not control of the domain
        f"{AUTHSERV}; dkim=pass header.d=org",
        f"{AUTHSERV}; dkim=pass header.d=notexample.org",
        f"{AUTHSERV}; x=y (; dmarc=pass header.from=example.org)",
        f'{AUTHSERV}; spf=fail smtp.mailfrom="(" ; x="; dmarc=pass header.from=example.org ("',
        "mx.evil.test; dmarc=pass header.from=example.org",
        f"mx.evil.test ({AUTHSERV}); dmarc=pass header.from=example.org",
        f"x{AUTHSERV}; dmarc=pass header.from=example.org",
    ],
)
def test_other_authentication_results_do_not_verify_the_email_sender(results: str) -> None:
    auth_result = authenticate_email(f"Authentication-Results: {results}")

    assert (auth_result.is_verified, auth_result.sender_id) == (False, f"unverified:{MARIA_ADDRESS}")
    assert auth_result.because


def test_only_the_topmost_authentication_results_of_the_receiving_mail_server_count() -> None:
    forged_below = authenticate_email(
        f"Authentication-Results: {AUTHSERV}; dmarc=fail", f"Authentication-Results: {DMARC_PASS}"
    )
    strangers_above = authenticate_email(
        "Authentication-Results: mx.evil.test; dmarc=fail", f"Authentication-Results: {DMARC_PASS}"
    )

    assert not forged_below.is_verified
    assert strangers_above.is_verified


@pytest.mark.parametrize(
    "unreadable",
    [
        f'{AUTHSERV}; spf=fail (not designated) smtp.mailfrom="x"@evil.test; dmarc=fail header.from=example.org',
        f"{AUTHSERV}; spf=fail (said \\) ; dmarc=pass header.from=example.org )",
        f"{AUTHSERV}; spf=fail (helo=( ; dmarc=fail header.from=example.org",
        f"(a (b (c (d) c) b) a) {AUTHSERV}; dmarc=fail",
    ],
)
def test_unreadable_authentication_results_of_the_receiving_mail_server_hide_those_below(unreadable: str) -> None:
    assert not authenticate_email(
        f"Authentication-Results: {unreadable}", f"Authentication-Results: {DMARC_PASS}"
    ).is_verified


def test_unverified_emails_do_not_use_up_the_rate_limit_of_the_verified_sender() -> None:
    by = make_authenticator(emails_per_hour=3)
    forged = [authenticate_email(by=by) for _ in range(10)]
    assert forged[-1].is_automated and not forged[-1].is_verified
    assert not authenticate_email(f"Authentication-Results: {DMARC_PASS}", by=by).is_automated


def test_no_email_sender_is_verified_without_an_authserv_id() -> None:
    assert not authenticate_email(
        f"Authentication-Results: {DMARC_PASS}", by=make_authenticator(authserv_id="")
    ).is_verified
    assert not authenticate_email(
        "Authentication-Results: ; dmarc=pass header.from=example.org", by=make_authenticator(authserv_id="")
    ).is_verified


@pytest.mark.parametrize(
    "sender",
    [
        f"{MARIA_ADDRESS}, boss@example.org",
        f"boss@evil.test, {MARIA_ADDRESS}",
        f"undisclosed:{MARIA_ADDRESS};, a@example.org",
    ],
)
def test_an_email_with_several_from_addresses_is_not_verified(sender: str) -> None:
    date = "Wed, 04 Mar 2026 05:06:07 +0000"
    raw = f"Authentication-Results: {DMARC_PASS}\r\nFrom: {sender}\r\nTo: {SERVER_ADDRESS}\r\nDate: {date}"

    assert (
        not make_authenticator().authenticate(parse_message(raw.encode() + b"\r\n\r\nx"), received_at=NOW).is_verified
    )


def test_an_email_with_a_second_from_header_is_not_verified() -> None:
    assert not authenticate_email(f"Authentication-Results: {DMARC_PASS}", f"From: {MARIA_ADDRESS}").is_verified


def test_an_email_addressed_to_another_recipient_is_not_verified() -> None:
    assert not authenticate_email(f"Authentication-Results: {DMARC_PASS}", to="a-list@example.org").is_verified


def test_an_email_with_a_date_far_from_its_arrival_is_not_verified() -> None:
    assert authenticate_email(f"Authentication-Results: {DMARC_PASS}", at=NOW + timedelta(days=2)).is_verified
    assert not authenticate_email(f"Authentication-Results: {DMARC_PASS}", at=NOW + timedelta(days=30)).is_verified
    assert not authenticate_email(f"Authentication-Results: {DMARC_PASS}", at=NOW - timedelta(days=30)).is_verified


@pytest.mark.parametrize(
    "line",
    [
        "Auto-Submitted: auto-replied",
        "Auto-Submitted: auto-generated; owner-email=x",
        "Precedence: bulk",
        "Precedence: List",
        "List-Id: <friends.example.org>",
        "List-Unsubscribe: <mailto:x@example.org>",
        "X-Auto-Response-Suppress: All",
        "X-Autoreply: yes",
        "Return-Path: <>",
        "X-Failed-Recipients: noor@example.org",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=x",
    ],
)
def test_an_email_with_an_automation_header_is_automated(line: str) -> None:
    auth_result = authenticate_email(line)

    assert auth_result.is_automated and auth_result.because


@pytest.mark.parametrize(
    "sender",
    [
        "MAILER-DAEMON@example.org",
        "no-reply@example.org",
        "noreply+17@example.org",
        "friends-bounces@example.org",
        "postmaster@x.org",
    ],
)
def test_an_email_from_a_system_address_is_automated(sender: str) -> None:
    assert authenticate_email(sender=sender).is_automated


@pytest.mark.parametrize(
    "line", ["Auto-Submitted: no", "Precedence: first-class", "X-Auto-Response-Suppress: None", "X-Mailer: y"]
)
def test_an_email_with_ordinary_headers_is_not_automated(line: str) -> None:
    assert not authenticate_email(line).is_automated


def test_own_email_is_recognized_by_message_id_or_address() -> None:
    by_id = parse_message(b"From: maria@example.org\r\nMessage-ID: <retinue.abc@retinue.test>\r\n\r\n")
    elsewhere = parse_message(b"From: maria@example.org\r\nMessage-ID: <retinue.abc@example.org>\r\n\r\n")

    assert make_authenticator().authenticate(by_id, received_at=NOW).is_own
    assert authenticate_email(sender=SERVER_ADDRESS).is_own
    assert not make_authenticator().authenticate(elsewhere, received_at=NOW).is_own


def test_an_email_sender_above_the_hourly_limit_is_automated_until_they_slow_down() -> None:
    hasty = make_authenticator(emails_per_hour=3)
    paces = [authenticate_email(by=hasty, at=NOW + timedelta(seconds=each)).is_automated for each in range(5)]
    other = authenticate_email(by=hasty, sender="noor@example.org")
    later = authenticate_email(by=hasty, at=NOW + timedelta(hours=1))

    assert paces == [False, False, False, True, True]
    assert not other.is_automated
    assert not later.is_automated
