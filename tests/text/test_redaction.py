"""Secrets are masked by what is known and by what they look like, in every usual form, and nothing else is."""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import re
import secrets as chance
import string
import threading
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.app.logs import LogFormatter, redact, set_known_secrets
from retinue.domain.errors import Invalid
from retinue.text.redaction import (
    FORMS_CHARS_MAX,
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    SECRETS_MAX,
    Redactor,
    build_placeholder,
    list_encoded_forms,
    redact_error,
    redact_part,
    redact_patterns,
)

SECRET = 'c4nary/"&<x>+ü=7Qz\\'
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAxq7Zc8sQ9\nq7Zc8sAAKCAQEAxq7Zc8sX1\n-----END RSA PRIVATE KEY-----"
)

values = st.text(st.characters(exclude_categories=("Cs",)), min_size=SECRET_CHARS_MIN, max_size=60).filter(
    # A secret that is part of what a mark says cannot be told from it.
    lambda text: not re.search(re.escape(text), build_placeholder("canary"))
)


def hidden(secret: str, text: str) -> bool:
    return secret not in Redactor({"canary": secret}).redact_values(text)


FORMS = {
    "as it is": lambda s: s,
    "in JSON": lambda s: json.dumps({"key": s}),
    "in JSON, all of it": lambda s: json.dumps({"key": s}, ensure_ascii=False),
    "in an address": lambda s: f"https://x.example/?k={quote(s, safe='')}",
    "in a path": lambda s: f"https://x.example/{quote(s)}/y",
    "in a form": lambda s: f"k={quote_plus(s)}",
    "in HTML": lambda s: f"<p title='{html.escape(s)}'>",
    "between tags": lambda s: f"<p>{html.escape(s, quote=False)}</p>",
    "in hex": lambda s: s.encode().hex(),
    "in capital hex": lambda s: s.encode().hex().upper(),
    "in base64": lambda s: base64.b64encode(s.encode()).decode(),
    "in base64 of addresses": lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
}


