"""Who wrote a mail, as far as it is proved, and whether it was a program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from connectors.email_instance import mail

from retinue.connectors.email.mime import parse_message
from retinue.connectors.email.sender_auth import SenderAuthenticator, SenderAuthResult
from retinue.testing.email_servers import AUTHSERV, MARIA_ADDRESS, SERVER_ADDRESS

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
PASS = f"{AUTHSERV}; dmarc=pass header.from=example.org"


def guard(*, authserv_id: str = AUTHSERV, mails_per_hour: int = 1000) -> SenderAuthenticator:
    return SenderAuthenticator.create(
        addresses=frozenset({SERVER_ADDRESS}), authserv_id=authserv_id, mails_per_hour=mails_per_hour
    )


def judge(
    *lines: str,
    by: SenderAuthenticator | None = None,
    sender: str = MARIA_ADDRESS,
    to: str = SERVER_ADDRESS,
    at: datetime = NOW,
) -> SenderAuthResult:
    made = mail("words", sender=sender, to=to, now=NOW)
    raw = "".join(f"{line}\r\n" for line in lines).encode() + bytes(made)
    return (by or guard()).authenticate(parse_message(raw), received_at=at)


@pytest.mark.parametrize(
    "results",
    [
        PASS,
        f"{AUTHSERV};\r\n spf=pass smtp.mailfrom=x.test;\r\n dmarc=pass (p=REJECT sp=NONE) header.from=example.org",
        f"{AUTHSERV} 1; dkim=pass (2048-bit key) header.d=example.org header.s=s1 header.b=abc",
        f"{AUTHSERV}; dkim=fail header.d=example.org; dkim=pass header.i=@example.org",
        f"{AUTHSERV.upper()}; DMARC=PASS header.from=Example.ORG",
        f'{AUTHSERV}; dkim=pass header.i=@x.test header.b="a/b+c="; spf=pass (of a@x.test) smtp.mailfrom=a@x.test;'
        " dmarc=pass (p=REJECT) header.from=example.org",
    ],
)
def test_an_address_that_the_receiving_server_vouches_for_is_proved(results: str) -> None:
    judgement = judge(f"Authentication-Results: {results}")

    assert (judgement.is_verified, judgement.sender_id, judgement.because) == (True, MARIA_ADDRESS, "")


@pytest.mark.parametrize(
    "results",
    [
        f"{AUTHSERV}; none",
        f"{AUTHSERV}; dmarc=fail header.from=example.org",
        f"{AUTHSERV}; dmarc=pass header.from=evil.test",
        f"{AUTHSERV}; dmarc=pass",  # of whom, it does not say
        f"{AUTHSERV}; spf=pass smtp.mailfrom=example.org",  # the envelope, not the letter
        f"{AUTHSERV}; dkim=pass header.d=evil.test",
        f"{AUTHSERV}; dkim=pass header.d=sub.example.org",  # whoever has a part of a domain has not all of it
        f"{AUTHSERV}; dkim=pass header.d=org",
        f"{AUTHSERV}; dkim=pass header.d=notexample.org",
        f"{AUTHSERV}; x=y (; dmarc=pass header.from=example.org)",
        f'{AUTHSERV}; spf=fail smtp.mailfrom="(" ; x="; dmarc=pass header.from=example.org ("',
        "mx.evil.test; dmarc=pass header.from=example.org",
        f"mx.evil.test ({AUTHSERV}); dmarc=pass header.from=example.org",
        f"x{AUTHSERV}; dmarc=pass header.from=example.org",
    ],
)
def test_any_other_word_on_it_proves_nothing(results: str) -> None:
    judgement = judge(f"Authentication-Results: {results}")

    assert (judgement.is_verified, judgement.sender_id) == (False, f"unverified:{MARIA_ADDRESS}")
    assert judgement.because


def test_only_the_topmost_word_of_the_server_counts() -> None:
    forged_below = judge(f"Authentication-Results: {AUTHSERV}; dmarc=fail", f"Authentication-Results: {PASS}")
    strangers_above = judge("Authentication-Results: mx.evil.test; dmarc=fail", f"Authentication-Results: {PASS}")

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
def test_a_word_of_the_server_that_cannot_be_read_lets_none_below_it_count(unreadable: str) -> None:
    assert not judge(f"Authentication-Results: {unreadable}", f"Authentication-Results: {PASS}").is_verified


def test_whoever_only_claims_an_address_does_not_use_up_what_its_owner_may_write() -> None:
    by = guard(mails_per_hour=3)
    forged = [judge(by=by) for _ in range(10)]
    assert forged[-1].is_automated and not forged[-1].is_verified
    assert not judge(f"Authentication-Results: {PASS}", by=by).is_automated


def test_without_a_server_to_believe_nobody_is_proved() -> None:
    assert not judge(f"Authentication-Results: {PASS}", by=guard(authserv_id="")).is_verified
    assert not judge(
        "Authentication-Results: ; dmarc=pass header.from=example.org", by=guard(authserv_id="")
    ).is_verified


@pytest.mark.parametrize(
    "sender",
    [
        f"{MARIA_ADDRESS}, boss@example.org",
        f"boss@evil.test, {MARIA_ADDRESS}",
        f"undisclosed:{MARIA_ADDRESS};, a@example.org",
    ],
)
def test_a_mail_from_several_proves_none_of_them(sender: str) -> None:
    date = "Wed, 04 Mar 2026 05:06:07 +0000"
    raw = f"Authentication-Results: {PASS}\r\nFrom: {sender}\r\nTo: {SERVER_ADDRESS}\r\nDate: {date}"

    assert not guard().authenticate(parse_message(raw.encode() + b"\r\n\r\nx"), received_at=NOW).is_verified


def test_a_second_from_proves_nobody() -> None:
    assert not judge(f"Authentication-Results: {PASS}", f"From: {MARIA_ADDRESS}").is_verified


def test_a_mail_to_somebody_else_that_was_sent_on_is_not_taken_for_a_word_to_us() -> None:
    assert not judge(f"Authentication-Results: {PASS}", to="a-list@example.org").is_verified


def test_an_old_mail_that_is_sent_again_is_not_taken_for_a_new_one() -> None:
    assert judge(f"Authentication-Results: {PASS}", at=NOW + timedelta(days=2)).is_verified
    assert not judge(f"Authentication-Results: {PASS}", at=NOW + timedelta(days=30)).is_verified
    assert not judge(f"Authentication-Results: {PASS}", at=NOW - timedelta(days=30)).is_verified


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
def test_what_a_program_sends_is_known_for_it(line: str) -> None:
    judgement = judge(line)

    assert judgement.is_automated and judgement.because


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
def test_an_address_that_programs_have_is_a_programs(sender: str) -> None:
    assert judge(sender=sender).is_automated


@pytest.mark.parametrize(
    "line", ["Auto-Submitted: no", "Precedence: first-class", "X-Auto-Response-Suppress: None", "X-Mailer: y"]
)
def test_a_person_is_none(line: str) -> None:
    assert not judge(line).is_automated


def test_our_own_mail_is_ours_by_its_id_or_its_address() -> None:
    by_id = parse_message(b"From: maria@example.org\r\nMessage-ID: <retinue.abc@house.test>\r\n\r\n")
    elsewhere = parse_message(b"From: maria@example.org\r\nMessage-ID: <retinue.abc@example.org>\r\n\r\n")

    assert guard().authenticate(by_id, received_at=NOW).is_own
    assert judge(sender=SERVER_ADDRESS).is_own
    assert not guard().authenticate(elsewhere, received_at=NOW).is_own


def test_whoever_writes_faster_than_a_person_is_a_program_until_they_slow_down() -> None:
    hasty = guard(mails_per_hour=3)
    paces = [judge(by=hasty, at=NOW + timedelta(seconds=each)).is_automated for each in range(5)]
    other = judge(by=hasty, sender="noor@example.org")
    later = judge(by=hasty, at=NOW + timedelta(hours=1))

    assert paces == [False, False, False, True, True]
    assert not other.is_automated
    assert not later.is_automated
