"""Test how an envelope is split into delivery parts for a platform with limited capabilities."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.delivery_part import ConnectorCapabilities, LengthUnit
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeContext, EnvelopeKind, EnvelopeStatus
from retinue.domain.ids import EnvelopeId
from retinue.domain.reply_delivery import ChunkMode, QuoteMode, ReplyDelivery, StreamMode
from retinue.domain.trust import Trust
from retinue.policy.delivery_split import PARTS_MAX, DeliveryContext, parse_reply_tags, split_envelope
from retinue.text.chunking import measure_length

ACCEPTED_AT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
LIKE_TELEGRAM = ConnectorCapabilities(
    text_max=4096,
    unit=LengthUnit.UTF16,
    caption_max=1024,
    can_send_files=True,
    file_bytes_max=50_000_000,
    album_max=10,
    can_quote=True,
    can_show_buttons=True,
)
LIKE_IRC = ConnectorCapabilities(text_max=400, unit=LengthUnit.BYTES, can_break_lines=False)


def make_envelope(
    text: str, *, files: tuple[Attachment, ...] = (), kind: EnvelopeKind = EnvelopeKind.ANSWER, approval: str = ""
) -> Envelope:
    return Envelope(
        seq=1,
        id=EnvelopeId("1" * 32),
        sender=address.agent_address("ada", "0" * 32),
        recipient=address.parse_address("channel:telegram:42"),
        session=None,
        kind=kind,
        text=text,
        attachments=files,
        context=EnvelopeContext(approval=approval) if approval else NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="test",
        idempotency_key="1",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=ACCEPTED_AT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=ACCEPTED_AT,
        claimed_at=ACCEPTED_AT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )


def make_picture(number: int, *, media_type: str = "image/png", size_bytes: int = 1000) -> Attachment:
    return Attachment(hash=f"{number:064x}", name=f"{number}.png", media_type=media_type, size_bytes=size_bytes)


def test_a_short_answer_is_split_into_a_single_delivery_part_with_the_envelope_id_as_key() -> None:
    [part] = split_envelope(make_envelope("Lunch with Noor."), LIKE_TELEGRAM)

    assert (part.text, part.key, part.count) == ("Lunch with Noor.", "1" * 32, 1)


def test_a_long_answer_is_split_into_delivery_parts_with_their_own_keys() -> None:
    parts = split_envelope(make_envelope("Words and words. " * 1_000), LIKE_TELEGRAM)

    assert len(parts) > 3
    assert [each.key for each in parts] == [f"{'1' * 32}/{index}" for index in range(len(parts))]
    assert all(measure_length(each.text, LengthUnit.UTF16) <= 4096 for each in parts)


@given(
    st.text(max_size=3_000),
    st.sampled_from([LIKE_TELEGRAM, LIKE_IRC, ConnectorCapabilities()]),
    st.sampled_from(StreamMode),
)
def test_no_part_of_a_split_answer_exceeds_the_limits_of_the_platform(
    text: str, capabilities: ConnectorCapabilities, stream: StreamMode
) -> None:
    parts = split_envelope(make_envelope(text), capabilities, ReplyDelivery(stream=stream))

    assert 0 < len(parts) <= PARTS_MAX
    assert all(each.text and measure_length(each.text, capabilities.unit) <= capabilities.text_max for each in parts)
    assert capabilities.can_break_lines or not any("\n" in each.text or "\r" in each.text for each in parts)


def test_a_split_answer_has_its_pictures_first_and_text_too_long_for_a_caption_after_them() -> None:
    parts = split_envelope(make_envelope("w" * 1025, files=tuple(make_picture(n) for n in range(12))), LIKE_TELEGRAM)

    assert [(len(each.files), len(each.text)) for each in parts] == [(10, 0), (2, 0), (0, 1025)]


def test_the_text_of_a_delivery_part_becomes_the_caption_of_its_first_file_if_it_fits() -> None:
    [part] = split_envelope(make_envelope("w" * 1024, files=(make_picture(1),)), LIKE_TELEGRAM)

    assert (len(part.files), len(part.text)) == (1, 1024)


def test_pictures_and_documents_of_an_answer_are_split_into_separate_delivery_parts() -> None:
    files = (make_picture(1), make_picture(2, media_type="video/mp4"), make_picture(3, media_type="application/pdf"))

    assert [len(each.files) for each in split_envelope(make_envelope("here", files=files), LIKE_TELEGRAM)] == [2, 1]


def test_a_delivery_part_names_an_attachment_that_the_platform_does_not_accept() -> None:
    huge = make_picture(1, size_bytes=60_000_000)

    assert [each.text for each in split_envelope(make_envelope("See.", files=(huge,)), LIKE_TELEGRAM)] == [
        "See.\n[not sent: 1.png, 60.0 MB: the limit of this platform is 50.0 MB]"
    ]
    assert [each.text for each in split_envelope(make_envelope("See.", files=(huge,)), LIKE_IRC)] == [
        "See.",
        "[not sent: 1.png, 60.0 MB: this platform accepts no files]",
    ]


@pytest.mark.spec("C82")
def test_reply_tags_are_removed_for_delivery_and_set_the_quoted_message() -> None:
    assert parse_reply_tags("[[reply_to_current]] Yes.").text.strip() == "Yes."
    assert parse_reply_tags("[[reply_to_current]] Yes.").reply_to == "current"
    assert parse_reply_tags("Yes. [[reply_to: 17 ]]").reply_to == "17"
    assert parse_reply_tags("Yes. [[reply_to: 17 ]]").text == "Yes."
    assert parse_reply_tags("[[audio_as_voice]]hm").text == "hm"
    assert parse_reply_tags("a [[wiki link]] stays").text == "a [[wiki link]] stays"


@pytest.mark.spec("C82")
def test_the_delivery_split_removes_reply_tags_from_answers_and_not_from_notices() -> None:
    [agent_part] = split_envelope(make_envelope("[[reply_to_current]]\nYes."), LIKE_TELEGRAM)
    [server] = split_envelope(make_envelope("[[reply_to_current]]", kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM)

    assert (agent_part.text, server.text) == ("Yes.", "[[reply_to_current]]")


@pytest.mark.spec("H19")
def test_only_the_first_part_of_a_split_answer_quotes_unless_quoting_is_set_to_all() -> None:
    text, setting = "Words and words. " * 600, DeliveryContext(quote="17")

    assert [each.quoted_message_id for each in split_envelope(make_envelope(text), LIKE_TELEGRAM, context=setting)] == [
        "17",
        "",
        "",
    ]
    every = split_envelope(make_envelope(text), LIKE_TELEGRAM, ReplyDelivery(quoting=QuoteMode.ALL), setting)
    assert {each.quoted_message_id for each in every} == {"17"}
    assert {
        each.quoted_message_id
        for each in split_envelope(make_envelope(text), LIKE_TELEGRAM, ReplyDelivery(quoting=QuoteMode.OFF), setting)
    } == {""}
    assert {each.quoted_message_id for each in split_envelope(make_envelope(text), LIKE_IRC, context=setting)} == {""}


@pytest.mark.spec("C82")
def test_the_prefix_of_a_delivered_answer_replaces_known_variables_and_keeps_unknown_variables() -> None:
    words = ReplyDelivery(prefix="[{identity.name} on {model} {nothing}]")
    known = DeliveryContext(known={"identity.name": "Ada", "model": "smollm"})

    [part] = split_envelope(make_envelope("Yes."), LIKE_TELEGRAM, words, known)
    [notice] = split_envelope(make_envelope("It failed.", kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM, words, known)

    assert part.text == "[Ada on smollm {nothing}] Yes."
    assert notice.text == "It failed."


def test_a_split_approval_question_has_buttons_on_its_last_delivery_part() -> None:
    question = make_envelope(
        "May I?\n/allow aaaaaaaa session" + " words" * 1000, kind=EnvelopeKind.APPROVAL, approval="a" * 32
    )

    parts = split_envelope(question, LIKE_TELEGRAM)

    assert [bool(each.buttons) for each in parts] == [False, True]
    assert [button.data for row in parts[-1].buttons for button in row] == [
        f"allow:{question.id}",
        f"deny:{question.id}",
        f"session:{question.id}",
    ]


def test_an_approval_question_delivered_without_buttons_lists_numbered_answers() -> None:
    text = "May I?\n/allow aaaaaaaa session, or /allow aaaaaaaa always"
    question = make_envelope(text, kind=EnvelopeKind.APPROVAL, approval="a" * 32)

    [part] = split_envelope(question, replace(LIKE_TELEGRAM, can_show_buttons=False))

    numbers = "1: Allow, 2: Deny, 3: Allow: session, 4: Allow: always"
    assert (part.buttons, part.text) == ((), f"{text}\nOr answer with a number. {numbers}")


@pytest.mark.spec("C97")
def test_the_delivery_split_removes_speech_tags_from_the_text_if_nothing_is_spoken() -> None:
    tagged = "[[tts:voice=nova]]Good morning.[[tts:text]]Morning![[/tts:text]]"
    [part] = split_envelope(make_envelope(tagged), LIKE_TELEGRAM)
    assert part.text == "Good morning."


@pytest.mark.spec("C81")
def test_block_streaming_splits_answers_of_agents_into_short_delivery_parts_and_not_notices() -> None:
    text = " ".join(f"Sentence {n} is here." for n in range(150))
    words = ReplyDelivery(stream=StreamMode.BLOCKS, block_min=200, block_max=400)

    agent_part = split_envelope(make_envelope(text), LIKE_TELEGRAM, words)

    assert all(200 <= len(each.text) <= 400 for each in agent_part[:-1])
    assert len(split_envelope(make_envelope(text, kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM, words)) == 1


@pytest.mark.spec("C80")
def test_newline_chunk_mode_limits_the_number_of_delivery_parts() -> None:
    words = ReplyDelivery(chunk_mode=ChunkMode.NEWLINE)

    assert len(split_envelope(make_envelope("One.\n\nTwo."), LIKE_TELEGRAM, words)) == 2
    assert len(split_envelope(make_envelope("One.\n\n" * 1_000), LIKE_TELEGRAM, words)) == 2


def test_text_beyond_the_maximum_number_of_delivery_parts_is_truncated_with_a_note() -> None:
    parts = split_envelope(make_envelope("word " * 20_000), LIKE_IRC)

    assert len(parts) == PARTS_MAX
    assert "more characters, which exceed the limit of this platform" in parts[-1].text
