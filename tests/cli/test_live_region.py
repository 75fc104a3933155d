"""The last rows of a terminal: whatever is painted over whatever, it ends up as if it had been written once."""

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
        ("0123456789", 10, [0]),  # full, but the next row begins only with one more character
        ("0123456789a", 10, [0, 10]),
        ("a\nb", 10, [0, 2]),
        ("\n\n", 10, [0, 1, 2]),
        ("0123456789\nb", 10, [0, 11]),
        ("0123456789a\n" + "b" * 21, 10, [0, 10, 12, 22, 32]),
        ("日本語", 4, [0, 2]),
        ("a日本語", 4, [0, 2]),  # the second wide one does not fit into one column
        ("e\u0301" * 5, 5, [0]),  # accents of their own take no room
        ("é" * 6, 5, [0, 5]),
        ("\tab", 10, [0]),
        ("\tabc", 10, [0, 3]),
    ],
)
def test_a_text_is_broken_into_rows_as_a_terminal_does(text: str, columns: int, starts: list[int]) -> None:
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
def test_words_cannot_act_on_a_terminal(hostile: str, shown: str) -> None:
    assert escape_controls(hostile) == shown


@given(st.text("ab"), st.text("ab"))
def test_the_common_beginning_is_found(one: str, other: str) -> None:
    length = common_prefix_length(one, other)

    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]


def test_growing_text_is_written_on_and_nothing_is_erased() -> None:
    region = LiveRegion(use_colors=False)

    written = [region.extend("", "one two three"[:end], columns=5, rows=24) for end in range(1, 14)]

    assert "".join(written) == "one two three"


def test_a_later_attempt_that_says_the_same_leaves_the_screen_alone() -> None:
    region = LiveRegion(use_colors=False)
    region.extend("", "one two three", columns=20, rows=24)

    assert region.extend("", "one", columns=20, rows=24) == ""
    assert region.extend("", "one two three four", columns=20, rows=24) == " four"


def test_a_later_attempt_that_says_otherwise_takes_its_place() -> None:
    screen = Screen(10, 6)
    region = LiveRegion(use_colors=True)
    for text in ("Hello, 日本の皆さん, how are", "Hello", "Hello, 日本 is far away", "Hel"):
        screen.feed(tty(region.extend("", text, columns=10, rows=6)))
    assert screen.lines == ["Hello, 日本 is far away"]

    screen.feed(tty(region.paint("", "Help", "", columns=10, rows=6)))
    screen.feed(tty(region.finish(columns=10, rows=6) + "next"))

    assert screen.lines == ["Help", "next"]


def test_thoughts_are_dim_and_stand_above_the_words() -> None:
    region = LiveRegion(use_colors=True)

    written = region.extend("hm", "", columns=20, rows=24) + region.extend("hm", "yes", columns=20, rows=24)

    assert written == "\x1b[2mhm\x1b[0m\nyes"


def test_what_left_the_screen_is_not_erased_but_said_to_begin_again() -> None:
    screen = Screen(30, 4)
    region = LiveRegion(use_colors=False)
    old = [f"old {n}" for n in range(9)]
    screen.feed(tty(region.extend("", "\n".join(old), columns=30, rows=4)))
    screen.feed(tty(region.paint("", "new", "", columns=30, rows=4)))

    assert screen.lines == [*old, REPEATED_TEXT, "new"]


WORDS = st.text("ab 日é\u0301\n\t", max_size=30)


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), WORDS, WORDS, st.sampled_from(["", "footer", "a footer of two rows"])), max_size=8
    ),
    final=st.tuples(WORDS, WORDS),
    columns=st.integers(4, 20),
)
def test_however_a_text_came_to_be_the_screen_shows_only_its_end(
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
    """As the line discipline passes it on."""
    return text.replace("\n", "\r\n")
