"""Signatures of messages, with their time and purpose."""

from __future__ import annotations

import pytest

from retinue.net.signatures import SIGNATURE_AGE_MAX_S, SignaturePurpose, is_recent, sign_message, signatures_match

SIGNED_FIELDS = {"timestamp": "1000", "session": "s", "message_id": "l", "request_id": "a", "body": b"words"}


def sign(key: str = "key", purpose: SignaturePurpose = SignaturePurpose.CALLBACK, **changed: str | bytes) -> str:
    return sign_message(key, purpose, **{**SIGNED_FIELDS, **changed})  # type: ignore[arg-type]


def test_a_signature_matches_the_openssl_command_of_the_guide() -> None:
    # Made by `printf 'callback\n1000\ns\nl\na\nwords' | openssl dgst -sha256 -hmac key`.
    assert sign() == "v1=3ff7de3492243d7fbce76f907e96b42ddf720d661d34d9f09077febd1d441692"


@pytest.mark.parametrize(
    "changed",
    [
        {"timestamp": "1001"},
        {"session": "t"},
        {"message_id": "m"},
        {"request_id": ""},
        {"body": b"word"},
        {"key": "other"},
    ],
)
def test_changing_any_signed_field_or_the_key_changes_the_signature(changed: dict[str, str]) -> None:
    assert sign(**changed) != sign()  # type: ignore[arg-type]


def test_each_signature_purpose_gives_a_different_signature() -> None:
    assert len({sign(purpose=purpose) for purpose in SignaturePurpose}) == len(SignaturePurpose)


def test_moving_text_from_one_signed_field_to_the_next_changes_the_signature() -> None:
    assert sign(session="s", message_id="l") != sign(session="s\nl", message_id="")
    assert sign(request_id="", body=b"a\nwords") != sign(request_id="a", body=b"words")


def test_signatures_never_match_with_an_empty_key_or_an_invalid_signature() -> None:
    assert signatures_match("key", sign(), sign())
    assert not signatures_match("", sign(key=""), sign(key=""))
    assert not signatures_match("key", "", sign())
    assert not signatures_match("key", "v1=ä", sign())


def test_the_timestamp_of_a_signature_is_recent_only_if_it_is_a_number_within_the_age_limit() -> None:
    assert is_recent("1000", now_s=1000 + SIGNATURE_AGE_MAX_S)
    assert is_recent("1000", now_s=1000 - SIGNATURE_AGE_MAX_S)
    assert not is_recent("1000", now_s=1001 + SIGNATURE_AGE_MAX_S)
    assert not is_recent("1000", now_s=999 - SIGNATURE_AGE_MAX_S)
    for text in ("", "now", "1e3", "-1000", "1000.5", "٣", "9" * 13):
        assert not is_recent(text, now_s=1000)
