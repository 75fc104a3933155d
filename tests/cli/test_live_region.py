"""The last rows of a terminal: repainting any text over any other gives the same screen as writing it once."""

from __future__ import annotations

import pytest
from cli.emulator import Screen
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.cli.live_region import REPEATED_TEXT, LiveRegion, common_prefix_length, escape_controls, find_row_starts


@pytest.mark.parametrize(
    ("text", "columns", "starts"),
    [
        ("", 10, [0]),
        ("abc", 10, [0]),
        ("0123456789", 10, [0]),  # full, but the next row begins only with the next character
        ("0123456789a", 10, [0, 10]),
        ("a\nb", 10, [0, 2]),
        ("\n\n", 10, [0, 1, 2]),
        ("0123456789\nb", 10, [0, 11]),
        ("0123456789a\n" + "b" * 21, 10, [0, 10, 12, 22, 32]),
        ("日本語", 4, [0, 2]),
        ("a日本語", 4, [0, 2]),  # the second wide character does not fit into one column
        ("e\u0301" * 5, 5, [0]),  # combining accents take no column
        ("é" * 6, 5, [0, 5]),
        ("\tab", 10, [0]),
        ("\tabc", 10, [0, 3]),
    ],
)
def test_the_live_region_wraps_text_into_rows_as_a_terminal_does(text: str, columns: int, starts: list[int]) -> None:
    assert find_row_starts(text, columns) == starts


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", "␛[2J␛]0;owned␇"),
        ("a\rb", "a␍b"),
        ("a\r\nb\tc\n", "a\nb\tc\n"),
        ("\x9b2J\x7f", "\ufffd2J\ufffd"),
        ("rm \u202egnp.x", "rm \ufffdgnp.x"),
        ("Grüße, 日本, 👩\u200d🚀", "Grüße, 日本, 👩\u200d🚀"),
    ],
)
def test_control_characters_are_escaped_in_the_live_region_of_a_terminal(hostile: str, shown: str) -> None:
    assert escape_controls(hostile) == shown


@given(st.text("ab"), st.text("ab"))
def test_the_live_region_finds_the_common_prefix_of_two_texts(one: str, other: str) -> None:
    length = common_prefix_length(one, other)

    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]


def test_the_live_region_appends_growing_text_without_erasing() -> None:
    region = LiveRegion(use_colors=False)

    written = [region.extend("", "one two three"[:end], columns=5, rows=24) for end in range(1, 14)]

    assert "".join(written) == "one two three"


def test_a_later_attempt_with_the_same_text_leaves_the_live_region_unchanged() -> None:
    region = LiveRegion(use_colors=False)
    region.extend("", "one two three", columns=20, rows=24)

    assert region.extend("", "one", columns=20, rows=24) == ""
    assert region.extend("", "one two three four", columns=20, rows=24) == " four"


def test_a_later_attempt_with_another_text_replaces_the_earlier_text_in_the_live_region() -> None:
    screen = Screen(10, 6)
    region = LiveRegion(use_colors=True)
    for text in ("Hello, 日本の皆さん, how are", "Hello", "Hello, 日本 is far away", "Hel"):
        screen.feed(tty(region.extend("", text, columns=10, rows=6)))
    assert screen.lines == ["Hello, 日本 is far away"]

    screen.feed(tty(region.paint("", "Help", "", columns=10, rows=6)))
    screen.feed(tty(region.finish(columns=10, rows=6) + "next"))

    assert screen.lines == ["Help", "next"]


def test_thinking_in_the_live_region_is_dim_and_above_the_text() -> None:
    region = LiveRegion(use_colors=True)

    written = region.extend("hm", "", columns=20, rows=24) + region.extend("hm", "yes", columns=20, rows=24)

    assert written == "\x1b[2mhm\x1b[0m\nyes"


def test_text_that_scrolled_off_the_live_region_is_not_erased_and_its_repetition_is_announced() -> None:
    screen = Screen(30, 4)
    region = LiveRegion(use_colors=False)
    old = [f"old {n}" for n in range(9)]
    screen.feed(tty(region.extend("", "\n".join(old), columns=30, rows=4)))
    screen.feed(tty(region.paint("", "new", "", columns=30, rows=4)))

    assert screen.lines == [*old, REPEATED_TEXT, "new"]


TEXTS = st.text("ab 日é\u0301\n\t", max_size=30)


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), TEXTS, TEXTS, st.sampled_from(["", "footer", "a footer of two rows"])), max_size=8
    ),
    final=st.tuples(TEXTS, TEXTS),
    columns=st.integers(4, 20),
)
def test_the_live_region_shows_only_the_final_text_whatever_was_painted_before(
    steps: list[tuple[bool, str, str, str]], final: tuple[str, str], columns: int
) -> None:
    painted, plain = Screen(columns, 100), Screen(columns, 100)
    region = LiveRegion(use_colors=True)
    for grows, dim, text, footer in steps:
        if grows:
            painted.feed(tty(region.extend(dim, text, columns=columns, rows=100)))
        else:
            painted.feed(tty(region.paint(dim, text, footer, columns=columns, rows=100)))
    painted.feed(tty(region.paint(*final, "", columns=columns, rows=100)))
    painted.feed(tty(region.finish(columns=columns, rows=100) + "end"))

    at_once = LiveRegion(use_colors=False)
    plain.feed(tty(at_once.paint(*final, "", columns=columns, rows=100)))
    plain.feed(tty(at_once.finish(columns=columns, rows=100) + "end"))
    assert painted.lines == plain.lines


def tty(text: str) -> str:
    """Convert newlines as the line discipline of a terminal does."""
    return text.replace("\n", "\r\n")
