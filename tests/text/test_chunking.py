"""Splitting of long texts: no chunk is too long, nothing is lost, and no unit is split."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.delivery_part import LengthUnit
from retinue.domain.reply_delivery import BlockBreak, ChunkMode
from retinue.text.chunking import measure_length, split_text, truncate_text

PIECES = st.sampled_from(
    ["a", "word", " ", "  ", "\n", "\n\n", "\n \n", ". ", "! ", "é", "ö", "e\u0301", "🦊", "👩\u200d👩\u200d👧", "🇩🇪",
     "👍🏽", "&amp;", "&#128512;", "日本。", "\t", "`", "*", "\r\n", "long" * 9]
)  # fmt: skip
texts = st.lists(PIECES, max_size=120).map("".join)
code = st.lists(st.sampled_from(["x = 1", "    y()", "", "z" * 50, "🦊 = 2"]), min_size=1, max_size=12).map("\n".join)
documents = st.lists(
    st.one_of(
        st.lists(st.sampled_from(["word", "Words.", "more"]), min_size=1, max_size=30).map(" ".join),
        st.tuples(st.sampled_from(["```", "```python", "~~~", "````md"]), code).map(
            lambda made: f"{made[0]}\n{made[1]}\n{made[0].rstrip('pythonmd')}"
        ),
    ),
    min_size=1,
    max_size=8,
).map("\n\n".join)
units = st.sampled_from(LengthUnit)
modes = st.sampled_from(ChunkMode)


def without_whitespace(text: str) -> str:
    return re.sub(r"\s", "", text)


def is_balanced(piece: str) -> bool:
    opened = ""
    for line in piece.split("\n"):
        marks = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if marks is None:
            continue
        if not opened:
            opened = marks[1]
        elif marks[1][0] == opened[0] and len(marks[1]) >= len(opened):
            opened = ""
    return not opened


@pytest.mark.spec("C80")
@given(texts, st.integers(24, 80), units, modes)
def test_chunks_never_exceed_the_limit_and_lose_no_text(
    text: str, limit: int, unit: LengthUnit, mode: ChunkMode
) -> None:
    pieces = split_text(text, limit, unit=unit, mode=mode)

    assert all(0 < measure_length(piece, unit) <= limit for piece in pieces)
    assert without_whitespace("".join(pieces)) == without_whitespace(text)
    assert all(piece.strip() for piece in pieces)


@pytest.mark.spec("C80")
@given(texts, st.integers(40, 120), units)
def test_a_chunk_never_splits_a_character_from_its_marks_or_a_surrogate_pair(
    text: str, limit: int, unit: LengthUnit
) -> None:
    for piece in split_text(text, limit, unit=unit):
        assert unicodedata.category(piece[0]) not in ("Mn", "Me", "Mc")
        assert piece[0] != "\u200d"
        assert piece[-1] != "\u200d"
        assert not "\U0001f3fb" <= piece[0] <= "\U0001f3ff"
        assert len(re.findall("[\U0001f1e6-\U0001f1ff]", piece)) % 2 == 0
        assert piece.encode("utf-16").decode("utf-16") == piece


@pytest.mark.spec("C80")
@given(st.lists(st.sampled_from(["&amp;", "&lt;", "&#128512;", "x"]), min_size=1).map("".join), st.integers(24, 60))
def test_a_chunk_never_splits_an_html_entity(text: str, limit: int) -> None:
    for piece in split_text(text, limit):
        assert re.fullmatch(r"(?:&\w+;|&#\d+;|x)+", piece)


@pytest.mark.spec("C80")
@given(documents, st.integers(80, 200), units, modes)
def test_code_in_chunks_stays_inside_balanced_fences(text: str, limit: int, unit: LengthUnit, mode: ChunkMode) -> None:
    pieces = split_text(text, limit, unit=unit, mode=mode)

    assert all(measure_length(piece, unit) <= limit for piece in pieces)
    assert all(is_balanced(piece) for piece in pieces)
    bare = re.compile(r"^ {0,3}(`{3,}|~{3,}).*$", re.MULTILINE)
    assert without_whitespace(bare.sub("", "\n".join(pieces))) == without_whitespace(bare.sub("", text))


@pytest.mark.spec("C80")
def test_a_code_block_split_into_chunks_is_reopened_with_its_language() -> None:
    lines = "\n".join(f"line_{n} = {n}" for n in range(30))

    pieces = split_text(f"Look:\n\n```python\n{lines}\n```\n\nThat is all.", 200)

    assert len(pieces) > 2
    assert all(piece.count("```") == 2 and "```python\n" in piece for piece in pieces[1:-1])
    assert pieces[-1].endswith("That is all.")
    kept = [line for piece in pieces for line in piece.split("\n") if line.startswith("line_")]
    assert kept == lines.split("\n")


@pytest.mark.spec("C80")
def test_text_is_split_into_chunks_at_paragraphs_then_lines_then_sentences_then_words() -> None:
    assert split_text("one two three four.\n\nfive six", 26) == ["one two three four.", "five six"]
    assert split_text("one two three four\nfive six seven", 26) == ["one two three four", "five six seven"]
    assert split_text("one two three. Four five six seven", 26) == ["one two three.", "Four five six seven"]
    assert split_text("one two three four five six seven", 26) == ["one two three four five", "six seven"]
    assert split_text("x" * 30, 26) == ["x" * 26, "x" * 4]


@pytest.mark.spec("C80")
def test_newline_mode_makes_one_chunk_per_paragraph_or_code_block() -> None:
    text = "One.\n\nTwo\ngoes on.\n\n\n```\na\n\nb\n```\n\nThree."

    assert split_text(text, 100, mode=ChunkMode.NEWLINE) == ["One.", "Two\ngoes on.", "```\na\n\nb\n```", "Three."]
    assert split_text(text, 100) == [text]


@pytest.mark.spec("C80")
def test_an_emoji_counts_as_two_utf16_units_and_four_bytes_in_the_length_of_a_chunk() -> None:
    foxes = "🦊" * 20

    assert [len(piece) for piece in split_text(foxes, 20)] == [20]
    assert [len(piece) for piece in split_text(foxes, 20, unit=LengthUnit.UTF16)] == [10, 10]
    assert [len(piece) for piece in split_text(foxes, 20, unit=LengthUnit.BYTES)] == [5, 5, 5, 5]


def test_list_items_split_into_chunks_keep_their_indentation() -> None:
    assert split_text("- one and some\n- two and\n    - below", 26) == ["- one and some\n- two and", "    - below"]


def test_stream_chunks_stay_between_minimum_and_maximum_length_and_end_at_sentences() -> None:
    text = " ".join(f"Sentence number {n} of them." for n in range(200))

    pieces = split_text(text, 1200, min_length=800, preferred_break=BlockBreak.SENTENCE)

    assert all(800 <= len(piece) <= 1200 and piece.endswith(".") for piece in pieces[:-1])


@given(texts, st.integers(8, 40), units)
def test_truncated_text_fits_the_chunk_limit_and_ends_with_an_ellipsis(text: str, limit: int, unit: LengthUnit) -> None:
    short = truncate_text(text, limit, unit=unit)

    assert measure_length(short, unit) <= limit
    assert short == text or short.endswith("…")


def test_a_hostile_text_is_split_into_chunks_within_the_limit() -> None:
    for text in (
        "```" * 60_000,
        "&" * 200_000,
        "\n " * 100_000 + "x",
        "\u0301" * 100_000,
        "🇩" * 60_000,
        ". " * 100_000,
    ):
        assert all(len(piece) <= 4096 for piece in split_text(text, 4096))
