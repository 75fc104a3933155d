"""Lines of IRC: what is read from hostile ones, and that nothing said becomes a second line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connectors.irc.casemapping import Casemapping, IrcServerFeatures, apply_isupport, make_user_id, parse_user
from retinue.connectors.irc.irc_formatting import (
    parse_ctcp,
    split_lines,
    strip_address,
    strip_formatting,
    text_bytes_max,
)
from retinue.connectors.irc.irc_message import LINE_BYTES_MAX, encode_message, parse_message

OWN = IrcServerFeatures()


def test_a_line_has_tags_a_source_a_command_and_words() -> None:
    line = parse_message(rb"@account=maria;msgid=a\:b\s\\c;+x :maria!m@host PRIVMSG #home :hello there :)" + b"\r\n")

    assert line is not None
    assert line.tags == {"account": "maria", "msgid": "a;b \\c", "+x": ""}
    assert (line.source, line.nick, line.command) == ("maria!m@host", "maria", "PRIVMSG")
    assert line.params == ("#home", "hello there :)")


def test_a_line_without_a_colon_has_its_last_word_as_any_other() -> None:
    line = parse_message(b"ping   token\r\n")

    assert line is not None
    assert (line.command, line.params) == ("PING", ("token",))


@pytest.mark.parametrize("raw", [b"\r\n", b":", b"@a=b", b":only-a-source\r\n", b"\x00\xff\r\n", b"12 x\r\n", b"@\r\n"])
def test_what_is_no_line_is_passed_over(raw: bytes) -> None:
    assert parse_message(raw) is None


def test_words_of_an_old_client_are_read_all_the_same() -> None:
    line = parse_message(b":m!m@h PRIVMSG #home :caf\xe9\r\n")

    assert line is not None
    assert line.last_param == "café"


@given(st.binary(max_size=600))
def test_whatever_a_server_sends_nothing_breaks(raw: bytes) -> None:
    line = parse_message(raw)

    assert line is None or line.command


@given(st.text(max_size=300), st.text(max_size=20))
def test_what_is_sent_is_one_line_or_none(text: str, target: str) -> None:
    try:
        raw = encode_message("PRIVMSG", target, trailing=text)
    except ValueError:
        return
    assert raw.count(b"\r\n") == 1 and raw.endswith(b"\r\n") and b"\n" not in raw[:-2] and b"\x00" not in raw
    line = parse_message(raw)
    assert line is not None and line.command == "PRIVMSG" and line.last_param == text.encode(errors="replace").decode()


@pytest.mark.parametrize("target", ["", "a b", ":x", "#a\r\nQUIT", "a\x00b"])
def test_a_target_that_would_be_read_otherwise_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="before the last"):
        encode_message("PRIVMSG", target, trailing="hello")


@given(st.text(max_size=2000), st.integers(min_value=10, max_value=400))
def test_long_words_are_cut_to_lines_and_none_is_lost(text: str, bytes_max: int) -> None:
    lines = split_lines(text, bytes_max)

    assert all(0 < len(line.encode(errors="replace")) <= bytes_max for line in lines)
    assert not any(mark in line for line in lines for mark in "\r\n\x00\x01")
    kept = "".join("".join(lines).split())
    assert kept == "".join("".join(plain_of(text)).split())


def plain_of(text: str) -> str:
    return "".join(letter for letter in text if (letter >= " " and letter != "\x7f") or letter == "\t")


def test_a_line_is_cut_between_words_and_never_in_a_letter() -> None:
    assert split_lines("one two three", 8) == ["one two", "three"]
    assert split_lines("ééééé", 5) == ["éé", "éé", "é"]
    assert split_lines("first\n\nsecond\r\nthird", 100) == ["first", "second", "third"]


def test_the_words_of_a_line_leave_room_for_our_name() -> None:
    prefix = "house!~house@a.long.host.example"
    bytes_max = text_bytes_max(prefix, OWN, target="#home")

    relayed = f":{prefix} PRIVMSG #home :{'x' * bytes_max}\r\n"

    assert len(relayed) == LINE_BYTES_MAX
    assert text_bytes_max("", OWN) < text_bytes_max(prefix, OWN) < bytes_max


def test_colours_and_marks_are_not_words() -> None:
    assert strip_formatting("\x0304,12red\x03 \x02bold\x0f \x04ff0000hex\x16 plain\x1d") == "red bold hex plain"


def test_what_clients_ask_of_each_other_is_told_from_what_people_say() -> None:
    assert parse_ctcp("\x01ACTION waves\x01") == ("ACTION", "waves")
    assert parse_ctcp("\x01version\x01") == ("VERSION", "")
    assert parse_ctcp("hello") is None


@pytest.mark.parametrize(
    ("text", "words", "mentioned"),
    [
        ("house: what is on?", "what is on?", True),
        ("HOUSE, /status", "/status", True),
        ("@house: hello", "hello", True),
        ("ask house about it", "ask house about it", True),
        ("household goods", "household goods", False),
        ("house-sitter wanted", "house-sitter wanted", False),
        ("the_house", "the_house", False),
        ("no word of us", "no word of us", False),
    ],
)
def test_a_mention_is_our_name_as_a_word_of_its_own(text: str, words: str, mentioned: bool) -> None:
    assert strip_address(text, ("house",), OWN) == (words, mentioned)


def test_names_are_the_same_as_their_server_has_it() -> None:
    assert Casemapping.RFC1459.fold("[Maria]~") == "{maria}^"
    assert Casemapping.RFC1459_STRICT.fold("[Maria]~") == "{maria}~"
    assert Casemapping.ASCII.fold("[Maria]É") == "[maria]É"


def test_a_server_says_what_it_means_by_names() -> None:
    manners = apply_isupport(OWN, ("CASEMAPPING=ascii", "CHANTYPES=#", "NICKLEN=9", "CHANNELLEN=x", "EXCEPTS"))

    assert manners == IrcServerFeatures(casemapping=Casemapping.ASCII, channel_prefixes="#", nick_bytes_max=9)


def test_somebody_is_their_account_or_all_that_is_seen_of_them() -> None:
    assert make_user_id("Maria!m@host", "Maria", OWN) == "account:maria"
    assert make_user_id("Maria!m@host", "", OWN) == "maria!m@host"


@pytest.mark.parametrize("room", ["a,b", "a b", "$*", "*", "#home", "", "nick!nohost", "account:", "account:a,b", ":x"])
def test_a_room_of_two_that_could_mean_others_is_refused(room: str) -> None:
    assert parse_user(room) is None
