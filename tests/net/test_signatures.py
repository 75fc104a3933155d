"""Who signed what, when, and for which place."""

from __future__ import annotations

import pytest

from retinue.net.signatures import WINDOW_S, Purpose, is_recent, is_signed_by, signed

SAID = {"at": "1000", "session": "s", "letter": "l", "about": "a", "body": b"words"}


def sign(key: str = "key", purpose: Purpose = Purpose.CALLBACK, **changed: str | bytes) -> str:
    return signed(key, purpose, **{**SAID, **changed})  # type: ignore[arg-type]


def test_a_signature_is_as_the_guide_says_it_is_made() -> None:
    # Made by `printf 'callback\n1000\ns\nl\na\nwords' | openssl dgst -sha256 -hmac key`.
    assert sign() == "v1=3ff7de3492243d7fbce76f907e96b42ddf720d661d34d9f09077febd1d441692"


@pytest.mark.parametrize(
    "changed",
    [{"at": "1001"}, {"session": "t"}, {"letter": "m"}, {"about": ""}, {"body": b"word"}, {"key": "other"}],
)
def test_whatever_is_changed_is_another_signature(changed: dict[str, str]) -> None:
    assert sign(**changed) != sign()  # type: ignore[arg-type]


def test_what_was_signed_for_one_purpose_is_good_for_no_other() -> None:
    assert len({sign(purpose=purpose) for purpose in Purpose}) == len(Purpose)


def test_what_is_moved_from_one_line_to_the_next_is_another_signature() -> None:
    assert sign(session="s", letter="l") != sign(session="s\nl", letter="")
    assert sign(about="", body=b"a\nwords") != sign(about="a", body=b"words")


def test_an_empty_key_signs_nothing() -> None:
    assert is_signed_by("key", sign(), sign())
    assert not is_signed_by("", sign(key=""), sign(key=""))
    assert not is_signed_by("key", "", sign())
    assert not is_signed_by("key", "v1=ä", sign())


def test_a_moment_is_recent_within_the_window_and_only_if_it_is_a_number() -> None:
    assert is_recent("1000", now_s=1000 + WINDOW_S)
    assert is_recent("1000", now_s=1000 - WINDOW_S)
    assert not is_recent("1000", now_s=1001 + WINDOW_S)
    assert not is_recent("1000", now_s=999 - WINDOW_S)
    for text in ("", "now", "1e3", "-1000", "1000.5", "٣", "9" * 13):
        assert not is_recent(text, now_s=1000)
