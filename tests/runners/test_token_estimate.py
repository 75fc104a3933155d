"""How large a context is: what a provider has counted, and an estimate of the rest."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import asks, histories, record, result, says, texts, told, user, with_summary

from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.record import Note, Record, Reply, ReplyPiece, ReplyPieceKind, Usage, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.runners.model_context import FLUSH_HEAD, arrange_records
from retinue.runners.run_state import input_tokens_bound
from retinue.runners.token_estimate import (
    IMAGE_BYTES,
    IMAGE_CHARS,
    ContextMeter,
    contains_image,
    estimate_records_tokens,
    estimate_size_bytes,
    estimate_tokens,
    replace_images,
    tokens_of_text,
    weight_of_record,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20).decode()
TOOL = ToolSpec(name="read", description="Read a file.", parameters={"type": "object"})


def image(size: int) -> Attachment:
    return Attachment(hash="h", name="cat.png", media_type="image/png", size_bytes=size)


def test_four_plain_characters_are_a_token() -> None:
    assert tokens_of_text("") == 0
    assert tokens_of_text("abcd" * 100) == 100
    assert tokens_of_text("abcde") == 2


def test_other_scripts_weigh_more_by_their_bytes() -> None:
    assert tokens_of_text("漢" * 300) == 300
    assert tokens_of_text("я" * 300) == 200
    assert tokens_of_text("abcd" * 100 + "漢" * 30) == 130


@pytest.mark.spec("D22")
def test_an_image_is_a_constant_whatever_it_weighs() -> None:
    small = UserTurn(text="look", attachments=(image(10),))
    large = UserTurn(text="look", attachments=(image(10_000_000),))
    assert estimate_tokens(told(small)) == estimate_tokens(told(large)) == 1 + IMAGE_CHARS // 4


@pytest.mark.spec("D22")
@given(
    texts(), st.integers(100, 5_000), st.sampled_from(["data:image/png;base64,", "data:image/jpeg;name=a.jpg;base64,"])
)
def test_an_inline_image_is_a_constant_in_the_middle_of_any_text(text: str, size: int, head: str) -> None:
    inline = head + base64.b64encode(b"x" * size).decode()
    assert replace_images(f"{text} {inline} after") == f"{text} <image> after"
    assert contains_image(f"{text} {inline}")
    without = weight_of_record(record(1, user(f"{text}  after")))
    weight = weight_of_record(record(1, user(f"{text} {inline} after")))
    assert weight.twelfths - without.twelfths == IMAGE_CHARS * 3
    assert weight.chars - without.chars == len("<image>")


def test_bare_base64_of_an_image_is_one_and_a_long_word_is_not() -> None:
    assert replace_images(f'{{"data":"{PNG}"}}') == '{"data":"<image>"}'
    assert not contains_image("x" * 100_000)
    assert not contains_image("the folder /9j/ is empty")
    assert tokens_of_text("x" * 100_000) == 25_000


def test_what_a_provider_counted_is_believed_and_only_the_rest_is_estimated() -> None:
    records = told(user("long " * 1000), says("counted", tokens=5_000), user("abcd" * 10))
    assert estimate_tokens(records, instructions="x" * 40_000) == 5_010


def test_cached_tokens_are_counted_once() -> None:
    usage = Usage(input_tokens=5_000, output_tokens=100, cache_read_tokens=4_900, cache_write_tokens=50)
    assert estimate_tokens(told(user(), Reply(text="k", usage=usage))) == 5_100


def test_the_newest_count_is_the_one_that_is_believed() -> None:
    records = told(user(), says("a", tokens=9_000), user(), says("b", tokens=500), user("abcd"))
    assert estimate_tokens(records) == 501


def test_a_count_that_is_only_our_own_estimate_is_not_believed() -> None:
    records = told(user("abcd" * 10), says("abcd" * 10, tokens=9_000, estimated=True))
    assert estimate_tokens(records) == 20


def test_a_count_from_before_the_newest_summary_is_not_believed() -> None:
    """It counted the context as it was: believed, it would have every compaction followed by another."""
    records = told(user("x" * 400), says("x" * 400, tokens=150_000), user("y" * 400))
    records = arrange_records(with_summary(records, "z" * 400, kept_from=2))
    assert estimate_tokens(records, instructions="i" * 40) == 310
    records.append(record(5, says("new", tokens=700)))
    assert estimate_tokens(records, instructions="i" * 40) == 700


def test_without_a_count_instructions_and_tools_are_estimated_too() -> None:
    records = told(user("abcd" * 10))
    plain = estimate_tokens(records)
    assert estimate_tokens(records, instructions="abcd" * 5) == plain + 5
    assert estimate_tokens(records, tools=[TOOL]) > plain


@pytest.mark.spec("D81")
def test_the_emergency_limit_counts_characters_of_records_and_nothing_else() -> None:
    records = told(
        user("a" * 400),
        replace(asks("1", tool="read", arguments={"path": "b"}), thinking="c" * 4_000),
        result("1", "漢" * 400),
        says("d" * 400, tokens=90_000),
    )
    called = len('read{"path":"b"}')
    assert estimate_records_tokens(records) == -(-(400 + called + 400 + 400) // 4)


@pytest.mark.spec("D81", "D22")
def test_the_emergency_limit_counts_an_inline_image_as_the_word_for_it() -> None:
    assert estimate_records_tokens(told(user("data:image/png;base64," + "A" * 800_000))) == 2
    assert estimate_records_tokens(told(user(PNG))) == 2
    assert estimate_records_tokens(told(UserTurn(text="", attachments=(image(10_000_000),)))) == 2


def test_the_bound_on_money_counts_every_byte_of_text_and_a_bound_for_an_image() -> None:
    assert estimate_size_bytes(told(user("漢" * 100))) == 300
    assert estimate_size_bytes(told(user(PNG))) == len(PNG)
    assert estimate_size_bytes(told(UserTurn(text="", attachments=(image(10_000_000),)))) == IMAGE_BYTES
    sealed = Reply(text="", pieces=(ReplyPiece(kind=ReplyPieceKind.THINKING, seal="x" * 900),))
    assert estimate_size_bytes(told(sealed), instructions="i" * 10) == 910


def test_of_a_result_no_more_is_estimated_than_is_sent() -> None:
    long = record(1, result("1", "x" * 100_000))
    assert weight_of_record(long, result_chars_max=4_000).tokens == 1_000
    assert weight_of_record(long, result_chars_max=4_000).chars == 100_000


def test_a_flush_is_seen_until_the_next_summary() -> None:
    flush = Note(text=f"{FLUSH_HEAD} write")
    records = told(user(), flush, says("k"), user())
    assert ContextMeter().measure(records).is_flushed
    assert not ContextMeter().measure(told(user(f"{FLUSH_HEAD} says a sender"))).is_flushed
    assert not ContextMeter().measure(arrange_records(with_summary(records, "s", kept_from=1))).is_flushed


@given(histories(), st.data())
def test_a_meter_that_grew_with_a_context_measures_what_a_new_one_does(
    records: list[Record], data: st.DataObject
) -> None:
    meter = ContextMeter()
    grown: list[Record] = []
    for item in records:
        grown.append(item)
        if data.draw(st.booleans()):
            measured = meter.measure(grown, instructions="i")
            fresh = ContextMeter().measure(grown, instructions="i")
            assert measured == replace(fresh, base_growth_bytes=measured.base_growth_bytes)
            assert measured.base_growth_bytes <= fresh.base_growth_bytes, (
                "a new one does not know what was there before"
            )
    cut = arrange_records(with_summary(records, "in short", records[len(records) // 2].seq))
    assert meter.measure(cut, tools=[TOOL]) == ContextMeter().measure(cut, tools=[TOOL])
    assert meter.measure(records, result_chars_max=2_000) == ContextMeter().measure(records, result_chars_max=2_000)


def test_what_was_weighed_is_not_weighed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[int] = []

    def counting(item: Record, *, result_chars_max: int | None = None) -> object:
        weighed.append(item.seq)
        return weight_of_record(item, result_chars_max=result_chars_max)

    monkeypatch.setattr("retinue.runners.token_estimate.weight_of_record", counting)
    meter = ContextMeter()
    records = told(*[user("é") for _ in range(50)])
    meter.measure(records)
    weighed.clear()
    records.append(record(51, user("é")))
    meter.measure(records)
    assert weighed == [51]


# A bound on money


def bound(meter: ContextMeter, records: list[Record], ref: ModelRef, **head: Any) -> int:
    return input_tokens_bound(meter.measure(records, **head), ModelFacts(ref=ref))


ONE, OTHER = ModelRef("acme", "one"), ModelRef("acme", "other")
COUNTED = Reply(text="Yes.", model=str(ONE), usage=Usage(input_tokens=100, output_tokens=5))


def test_what_one_model_has_counted_bounds_nothing_for_another() -> None:
    """Another reads the same words in other tokens, and sees images and tools that this one did not."""
    records = told(UserTurn(text="x" * 10_000), COUNTED, UserTurn(text="go on"))
    assert bound(ContextMeter(), records, ONE) < 200
    assert bound(ContextMeter(), records, OTHER) > 5_000


def test_instructions_and_tools_that_grew_since_are_in_the_bound() -> None:
    meter = ContextMeter()
    before = told(UserTurn(text="hi"))
    bound(meter, before, ONE, instructions="short")
    after = [*before, told(UserTurn(text="hi"), COUNTED)[1]]
    same = bound(meter, after, ONE, instructions="short")
    assert bound(meter, after, ONE, instructions="long " * 10_000) >= same + 24_000
    many = [replace(TOOL, name=f"read-{n}", description="x" * 1_000) for n in range(50)]
    assert bound(meter, after, ONE, instructions="short", tools=many) >= same + 25_000
    assert bound(ContextMeter(), after, ONE, instructions="long " * 10_000) >= 25_000, "after a restart nobody knows"


def test_a_pdf_is_bounded_by_its_pages_and_never_by_more_than_a_window() -> None:
    def weighs(size: int) -> int:
        pdf = Attachment(hash="h", name="a.pdf", media_type="application/pdf", size_bytes=size)
        return bound(ContextMeter(), told(UserTurn(text="read", attachments=(pdf,))), ONE)

    assert weighs(60_000) >= 60_000
    assert 200_000 <= weighs(9_000_000) <= 201_000
