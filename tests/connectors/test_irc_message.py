"""Test IRC lines: parsing hostile ones, and that no sent text becomes a second line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connectors.irc.casemapping import (
    Casemapping,
    IrcServerFeatures,
    apply_isupport,
    make_user_id,
    parse_user,
)
from retinue.connectors.irc.irc_formatting import (
    parse_ctcp,
    split_lines,
    strip_address,
    strip_formatting,
    text_bytes_max,
)
from retinue.connectors.irc.irc_message import LINE_BYTES_MAX, encode_message, parse_message

DEFAULT_FEATURES = IrcServerFeatures()


def test_an_irc_message_is_parsed_into_tags_source_command_and_params() -> None:
    line = parse_message(rb"@account=maria;msgid=a\:b\s\\c;+x :maria!m@host PRIVMSG #home :hello there :)" + b"\r\n")

    assert line is not None
    assert line.tags == {"account": "maria", "msgid": "a;b \\c", "+x": ""}
    assert (line.source, line.nick, line.command) == ("maria!m@host", "maria", "PRIVMSG")
    assert line.params == ("#home", "hello there :)")


def test_an_irc_message_without_a_colon_keeps_its_last_param() -> None:
    line = parse_message(b"ping   token\r\n")

    assert line is not None
    assert (line.command, line.params) == ("PING", ("token",))


@pytest.mark.parametrize("raw", [b"\r\n", b":", b"@a=b", b":only-a-source\r\n", b"\x00\xff\r\n", b"12 x\r\n", b"@\r\n"])
def test_an_invalid_irc_message_is_ignored(raw: bytes) -> None:
    assert parse_message(raw) is None


def test_latin1_text_in_an_irc_message_is_decoded() -> None:
    line = parse_message(b":m!m@h PRIVMSG #home :caf\xe9\r\n")

    assert line is not None
    assert line.last_param == "café"


@given(st.binary(max_size=600))
def test_arbitrary_bytes_never_crash_the_irc_parser(raw: bytes) -> None:
    line = parse_message(raw)

    assert line is None or line.command


@given(st.text(max_size=300), st.text(max_size=20))
def test_an_encoded_irc_message_is_always_exactly_one_line(text: str, target: str) -> None:
    try:
        raw = encode_message("PRIVMSG", target, trailing=text)
    except ValueError:
        return
    assert raw.count(b"\r\n") == 1 and raw.endswith(b"\r\n") and b"\n" not in raw[:-2] and b"\x00" not in raw
    line = parse_message(raw)
    assert line is not None and line.command == "PRIVMSG" and line.last_param == text.encode(errors="replace").decode()


@pytest.mark.parametrize("target", ["", "a b", ":x", "#a\r\nQUIT", "a\x00b"])
def test_an_irc_target_that_would_change_the_message_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="before the last"):
        encode_message("PRIVMSG", target, trailing="hello")


@given(st.text(max_size=2000), st.integers(min_value=10, max_value=400))
def test_splitting_text_into_irc_lines_respects_the_byte_limit_and_loses_no_text(text: str, bytes_max: int) -> None:
    lines = split_lines(text, bytes_max)

    assert all(0 < len(line.encode(errors="replace")) <= bytes_max for line in lines)
    assert not any(mark in line for line in lines for mark in "\r\n\x00\x01")
    kept = "".join("".join(lines).split())
    assert kept == "".join("".join(without_control_characters(text)).split())


def without_control_characters(text: str) -> str:
    return "".join(character for character in text if (character >= " " and character != "\x7f") or character == "\t")


def test_irc_lines_are_split_between_words_and_never_inside_a_character() -> None:
    assert split_lines("one two three", 8) == ["one two", "three"]
    assert split_lines("ééééé", 5) == ["éé", "éé", "é"]
    assert split_lines("first\n\nsecond\r\nthird", 100) == ["first", "second", "third"]


def test_the_text_limit_of_an_irc_line_reserves_space_for_the_source_prefix() -> None:
    prefix = "retinue!~retinue@a.long.host.example"
    bytes_max = text_bytes_max(prefix, DEFAULT_FEATURES, target="#home")

    relayed = f":{prefix} PRIVMSG #home :{'x' * bytes_max}\r\n"

    assert len(relayed) == LINE_BYTES_MAX
    assert text_bytes_max("", DEFAULT_FEATURES) < text_bytes_max(prefix, DEFAULT_FEATURES) < bytes_max


def test_irc_colors_and_formatting_codes_are_stripped() -> None:
    assert strip_formatting("\x0304,12red\x03 \x02bold\x0f \x04ff0000hex\x16 plain\x1d") == "red bold hex plain"


def test_ctcp_requests_in_irc_messages_are_distinguished_from_text() -> None:
    assert parse_ctcp("\x01ACTION waves\x01") == ("ACTION", "waves")
    assert parse_ctcp("\x01version\x01") == ("VERSION", "")
    assert parse_ctcp("hello") is None


@pytest.mark.parametrize(
    ("text", "words", "mentioned"),
    [
        ("retinue: what is on?", "what is on?", True),
        ("RETINUE, /status", "/status", True),
        ("@retinue: hello", "hello", True),
        ("ask retinue about it", "ask retinue about it", True),
        ("retinues of kings", "retinues of kings", False),
        ("retinue-sitter wanted", "retinue-sitter wanted", False),
        ("the_retinue", "the_retinue", False),
        ("no word of us", "no word of us", False),
    ],
)
def test_a_mention_in_an_irc_message_is_the_nick_as_a_separate_word(text: str, words: str, mentioned: bool) -> None:
    assert strip_address(text, ("retinue",), DEFAULT_FEATURES) == (words, mentioned)


def test_irc_nicks_are_folded_by_the_casemapping_of_the_server() -> None:
    assert Casemapping.RFC1459.fold("[Maria]~") == "{maria}^"
    assert Casemapping.RFC1459_STRICT.fold("[Maria]~") == "{maria}~"
    assert Casemapping.ASCII.fold("[Maria]É") == "[maria]É"


def test_isupport_values_set_the_irc_server_features_and_invalid_values_are_ignored() -> None:
    features = apply_isupport(
        DEFAULT_FEATURES, ("CASEMAPPING=ascii", "CHANTYPES=#", "NICKLEN=9", "CHANNELLEN=x", "EXCEPTS")
    )

    assert features == IrcServerFeatures(casemapping=Casemapping.ASCII, channel_prefixes="#", nick_bytes_max=9)


def test_the_id_of_an_irc_user_is_the_account_or_the_full_source() -> None:
    assert make_user_id("Maria!m@host", "Maria", DEFAULT_FEATURES) == "account:maria"
    assert make_user_id("Maria!m@host", "", DEFAULT_FEATURES) == "maria!m@host"


@pytest.mark.parametrize(
    "channel", ["a,b", "a b", "$*", "*", "#home", "", "nick!nohost", "account:", "account:a,b", ":x"]
)
def test_an_ambiguous_irc_user_as_direct_channel_is_rejected(channel: str) -> None:
    assert parse_user(channel) is None
