"""What an envelope becomes at the door of a place that can this much and no more."""

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

MOMENT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
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


def letter(
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
        due_at=MOMENT,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=MOMENT,
        claimed_at=MOMENT,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )


def picture(number: int, *, media_type: str = "image/png", size_bytes: int = 1000) -> Attachment:
    return Attachment(hash=f"{number:064x}", name=f"{number}.png", media_type=media_type, size_bytes=size_bytes)


def test_a_short_answer_is_one_parcel_with_the_envelopes_own_key() -> None:
    [parcel] = split_envelope(letter("Lunch with Noor."), LIKE_TELEGRAM)

    assert (parcel.text, parcel.key, parcel.count) == ("Lunch with Noor.", "1" * 32, 1)


def test_a_long_answer_is_as_many_as_it_needs_each_with_a_key_of_its_own() -> None:
    parcels = split_envelope(letter("Words and words. " * 1_000), LIKE_TELEGRAM)

    assert len(parcels) > 3
    assert [each.key for each in parcels] == [f"{'1' * 32}/{index}" for index in range(len(parcels))]
    assert all(measure_length(each.text, LengthUnit.UTF16) <= 4096 for each in parcels)


@given(
    st.text(max_size=3_000),
    st.sampled_from([LIKE_TELEGRAM, LIKE_IRC, ConnectorCapabilities()]),
    st.sampled_from(StreamMode),
)
def test_whatever_it_says_no_place_is_given_more_than_it_takes(
    text: str, able: ConnectorCapabilities, stream: StreamMode
) -> None:
    parcels = split_envelope(letter(text), able, ReplyDelivery(stream=stream))

    assert 0 < len(parcels) <= PARTS_MAX
    assert all(each.text and measure_length(each.text, able.unit) <= able.text_max for each in parcels)
    assert able.can_break_lines or not any("\n" in each.text or "\r" in each.text for each in parcels)


def test_pictures_go_first_in_tens_and_words_that_are_too_long_for_a_caption_after_them() -> None:
    parcels = split_envelope(letter("w" * 1025, files=tuple(picture(n) for n in range(12))), LIKE_TELEGRAM)

    assert [(len(each.files), len(each.text)) for each in parcels] == [(10, 0), (2, 0), (0, 1025)]


def test_words_that_fit_stand_beside_the_first_file() -> None:
    [parcel] = split_envelope(letter("w" * 1024, files=(picture(1),)), LIKE_TELEGRAM)

    assert (len(parcel.files), len(parcel.text)) == (1, 1024)


def test_a_picture_and_a_document_are_not_in_one_album() -> None:
    files = (picture(1), picture(2, media_type="video/mp4"), picture(3, media_type="application/pdf"))

    assert [len(each.files) for each in split_envelope(letter("here", files=files), LIKE_TELEGRAM)] == [2, 1]


def test_a_file_that_the_place_does_not_take_is_named() -> None:
    huge = picture(1, size_bytes=60_000_000)

    assert [each.text for each in split_envelope(letter("See.", files=(huge,)), LIKE_TELEGRAM)] == [
        "See.\n[not sent: 1.png, 60.0 MB: the limit of this platform is 50.0 MB]"
    ]
    assert [each.text for each in split_envelope(letter("See.", files=(huge,)), LIKE_IRC)] == [
        "See.",
        "[not sent: 1.png, 60.0 MB: this platform accepts no files]",
    ]


@pytest.mark.spec("C82")
def test_reply_tags_are_taken_out_and_say_what_is_quoted() -> None:
    assert parse_reply_tags("[[reply_to_current]] Yes.").text.strip() == "Yes."
    assert parse_reply_tags("[[reply_to_current]] Yes.").reply_to == "current"
    assert parse_reply_tags("Yes. [[reply_to: 17 ]]").reply_to == "17"
    assert parse_reply_tags("Yes. [[reply_to: 17 ]]").text == "Yes."
    assert parse_reply_tags("[[audio_as_voice]]hm").text == "hm"
    assert parse_reply_tags("a [[wiki link]] stays").text == "a [[wiki link]] stays"