@given(values, st.sampled_from(sorted(FORMS)), st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_is_masked_in_every_form(secret: str, form: str, before: str, after: str) -> None:
    written = FORMS[form](secret)
    found = Redactor({"canary": secret}).redact_values(f"{before} {written} {after}")
    assert build_placeholder("canary") in found
    assert written not in found


@given(values, st.binary(max_size=20), st.binary(max_size=20))
def test_a_known_secret_is_masked_wherever_it_falls_in_base64(secret: str, before: bytes, after: bytes) -> None:
    """As a name and a password stand in one header."""
    raw = secret.encode()
    whole = base64.b64encode(before + raw + after).decode()
    found = Redactor({"canary": secret}).redact_values(whole)
    assert build_placeholder("canary") in found
    left = found.replace(build_placeholder("canary"), "")
    # At its borders a letter or two are left, in which it is mixed with its neighbours.
    assert len(left) <= len(base64.b64encode(before)) + len(base64.b64encode(after)) + 4


@given(st.text(max_size=300))
def test_a_text_without_secrets_is_left_alone(text: str) -> None:
    if SECRET not in text:
        assert Redactor({"canary": SECRET}).redact_values(text) == text
    assert Redactor().redact_values(text) == text


@given(st.lists(values, min_size=1, max_size=6, unique=True), st.data())
def test_nothing_of_any_of_many_is_left(every: list[str], data: st.DataObject) -> None:
    """Also where one is part of another, or where they touch."""
    masks = Redactor({f"s{n}": secret for n, secret in enumerate(every)})
    pieces = data.draw(st.lists(st.sampled_from(every) | st.sampled_from(["", " ", "\n", ","]), max_size=8))
    text = "".join(pieces)
    found = masks.redact_values(text)
    bare = re.sub(r"\[secret:s\d\]", "\0", found)
    for piece in pieces:
        # What only came to be by two secrets touching is none that anyone wrote down.
        assert piece not in every or piece not in bare
    assert masks.redact_values(found) == found or any(secret in found for secret in every)


def test_the_longest_is_masked_first_and_one_within_another_leaves_nothing() -> None:
    masks = Redactor({"short": "abcdefgh", "long": "abcdefgh-ijklmnop", "inner": "defgh-ij"})
    assert masks.redact("x abcdefgh-ijklmnop y") == "x [secret:long] y"
    assert masks.redact("abcdefgh abcdefgh-ijk") == "[secret:short] [secret:short]-ijk"


def test_the_same_secret_has_the_same_mark_each_time_and_a_name_says_nothing_else() -> None:
    assert build_placeholder("openai:env") == "[secret:openai:env]"
    assert build_placeholder("a b\n]c") == "[secret:a-b-c]"
    assert build_placeholder("") == "[secret:unnamed]"
    masks = Redactor({"production-db": "production-db"})
    assert "production-db" not in masks.redact("the word is production-db")


def test_what_is_too_short_to_be_told_from_a_word_is_named_and_not_masked() -> None:
    masks = Redactor({"pin": "1234", "empty": "", "good": "x" * SECRET_CHARS_MIN, "vast": "y" * (SECRET_CHARS_MAX + 1)})
    assert masks.redact("1234 and more") == "1234 and more"
    assert masks.unredacted_names == {"pin", "empty", "vast"}
    assert masks.redacted_names == {"good"}


def test_more_secrets_than_there_is_room_for_are_named() -> None:
    masks = Redactor({f"s{n}": f"{n:08d}" for n in range(SECRETS_MAX + 3)})
    assert len(masks.redacted_names) == SECRETS_MAX and len(masks.unredacted_names) == 3
    huge = Redactor({f"s{n}": chance.token_hex(SECRET_CHARS_MAX // 2) for n in range(40)})
    assert huge.unredacted_names
    assert sum(len(form) for form in list_encoded_forms("z" * 100)) * 40 < FORMS_CHARS_MAX


def test_each_line_of_a_key_file_is_masked_by_itself_and_common_words_are_not() -> None:
    masks = Redactor({"key": PEM, "account": '{\n  "type": "service_account",\n  "id": "0a1b2c3d4e5f6a7b8c9d"\n}'})
    found = masks.redact_values("3: q7Zc8sAAKCAQEAxq7Zc8sX1\nservice_account_of_no_one 0a1b2c3d4e5f6a7b8c9d")
    assert found == "3: [secret:key]\nservice_account_of_no_one [secret:account]"


def test_long_base64_broken_into_lines_is_masked() -> None:
    secret = chance.token_urlsafe(120)
    broken = base64.encodebytes(secret.encode()).decode()
    found = Redactor({"canary": secret}).redact_values(broken)
    assert found.replace("[secret:canary]", "").strip() == ""


def test_a_house_that_learns_another_secret_masks_that_one_from_then_on() -> None:
    masks = Redactor({"old": "old-secret-1"})
    masks.set_secrets({"new": "new-secret-2"})
    assert masks.redact("old-secret-1 new-secret-2") == "old-secret-1 [secret:new]"
    assert "new-secret-2" not in repr(masks)


def test_whoever_masks_while_secrets_change_sees_one_state_or_the_other() -> None:
    one, two = {"s": "first-secret-1"}, {"s": "second-secret-2"}
    masks, stop, wrong = Redactor(one), threading.Event(), list[str]()

    def look() -> None:
        while not stop.is_set():
            found = masks.redact_values("first-secret-1 second-secret-2")
            if found.count("[secret:s]") != 1:
                wrong.append(found)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        masks.set_secrets(two)
        masks.set_secrets(one)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- by shape ---

LOOKS = (
    ("sk-proj-abcdefgh12345678ijkl", "abcdefgh12345678"),
    ("use sk-ant-api03-AbCdEfGh_ij-kl0123456789 now", "AbCdEfGh"),
    ("sk_live_0123456789abcdef", "0123456789abcdef"),
    ("ghp_0123456789abcdefABCDEF0123456789abcd", "0123456789abcdef"),
    ("github_pat_11ABCDEFG0123456789_abcdef", "11ABCDEFG"),
    ("glpat-0123456789abcdefghij", "0123456789"),
    ("xoxb-1234567890-abcdefghij", "1234567890"),
    ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
    ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "SyA0123456789"),
    ("https://api.telegram.org/bot123456789:AAF0123456789abcdefghijklmnopqrstuvw/getMe", "F0123456789abc"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ("Authorization: Bearer abc.def-ghi1234567", "abc.def-ghi1234567"),
    ("https://hooks.slack.com/services/T000/B000/XXXXXXXX", "T000/B000"),
    ("hf_abcdefghijklmnopqrstuvwx", "abcdefghijklmnop"),
    ("SG.0123456789abcdefgh.0123456789abcdefgh", "0123456789abcdefgh"),
    ("AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQ", "QQQQQQQQ"),
    (f"it said:\n{PEM}\nand ended", "MIIEowIB"),
    (json.dumps(PEM), "MIIEowIB"),
    (PEM[:70], "MIIEowIB"),
    (f"{PEM[:60]}\n{PEM}", "q7Zc8sAAK"),
)
PLAIN = (
    "task-runner-with-a-long-name-2024 and risk-assessment-of-20-items",
    "sk-loading-spinner-large-variant",  # a class of a style sheet
    "import sk_learn_live; npm_config_registry",
    "bearer of bad news, Bearer authentication",
    "the eyJ prefix, AKIA, gh_pages, ghp_",
    "-----BEGIN CERTIFICATE-----\nMIIEow\n-----END CERTIFICATE-----",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    'password = request.form["password"]',
    "def token(self) -> str: return self._token",
)


@pytest.mark.parametrize(("text", "secret"), LOOKS)
def test_what_has_the_shape_of_a_key_is_masked(text: str, secret: str) -> None:
    assert secret in text
    found = redact_patterns(text)
    assert secret not in found and "[secret:" in found


@pytest.mark.parametrize("text", PLAIN)
def test_what_has_no_such_shape_is_left_alone(text: str) -> None:
    assert redact_patterns(text) == text


def test_what_surrounds_a_private_key_stays() -> None:
    assert redact_patterns(f"before\n{PEM}\nafter, too") == "before\n[secret:private-key]\nafter, too"
    assert redact_patterns(f"{PEM}\n{PEM}\n.") == "[secret:private-key]\n[secret:private-key]\n."


@given(st.text(string.ascii_letters + "-_.:=/ \n0123456789", max_size=300))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = redact_patterns(f"sk-{text} Bearer {text} eyJ{text}")
    assert redact_patterns(once) == once


HOSTILE = (
    "sk-" * 200_000,
    "sk-" + "a" * 500_000,
    "eyJ" + "a.eyJ" * 100_000,
    "eyJaaaaaaaa." * 50_000,
    "SG.aaaaaaaaaaaaaaaaaaa." * 30_000,
    "Bearer " * 80_000,
    "Bearer " + "a" * 500_000,
    "-----BEGIN RSA PRIVATE KEY-----" * 20_000,
    "-----BEGIN " * 50_000 + "PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----" + "A\\n" * 200_000,
    "hooks.slack.com/services/" * 20_000,
    "c4nary/" * 80_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_makes_masking_slow(text: str) -> None:
    """Half a million characters each. What goes back again and again would not come to an end here."""
    masks = Redactor({f"s{n}": f"c4nary/c4nary/c4nary/{n:04d}" for n in range(100)})
    assert masks.redact(text) is not None


@pytest.mark.spec("C99.error")
def test_an_error_is_shown_in_masked_words_and_stays_the_same_error() -> None:
    secret = "plain-words-of-a-canary"
    error = Invalid(f"no {secret}", because=f"of {secret}", try_this=f"not {secret}", code="a.code")
    assert secret in str(error)
    shown = redact_error(error, Redactor({"canary": secret}).redact)
    assert shown is error and secret not in f"{shown} {shown!r} {shown.args}"
    assert str(shown) == "no [secret:canary] [a.code]\nbecause: of [secret:canary]\ntry: not [secret:canary]"


# --- in the log ---


@pytest.mark.spec("C99.log")
def test_a_known_secret_is_in_no_line_of_the_log() -> None:
    secret = "plain-words-that-look-like-nothing"
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    log = logging.getLogger("test.masking")
    log.propagate = False
    log.addHandler(handler)

    def say() -> str:
        stream.truncate(0)
        log.warning("it is %s", secret, extra={"because": f"so it is: {secret}"}, stack_info=True)
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("it failed")
        return stream.getvalue()

    try:
        assert secret in say()  # nobody would know it for one
        set_known_secrets(Redactor({"canary": secret}))
        assert secret not in say() and "[secret:***]" in say()  # what stands after such a word is masked, too
        long = "x" * (32 * 1024 - 10) + secret
        assert secret[:10] not in redact(long)
    finally:
        set_known_secrets(Redactor())
        log.removeHandler(handler)


# --- a part of a longer text ---

LONG_SECRET = "correct-horse-battery-staple"


@given(
    st.text(alphabet="ab \n", max_size=20),
    st.text(alphabet="ab \n", max_size=20),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_of_a_secret_across_the_end_of_a_part_nothing_is_shown(lead: str, rest: str, begin: int, length: int) -> None:
    masks = Redactor({"horse": LONG_SECRET})
    text = f"{lead}{LONG_SECRET}{rest}"
    begin = min(begin, len(text))
    end = min(begin + length, len(text))
    shown = redact_part(text, begin, end, masks.redact)
    first, last = len(lead), len(lead) + len(LONG_SECRET)
    if end <= first or begin >= last:
        assert shown == text[begin:end], "what is beside it is as it was"
    else:
        assert begin == end or shown == text[begin:first] + build_placeholder("horse") + text[last:end]
    assert not any(LONG_SECRET[at : at + 8] in shown for at in range(len(LONG_SECRET) - 7))


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_parts_of_a_private_key_show_nothing_of_it(at: int) -> None:
    body = "\n".join("MIIEvQ" + "0123456789abcdef" * 2 for _ in range(4))
    text = f"here\n-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\nthere"
    assert "0123456789abcdef" not in redact_part(text, at, at + 40, Redactor().redact)
    assert redact_part(text, len(text) - 5, len(text), Redactor().redact) == "there"
