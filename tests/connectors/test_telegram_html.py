"""Test converting Markdown to Telegram's HTML: the visible text, and that any input gives well-formed HTML."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connectors.telegram.telegram_html import to_html
from retinue.testing.telegram_html_parser import HtmlParseError, parse_html

MARKDOWN_TEXT = st.text(alphabet="*_~`[]()!<>&\\|#->\n \"'ab1:/.", max_size=80)


def parse_rendered(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the visible text and each formatted part of it."""
    shown, entities = parse_html(to_html(markdown))
    units = shown.encode("utf-16-le")
    return shown, [
        (str(each["type"]), units[2 * each["offset"] : 2 * (each["offset"] + each["length"])].decode("utf-16-le"))  # type: ignore[operator]
        for each in entities
    ]


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("plain", "plain"),
        ("**bold** and __bold__", "<b>bold</b> and <b>bold</b>"),
        ("*thin* and _thin_", "<i>thin</i> and <i>thin</i>"),
        ("***both***", "<b><i>both</i></b>"),
        ("~~gone~~", "<s>gone</s>"),
        ("`a < b`", "<code>a &lt; b</code>"),
        ("`` a`b ``", "<code>a`b</code>"),
        ("[here](https://example.org/a_(b)?c=1&d=2)", '<a href="https://example.org/a_(b)?c=1&amp;d=2">here</a>'),
        ("**[a *b*](https://x.example)**", '<b><a href="https://x.example">a <i>b</i></a></b>'),
        ("# Today", "<b>Today</b>"),
        ("## Today ##", "<b>Today</b>"),
        ("- one\n  * two\n+ three", "• one\n  • two\n• three"),
        ("> said\n> so", "<blockquote>said\nso</blockquote>"),
        ("---", "———"),
        (
            "```python\nif a < b:\n    **go**\n```",
            '<pre><code class="language-python">if a &lt; b:\n    **go**</code></pre>',
        ),
        ("```\nopen to the end", "<pre>open to the end</pre>"),
        ("| a | b |\n|---|---|\n| 1 | long |", "<pre>a | b\n1 | long</pre>"),
        ("two **lines\nlong**", "two <b>lines\nlong</b>"),
        (r"\*not thin\*", "*not thin*"),
    ],
)
def test_markdown_is_converted_to_telegram_html(markdown: str, html: str) -> None:
    assert to_html(markdown) == html
    parse_html(html)


@pytest.mark.parametrize(
    "text",
    [
        "a snake_case_name and 2 * 3 * 4",
        "**never closed",
        "*",
        "a ` tick",
        "[no](javascript:alert)",
        "[no] (https://x.example)",
        "a - b",
        "x > y",
        "https://x.example/_a_/b__c__d",
        "1. first\n2. second",
    ],
)
def test_text_that_only_looks_like_markdown_is_unchanged_in_telegram_html(text: str) -> None:
    assert parse_rendered(text) == (text, [])


def test_overlapping_markdown_does_not_produce_overlapping_telegram_html_tags() -> None:
    assert to_html("**a *b** c*") == "<b>a *b</b> c*"


def test_html_tags_in_the_text_are_escaped_in_telegram_html() -> None:
    assert parse_rendered('<b>no</b> <script>x</script> & &amp; "q"') == (
        '<b>no</b> <script>x</script> & &amp; "q"',
        [],
    )


def test_a_quote_in_a_url_cannot_break_out_of_a_telegram_html_link() -> None:
    shown, entities = parse_html(to_html('[x](https://e.example/"onclick="y)'))

    assert shown == "x"
    assert entities[0]["url"] == 'https://e.example/"onclick="y'


def test_nested_markdown_links_become_one_telegram_html_link() -> None:
    assert to_html("[a [b](https://in.example)](https://out.example)").count("<a ") == 1


@pytest.mark.spec("D58", "C86")
@given(st.one_of(MARKDOWN_TEXT, st.text(max_size=60)))
def test_arbitrary_text_becomes_html_that_telegram_can_parse(text: str) -> None:
    parse_html(to_html(text))


@given(st.text(alphabet="abc \n", max_size=60))
def test_text_without_markdown_is_shown_unchanged_in_telegram_html(text: str) -> None:
    assert parse_rendered(text)[0] == text


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ("<b>a", 'Can\'t find end tag corresponding to start tag "b"'),
        ("a</b>", "Unexpected end tag at byte offset 1"),
        ("é<x>a</x>", 'Unsupported start tag "x" at byte offset 2'),
        ("<b><i>a</b></i>", 'Unmatched end tag at byte offset 7, expected "</i>", found "</b>"'),
        ("a < b", "Unclosed start tag at byte offset 2"),
    ],
)
def test_the_fake_telegram_server_rejects_malformed_html_like_telegram(html: str, words: str) -> None:
    with pytest.raises(HtmlParseError, match=f"^{re.escape(words)}$"):
        parse_html(html)


@pytest.mark.parametrize(
    "hostile", ["[](" * 20_000, "*a" * 40_000, "`" * 3 + "` `` " * 20_000, "[" * 50_000, "a|" * 30_000]
)
def test_hostile_markdown_is_converted_to_telegram_html_in_linear_time(hostile: str) -> None:
    parse_html(to_html(hostile))  # reading each mark twice would take minutes and exceed the test's time limit
