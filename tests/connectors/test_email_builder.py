"""Test building an email from a delivery part. The standard library reads it back, and no text can inject a header."""

from __future__ import annotations

import email
import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connectors.email.message_builder import (
    NEW_THREAD,
    EmailSender,
    EmailThread,
    build_email,
    make_message_id,
    parse_channel,
)
from retinue.connectors.email.mime import parse_message
from retinue.connectors.email.sender_auth import get_automated_reason
from retinue.domain.attachment import Attachment

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SERVER = EmailSender("retinue@retinue.test", "The Team")
IDEMPOTENCY_KEY = "a" * 32
HEADER_NAMES = [
    "From",
    "To",
    "Subject",
    "Date",
    "Message-ID",
    "Auto-Submitted",
    "X-Auto-Response-Suppress",
    "MIME-Version",
]
CONTENT_HEADER_NAMES = ["Content-Type", "Content-Transfer-Encoding"]


def build(
    text: str = "At noon.",
    *,
    key: str = IDEMPOTENCY_KEY,
    to: str = "maria@example.org",
    sender: EmailSender = SERVER,
    thread: EmailThread = NEW_THREAD,
    quote: str = "",
    files: tuple[tuple[Attachment, bytes], ...] = (),
) -> bytes:
    return build_email(
        key=key, text=text, to=to, sender=sender, thread=thread, quoted_message_id=quote, files=files, now=NOW
    )


def parse(raw: bytes) -> EmailMessage:
    made = email.message_from_bytes(raw, policy=email.policy.default)
    assert not made.defects
    return made


def test_a_reply_email_has_in_reply_to_and_references_headers() -> None:
    made = parse(build(thread=EmailThread(subject="Lunch", ids=("one@x", "two@x", "three@x")), quote="two@x"))

    assert made["In-Reply-To"] == "<two@x>"
    assert made["References"].split() == ["<one@x>", "<three@x>", "<two@x>"]
    assert made["Subject"] == "Re: Lunch"
    assert made["Auto-Submitted"] == "auto-replied"


def test_a_reply_email_without_a_quote_answers_the_last_message_of_its_thread() -> None:
    assert parse(build(thread=EmailThread(subject="AW: Lunch", ids=("one@x", "two@x"))))["In-Reply-To"] == "<two@x>"
    assert parse(build(thread=EmailThread(subject="AW: Lunch", ids=("one@x",))))["Subject"] == "AW: Lunch"


def test_long_references_of_a_reply_email_keep_the_first_and_the_last_message_id() -> None:
    ids = tuple(f"{'x' * 90}{number}@example.org" for number in range(200))
    made = parse(build(thread=EmailThread(subject="Lunch", ids=ids)))

    found = made["References"].split()
    assert len(found) == 20 and (found[0], found[-1]) == (f"<{ids[0]}>", f"<{ids[-1]}>")
    assert max(len(line) for line in build(thread=EmailThread(ids=ids)).split(b"\r\n")) < 998


def test_the_same_delivery_part_builds_an_identical_email_and_message_id() -> None:
    file = (Attachment(hash="h", name="a.bin", media_type="application/x-odd", size_bytes=3), b"abc")

    assert build(files=(file,)) == build(files=(file,))
    assert make_message_id(IDEMPOTENCY_KEY, SERVER) == f"retinue.{IDEMPOTENCY_KEY}@retinue.test"
    assert make_message_id(f"{IDEMPOTENCY_KEY}/0", SERVER) != make_message_id(f"{IDEMPOTENCY_KEY}/1", SERVER)
    assert parse(build())["Message-ID"] == f"<{make_message_id(IDEMPOTENCY_KEY, SERVER)}>"


def test_an_email_built_by_the_server_is_recognized_as_automated() -> None:
    assert get_automated_reason(parse_message(build()), None)


@given(st.text(), st.text(), st.text(), st.text(max_size=60), st.text(min_size=1), st.text())
def test_line_breaks_in_any_field_cannot_inject_an_email_header(
    text: str, subject: str, quote: str, name: str, key: str, file_name: str
) -> None:
    evil = "\r\nBcc: all@example.org\r\n\r\nBody"
    file = (Attachment(hash="h", name=file_name + evil, media_type=f"text/plain{evil}", size_bytes=3), b"abc")
    raw = build(
        text + evil,
        key=key + evil,
        sender=EmailSender("retinue@retinue.test", name + evil),
        thread=EmailThread(subject=subject + evil, ids=(f"one@x{evil}", quote + evil, "good@x")),
        quote=quote + evil,
        files=(file,),
    )
    head = raw.partition(b"\r\n\r\n")[0]
    names = [line.partition(b":")[0].decode() for line in head.split(b"\r\n") if line[:1] not in b" \t"]

    assert "Bcc" not in names
    assert set(names) <= {*HEADER_NAMES, *CONTENT_HEADER_NAMES, "In-Reply-To", "References"}
    assert raw.isascii() and max(map(len, raw.split(b"\r\n"))) <= 998
    assert b"\r" not in raw.replace(b"\r\n", b"") and b"\n" not in raw.replace(b"\r\n", b"")


@given(
    st.text(
        alphabet=st.characters(
            blacklist_categories=("Cs",), blacklist_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"
        )
    )
)
def test_the_text_of_a_built_email_is_preserved(text: str) -> None:
    body = parse(build(text)).get_body()

    assert body is not None
    assert body.get_content().replace("\r\n", "\n").rstrip("\n") == text.rstrip("\n")


def test_attachments_of_a_built_email_keep_their_names_and_bytes() -> None:
    content = bytes(range(256)) * 300
    files = (
        (Attachment(hash="h", name="Übersicht.pdf", media_type="application/pdf", size_bytes=1), content),
        (Attachment(hash="i", name="mail.eml", media_type="message/rfc822", size_bytes=1), b"From: x\n\ny"),
        (Attachment(hash="j", name="notes.txt", media_type="text/plain", size_bytes=1), b"--=_retinue\r\n.\r\n"),
    )
    made = parse(build(files=files))

    assert [(part.get_filename(), part.get_payload(decode=True)) for part in made.iter_attachments()] == [
        ("Übersicht.pdf", content),
        ("mail.eml", b"From: x\n\ny"),
        ("notes.txt", b"--=_retinue\r\n.\r\n"),
    ]


@pytest.mark.parametrize(
    ("channel", "address", "thread"),
    [
        ("maria@example.org", "maria@example.org", ""),
        ("Maria@Example.org/0123abcd", "maria@example.org", "0123abcd"),
        ("unverified:maria@example.org/0123abcd", "maria@example.org", "0123abcd"),
        ("a/b@example.org/0123abcd", "a/b@example.org", "0123abcd"),
    ],
)
def test_an_email_channel_is_parsed_into_an_address_and_a_thread(channel: str, address: str, thread: str) -> None:
    found = parse_channel(channel)

    assert found is not None and (found.address, found.thread) == (address, thread)


@pytest.mark.parametrize(
    "channel",
    [
        "",
        "maria",
        "maria@example.org/",
        "maria@example.org/a b",
        "a@b.c>\r\nRCPT TO:<x@y.z",
        "a@b.c,d@e.f",
        "<a@b.c>",
        "a@b.c/x/y",
    ],
)
def test_an_invalid_email_channel_is_rejected(channel: str) -> None:
    assert parse_channel(channel) is None
