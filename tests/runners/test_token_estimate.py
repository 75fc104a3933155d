"""The size of a context: the provider's count, and an estimate of the rest."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import (
    histories,
    make_call_reply,
    make_records,
    make_reply,
    record,
    result,
    texts,
    user,
    with_summary,
)

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


def test_four_ascii_characters_are_estimated_as_one_token() -> None:
    assert tokens_of_text("") == 0
    assert tokens_of_text("abcd" * 100) == 100
    assert tokens_of_text("abcde") == 2


def test_the_token_estimate_of_characters_of_other_scripts_depends_on_their_bytes() -> None:
    assert tokens_of_text("漢" * 300) == 300
    assert tokens_of_text("я" * 300) == 200
    assert tokens_of_text("abcd" * 100 + "漢" * 30) == 130


@pytest.mark.spec("D22")
def test_an_attached_image_has_a_constant_token_estimate_for_any_size() -> None:
    small = UserTurn(text="look", attachments=(image(10),))
    large = UserTurn(text="look", attachments=(image(10_000_000),))
    assert estimate_tokens(make_records(small)) == estimate_tokens(make_records(large)) == 1 + IMAGE_CHARS // 4


@pytest.mark.spec("D22")
@given(
    texts(), st.integers(100, 5_000), st.sampled_from(["data:image/png;base64,", "data:image/jpeg;name=a.jpg;base64,"])
)
def test_an_inline_image_has_a_constant_token_estimate_within_any_text(text: str, size: int, head: str) -> None:
    inline = head + base64.b64encode(b"x" * size).decode()
    assert replace_images(f"{text} {inline} after") == f"{text} <image> after"
    assert contains_image(f"{text} {inline}")
    without = weight_of_record(record(1, user(f"{text}  after")))
    weight = weight_of_record(record(1, user(f"{text} {inline} after")))
    assert weight.twelfths - without.twelfths == IMAGE_CHARS * 3
    assert weight.chars - without.chars == len("<image>")


def test_the_token_estimate_detects_bare_base64_of_an_image_and_not_a_long_word() -> None:
    assert replace_images(f'{{"data":"{PNG}"}}') == '{"data":"<image>"}'
    assert not contains_image("x" * 100_000)
    assert not contains_image("the folder /9j/ is empty")
    assert tokens_of_text("x" * 100_000) == 25_000


def test_tokens_counted_by_the_provider_are_used_and_only_newer_records_are_estimated() -> None:
    records = make_records(user("long " * 1000), make_reply("counted", tokens=5_000), user("abcd" * 10))
    assert estimate_tokens(records, instructions="x" * 40_000) == 5_010


def test_the_token_estimate_counts_cached_tokens_once() -> None:
    usage = Usage(input_tokens=5_000, output_tokens=100, cache_read_tokens=4_900, cache_write_tokens=50)
    assert estimate_tokens(make_records(user(), Reply(text="k", usage=usage))) == 5_100


def test_the_token_estimate_uses_the_newest_provider_count() -> None:
    records = make_records(user(), make_reply("a", tokens=9_000), user(), make_reply("b", tokens=500), user("abcd"))
    assert estimate_tokens(records) == 501


def test_the_token_estimate_does_not_use_a_provider_count_that_is_only_estimated() -> None:
    records = make_records(user("abcd" * 10), make_reply("abcd" * 10, tokens=9_000, estimated=True))
    assert estimate_tokens(records) == 20


def test_the_token_estimate_does_not_use_a_provider_count_from_before_the_newest_summary() -> None:
    """It counted the old context, so each compaction would be followed by another."""
    records = make_records(user("x" * 400), make_reply("x" * 400, tokens=150_000), user("y" * 400))
    records = arrange_records(with_summary(records, "z" * 400, kept_from=2))
    assert estimate_tokens(records, instructions="i" * 40) == 310
    records.append(record(5, make_reply("new", tokens=700)))
    assert estimate_tokens(records, instructions="i" * 40) == 700


def test_without_a_provider_count_the_token_estimate_includes_instructions_and_tools() -> None:
    records = make_records(user("abcd" * 10))
    plain = estimate_tokens(records)
    assert estimate_tokens(records, instructions="abcd" * 5) == plain + 5
    assert estimate_tokens(records, tools=[TOOL]) > plain


@pytest.mark.spec("D81")
def test_the_token_estimate_of_records_counts_only_the_characters_of_records() -> None:
    records = make_records(
        user("a" * 400),
        replace(make_call_reply("1", tool="read", arguments={"path": "b"}), thinking="c" * 4_000),
        result("1", "漢" * 400),
        make_reply("d" * 400, tokens=90_000),
    )
    called = len('read{"path":"b"}')
    assert estimate_records_tokens(records) == -(-(400 + called + 400 + 400) // 4)


@pytest.mark.spec("D81", "D22")
def test_the_token_estimate_of_records_counts_an_image_as_its_placeholder_word() -> None:
    assert estimate_records_tokens(make_records(user("data:image/png;base64," + "A" * 800_000))) == 2
    assert estimate_records_tokens(make_records(user(PNG))) == 2
    assert estimate_records_tokens(make_records(UserTurn(text="", attachments=(image(10_000_000),)))) == 2


def test_the_size_estimate_counts_all_bytes_of_text_and_a_maximum_for_an_image() -> None:
    assert estimate_size_bytes(make_records(user("漢" * 100))) == 300
    assert estimate_size_bytes(make_records(user(PNG))) == len(PNG)
    assert estimate_size_bytes(make_records(UserTurn(text="", attachments=(image(10_000_000),)))) == IMAGE_BYTES
    sealed = Reply(text="", pieces=(ReplyPiece(kind=ReplyPieceKind.THINKING, seal="x" * 900),))
    assert estimate_size_bytes(make_records(sealed), instructions="i" * 10) == 910


def test_the_token_estimate_of_a_result_counts_only_its_sent_length() -> None:
    long = record(1, result("1", "x" * 100_000))
    assert weight_of_record(long, result_chars_max=4_000).tokens == 1_000
    assert weight_of_record(long, result_chars_max=4_000).chars == 100_000


def test_the_token_estimate_detects_a_memory_flush_until_the_next_summary() -> None:
    flush = Note(text=f"{FLUSH_HEAD} write")
    records = make_records(user(), flush, make_reply("k"), user())
    assert ContextMeter().measure(records).is_flushed
    assert not ContextMeter().measure(make_records(user(f"{FLUSH_HEAD} says a sender"))).is_flushed
    assert not ContextMeter().measure(arrange_records(with_summary(records, "s", kept_from=1))).is_flushed


@given(histories(), st.data())
def test_a_reused_context_meter_gives_the_same_token_estimate_as_a_new_meter(
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
            assert measured.base_growth_bytes <= fresh.base_growth_bytes, "a new meter does not know the earlier size"
    cut = arrange_records(with_summary(records, "in short", records[len(records) // 2].seq))
    assert meter.measure(cut, tools=[TOOL]) == ContextMeter().measure(cut, tools=[TOOL])
    assert meter.measure(records, result_chars_max=2_000) == ContextMeter().measure(records, result_chars_max=2_000)


def test_a_context_meter_makes_the_token_estimate_of_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed_seqs: list[int] = []

    def count_and_weigh(item: Record, *, result_chars_max: int | None = None) -> object:
        weighed_seqs.append(item.seq)
        return weight_of_record(item, result_chars_max=result_chars_max)

    monkeypatch.setattr("retinue.runners.token_estimate.weight_of_record", count_and_weigh)
    meter = ContextMeter()
    records = make_records(*[user("é") for _ in range(50)])
    meter.measure(records)
    weighed_seqs.clear()
    records.append(record(51, user("é")))
    meter.measure(records)
    assert weighed_seqs == [51]


# Input bounds for money


def input_bound(meter: ContextMeter, records: list[Record], ref: ModelRef, **head: Any) -> int:
    return input_tokens_bound(meter.measure(records, **head), ModelFacts(ref=ref))


ONE_MODEL, OTHER_MODEL = ModelRef("acme", "one"), ModelRef("acme", "other")
COUNTED_REPLY = Reply(text="Yes.", model=str(ONE_MODEL), usage=Usage(input_tokens=100, output_tokens=5))


def test_a_token_count_of_one_model_does_not_limit_the_input_token_bound_of_another_model() -> None:
    """Another model has other tokens, and sees images and tools that this one did not."""
    records = make_records(UserTurn(text="x" * 10_000), COUNTED_REPLY, UserTurn(text="go on"))
    assert input_bound(ContextMeter(), records, ONE_MODEL) < 200
    assert input_bound(ContextMeter(), records, OTHER_MODEL) > 5_000


def test_the_input_token_bound_includes_instructions_and_tools_that_grew_since_the_last_count() -> None:
    meter = ContextMeter()
    before = make_records(UserTurn(text="hi"))
    input_bound(meter, before, ONE_MODEL, instructions="short")
    after = [*before, make_records(UserTurn(text="hi"), COUNTED_REPLY)[1]]
    same = input_bound(meter, after, ONE_MODEL, instructions="short")
    assert input_bound(meter, after, ONE_MODEL, instructions="long " * 10_000) >= same + 24_000
    many = [replace(TOOL, name=f"read-{n}", description="x" * 1_000) for n in range(50)]
    assert input_bound(meter, after, ONE_MODEL, instructions="short", tools=many) >= same + 25_000
    assert input_bound(ContextMeter(), after, ONE_MODEL, instructions="long " * 10_000) >= 25_000, (
        "after a restart the counted instructions are unknown"
    )


def test_the_input_token_bound_of_a_pdf_is_its_size_up_to_a_context_window() -> None:
    def input_bound_with_pdf(size: int) -> int:
        pdf = Attachment(hash="h", name="a.pdf", media_type="application/pdf", size_bytes=size)
        return input_bound(ContextMeter(), make_records(UserTurn(text="read", attachments=(pdf,))), ONE_MODEL)

    assert input_bound_with_pdf(60_000) >= 60_000
    assert 200_000 <= input_bound_with_pdf(9_000_000) <= 201_000
