"""From a parcel to a mail, read back by the standard library; and nothing can be slipped in."""

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
HOUSE = EmailSender("house@house.test", "The House")
KEY = "a" * 32
FIELDS = ["From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "X-Auto-Response-Suppress", "MIME-Version"]
CONTENT = ["Content-Type", "Content-Transfer-Encoding"]


def written(
    text: str = "At noon.",
    *,
    key: str = KEY,
    to: str = "maria@example.org",
    sender: EmailSender = HOUSE,
    thread: EmailThread = NEW_THREAD,
    quote: str = "",
    files: tuple[tuple[Attachment, bytes], ...] = (),
) -> bytes:
    return build_email(
        key=key, text=text, to=to, sender=sender, thread=thread, quoted_message_id=quote, files=files, now=NOW
    )


def parsed(raw: bytes) -> EmailMessage:
    made = email.message_from_bytes(raw, policy=email.policy.default)
    assert not made.defects
    return made


def test_an_answer_names_what_it_answers_and_all_before_it() -> None:
    made = parsed(written(thread=EmailThread(subject="Lunch", ids=("one@x", "two@x", "three@x")), quote="two@x"))

    assert made["In-Reply-To"] == "<two@x>"
    assert made["References"].split() == ["<one@x>", "<three@x>", "<two@x>"]
    assert made["Subject"] == "Re: Lunch"
    assert made["Auto-Submitted"] == "auto-replied"


def test_an_answer_that_quotes_nothing_goes_to_the_end_of_its_thread() -> None:
    assert parsed(written(thread=EmailThread(subject="AW: Lunch", ids=("one@x", "two@x"))))["In-Reply-To"] == "<two@x>"
    assert parsed(written(thread=EmailThread(subject="AW: Lunch", ids=("one@x",))))["Subject"] == "AW: Lunch"


def test_long_references_keep_the_first_and_the_last() -> None:
    ids = tuple(f"{'x' * 90}{number}@example.org" for number in range(200))
    made = parsed(written(thread=EmailThread(subject="Lunch", ids=ids)))

    found = made["References"].split()
    assert len(found) == 20 and (found[0], found[-1]) == (f"<{ids[0]}>", f"<{ids[-1]}>")
    assert max(len(line) for line in written(thread=EmailThread(ids=ids)).split(b"\r\n")) < 998


def test_the_same_parcel_is_the_same_mail() -> None:
    file = (Attachment(hash="h", name="a.bin", media_type="application/x-odd", size_bytes=3), b"abc")

    assert written(files=(file,)) == written(files=(file,))
    assert make_message_id(KEY, HOUSE) == f"retinue.{KEY}@house.test"
    assert make_message_id(f"{KEY}/0", HOUSE) != make_message_id(f"{KEY}/1", HOUSE)
    assert parsed(written())["Message-ID"] == f"<{make_message_id(KEY, HOUSE)}>"


def test_what_we_send_is_known_for_a_programs() -> None:
    assert get_automated_reason(parse_message(written()), None)


@given(st.text(), st.text(), st.text(), st.text(max_size=60), st.text(min_size=1), st.text())
def test_no_words_of_anybody_become_a_header(
    text: str, subject: str, quote: str, name: str, key: str, file_name: str
) -> None:
    evil = "\r\nBcc: all@example.org\r\n\r\nBody"
    file = (Attachment(hash="h", name=file_name + evil, media_type=f"text/plain{evil}", size_bytes=3), b"abc")
    raw = written(
        text + evil,
        key=key + evil,
        sender=EmailSender("house@house.test", name + evil),
        thread=EmailThread(subject=subject + evil, ids=(f"one@x{evil}", quote + evil, "good@x")),
        quote=quote + evil,
        files=(file,),
    )
    head = raw.partition(b"\r\n\r\n")[0]
    names = [line.partition(b":")[0].decode() for line in head.split(b"\r\n") if line[:1] not in b" \t"]

    assert "Bcc" not in names
    assert set(names) <= {*FIELDS, *CONTENT, "In-Reply-To", "References"}
    assert raw.isascii() and max(map(len, raw.split(b"\r\n"))) <= 998
    assert b"\r" not in raw.replace(b"\r\n", b"") and b"\n" not in raw.replace(b"\r\n", b"")


@given(
    st.text(
        alphabet=st.characters(
            blacklist_categories=("Cs",), blacklist_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"
        )
    )
)
def test_the_words_arrive_as_they_were(text: str) -> None:
    body = parsed(written(text)).get_body()

    assert body is not None
    assert body.get_content().replace("\r\n", "\n").rstrip("\n") == text.rstrip("\n")


def test_files_arrive_as_they_were() -> None:
    content = bytes(range(256)) * 300
    files = (
        (Attachment(hash="h", name="Übersicht.pdf", media_type="application/pdf", size_bytes=1), content),
        (Attachment(hash="i", name="mail.eml", media_type="message/rfc822", size_bytes=1), b"From: x\n\ny"),
        (Attachment(hash="j", name="notes.txt", media_type="text/plain", size_bytes=1), b"--=_retinue\r\n.\r\n"),
    )
    made = parsed(written(files=files))

    assert [(part.get_filename(), part.get_payload(decode=True)) for part in made.iter_attachments()] == [
        ("Übersicht.pdf", content),
        ("mail.eml", b"From: x\n\ny"),
        ("notes.txt", b"--=_retinue\r\n.\r\n"),
    ]


@pytest.mark.parametrize(
    ("room", "address", "thread"),
    [
        ("maria@example.org", "maria@example.org", ""),
        ("Maria@Example.org/0123abcd", "maria@example.org", "0123abcd"),
        ("unverified:maria@example.org/0123abcd", "maria@example.org", "0123abcd"),
        ("a/b@example.org/0123abcd", "a/b@example.org", "0123abcd"),
    ],
)
def test_a_room_says_whom_mail_goes_to(room: str, address: str, thread: str) -> None:
    found = parse_channel(room)

    assert found is not None and (found.address, found.thread) == (address, thread)


@pytest.mark.parametrize(
    "room",
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
def test_what_is_no_room_leads_nowhere(room: str) -> None:
    assert parse_channel(room) is None