@pytest.mark.spec("C82")
def test_an_agents_words_lose_their_tags_and_the_houses_do_not() -> None:
    [own] = split_envelope(letter("[[reply_to_current]]\nYes."), LIKE_TELEGRAM)
    [house] = split_envelope(letter("[[reply_to_current]]", kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM)

    assert (own.text, house.text) == ("Yes.", "[[reply_to_current]]")


@pytest.mark.spec("H19")
def test_the_first_parcel_quotes_and_no_other_unless_all_are_to() -> None:
    text, setting = "Words and words. " * 600, DeliveryContext(quote="17")

    assert [each.quoted_message_id for each in split_envelope(letter(text), LIKE_TELEGRAM, context=setting)] == [
        "17",
        "",
        "",
    ]
    every = split_envelope(letter(text), LIKE_TELEGRAM, ReplyDelivery(quoting=QuoteMode.ALL), setting)
    assert {each.quoted_message_id for each in every} == {"17"}
    assert {
        each.quoted_message_id
        for each in split_envelope(letter(text), LIKE_TELEGRAM, ReplyDelivery(quoting=QuoteMode.OFF), setting)
    } == {""}
    assert {each.quoted_message_id for each in split_envelope(letter(text), LIKE_IRC, context=setting)} == {""}


@pytest.mark.spec("C82")
def test_an_answer_bears_the_prefix_with_its_variables_filled_in_and_unknown_ones_as_they_are() -> None:
    words = ReplyDelivery(prefix="[{identity.name} on {model} {nothing}]")
    known = DeliveryContext(known={"identity.name": "Ada", "model": "smollm"})

    [parcel] = split_envelope(letter("Yes."), LIKE_TELEGRAM, words, known)
    [notice] = split_envelope(letter("It failed.", kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM, words, known)

    assert parcel.text == "[Ada on smollm {nothing}] Yes."
    assert notice.text == "It failed."


def test_a_question_has_buttons_below_its_last_part_where_there_are_buttons() -> None:
    question = letter(
        "May I?\n/allow aaaaaaaa session" + " words" * 1000, kind=EnvelopeKind.APPROVAL, approval="a" * 32
    )

    parcels = split_envelope(question, LIKE_TELEGRAM)

    assert [bool(each.buttons) for each in parcels] == [False, True]
    assert [button.data for row in parcels[-1].buttons for button in row] == [
        f"allow:{question.id}",
        f"deny:{question.id}",
        f"session:{question.id}",
    ]


def test_where_there_are_no_buttons_a_question_ends_with_a_number_for_each_answer() -> None:
    text = "May I?\n/allow aaaaaaaa session, or /allow aaaaaaaa always"
    question = letter(text, kind=EnvelopeKind.APPROVAL, approval="a" * 32)

    [parcel] = split_envelope(question, replace(LIKE_TELEGRAM, can_show_buttons=False))

    numbers = "1: Allow, 2: Deny, 3: Allow: session, 4: Allow: always"
    assert (parcel.buttons, parcel.text) == ((), f"{text}\nOr answer with a number. {numbers}")


@pytest.mark.spec("C97")
def test_tags_for_speech_are_shown_to_nobody_also_where_nothing_is_spoken() -> None:
    tagged = "[[tts:voice=nova]]Good morning.[[tts:text]]Morning![[/tts:text]]"
    [parcel] = split_envelope(letter(tagged), LIKE_TELEGRAM)
    assert parcel.text == "Good morning."


@pytest.mark.spec("C81")
def test_blocks_are_short_messages_and_only_for_what_an_agent_says() -> None:
    text = " ".join(f"Sentence {n} is here." for n in range(150))
    words = ReplyDelivery(stream=StreamMode.BLOCKS, block_min=200, block_max=400)

    own = split_envelope(letter(text), LIKE_TELEGRAM, words)

    assert all(200 <= len(each.text) <= 400 for each in own[:-1])
    assert len(split_envelope(letter(text, kind=EnvelopeKind.NOTICE), LIKE_TELEGRAM, words)) == 1


@pytest.mark.spec("C80")
def test_in_paragraph_mode_a_thousand_paragraphs_are_not_a_thousand_messages() -> None:
    words = ReplyDelivery(chunk_mode=ChunkMode.NEWLINE)

    assert len(split_envelope(letter("One.\n\nTwo."), LIKE_TELEGRAM, words)) == 2
    assert len(split_envelope(letter("One.\n\n" * 1_000), LIKE_TELEGRAM, words)) == 2


def test_more_than_anyone_would_read_is_cut_and_says_so() -> None:
    parcels = split_envelope(letter("word " * 20_000), LIKE_IRC)

    assert len(parcels) == PARTS_MAX
    assert "more characters, which exceed the limit of this platform" in parcels[-1].text
