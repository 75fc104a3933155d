"""Redaction of known secrets in every usual encoding, and of texts with the shape of a secret, but of nothing else."""

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
    # A secret that is part of the placeholder cannot be distinguished from it.
    lambda text: not re.search(re.escape(text), build_placeholder("canary"))
)


ENCODED_FORMS = {
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


@given(values, st.sampled_from(sorted(ENCODED_FORMS)), st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_is_redacted_in_every_encoding(secret: str, form: str, before: str, after: str) -> None:
    written = ENCODED_FORMS[form](secret)
    found = Redactor({"canary": secret}).redact_values(f"{before} {written} {after}")
    assert build_placeholder("canary") in found
    assert written not in found


@given(values, st.binary(max_size=20), st.binary(max_size=20))
def test_a_known_secret_is_redacted_at_any_offset_in_base64(secret: str, before: bytes, after: bytes) -> None:
    """As with a name and a password in one header."""
    raw = secret.encode()
    whole = base64.b64encode(before + raw + after).decode()
    found = Redactor({"canary": secret}).redact_values(whole)
    assert build_placeholder("canary") in found
    left = found.replace(build_placeholder("canary"), "")
    # At its borders one or two characters remain, which encode bytes of both.
    assert len(left) <= len(base64.b64encode(before)) + len(base64.b64encode(after)) + 4


@given(st.text(max_size=300))
def test_a_text_without_secrets_is_not_changed_by_redaction(text: str) -> None:
    if SECRET not in text:
        assert Redactor({"canary": SECRET}).redact_values(text) == text
    assert Redactor().redact_values(text) == text


@given(st.lists(values, min_size=1, max_size=6, unique=True), st.data())
def test_overlapping_and_adjacent_secrets_are_all_redacted(every: list[str], data: st.DataObject) -> None:
    """Also if one is part of another, or if they touch."""
    redactor = Redactor({f"s{n}": secret for n, secret in enumerate(every)})
    pieces = data.draw(st.lists(st.sampled_from(every) | st.sampled_from(["", " ", "\n", ","]), max_size=8))
    text = "".join(pieces)
    found = redactor.redact_values(text)
    bare = re.sub(r"\[secret:s\d\]", "\0", found)
    for piece in pieces:
        # A secret that appears only because two others touch was not written.
        assert piece not in every or piece not in bare
    assert redactor.redact_values(found) == found or any(secret in found for secret in every)


def test_the_longest_of_overlapping_secrets_is_redacted_first() -> None:
    redactor = Redactor({"short": "abcdefgh", "long": "abcdefgh-ijklmnop", "inner": "defgh-ij"})
    assert redactor.redact("x abcdefgh-ijklmnop y") == "x [secret:long] y"
    assert redactor.redact("abcdefgh abcdefgh-ijk") == "[secret:short] [secret:short]-ijk"


def test_a_placeholder_is_built_from_the_cleaned_secret_name_and_never_shows_the_secret() -> None:
    assert build_placeholder("openai:env") == "[secret:openai:env]"
    assert build_placeholder("a b\n]c") == "[secret:a-b-c]"
    assert build_placeholder("") == "[secret:unnamed]"
    redactor = Redactor({"production-db": "production-db"})
    assert "production-db" not in redactor.redact("the word is production-db")


def test_too_short_and_too_long_secrets_are_reported_by_name_and_not_redacted() -> None:
    redactor = Redactor(
        {"pin": "1234", "empty": "", "good": "x" * SECRET_CHARS_MIN, "vast": "y" * (SECRET_CHARS_MAX + 1)}
    )
    assert redactor.redact("1234 and more") == "1234 and more"
    assert redactor.unredacted_names == {"pin", "empty", "vast"}
    assert redactor.redacted_names == {"good"}


def test_secrets_beyond_the_limits_are_reported_by_name() -> None:
    redactor = Redactor({f"s{n}": f"{n:08d}" for n in range(SECRETS_MAX + 3)})
    assert len(redactor.redacted_names) == SECRETS_MAX and len(redactor.unredacted_names) == 3
    huge = Redactor({f"s{n}": chance.token_hex(SECRET_CHARS_MAX // 2) for n in range(40)})
    assert huge.unredacted_names
    assert sum(len(form) for form in list_encoded_forms("z" * 100)) * 40 < FORMS_CHARS_MAX


def test_each_line_of_a_key_file_is_redacted_but_common_words_in_it_are_not() -> None:
    redactor = Redactor({"key": PEM, "account": '{\n  "type": "service_account",\n  "id": "0a1b2c3d4e5f6a7b8c9d"\n}'})
    found = redactor.redact_values("3: q7Zc8sAAKCAQEAxq7Zc8sX1\nservice_account_of_no_one 0a1b2c3d4e5f6a7b8c9d")
    assert found == "3: [secret:key]\nservice_account_of_no_one [secret:account]"


def test_base64_of_a_secret_broken_into_lines_is_redacted() -> None:
    secret = chance.token_urlsafe(120)
    broken = base64.encodebytes(secret.encode()).decode()
    found = Redactor({"canary": secret}).redact_values(broken)
    assert found.replace("[secret:canary]", "").strip() == ""


def test_setting_new_secrets_redacts_them_instead_of_the_old_ones() -> None:
    redactor = Redactor({"old": "old-secret-1"})
    redactor.set_secrets({"new": "new-secret-2"})
    assert redactor.redact("old-secret-1 new-secret-2") == "old-secret-1 [secret:new]"
    assert "new-secret-2" not in repr(redactor)


def test_redaction_during_a_change_of_secrets_uses_either_the_old_or_the_new_ones() -> None:
    one, two = {"s": "first-secret-1"}, {"s": "second-secret-2"}
    redactor, stop, wrong = Redactor(one), threading.Event(), list[str]()

    def redact_until_stopped() -> None:
        while not stop.is_set():
            found = redactor.redact_values("first-secret-1 second-secret-2")
            if found.count("[secret:s]") != 1:
                wrong.append(found)

    threads = [threading.Thread(target=redact_until_stopped) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        redactor.set_secrets(two)
        redactor.set_secrets(one)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- by shape ---

KEY_SHAPED_TEXTS = (
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
HARMLESS_TEXTS = (
    "task-runner-with-a-long-name-2024 and risk-assessment-of-20-items",
    "sk-loading-spinner-large-variant",  # a CSS class
    "import sk_learn_live; npm_config_registry",
    "bearer of bad news, Bearer authentication",
    "the eyJ prefix, AKIA, gh_pages, ghp_",
    "-----BEGIN CERTIFICATE-----\nMIIEow\n-----END CERTIFICATE-----",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    'password = request.form["password"]',
    "def token(self) -> str: return self._token",
)


@pytest.mark.parametrize(("text", "secret"), KEY_SHAPED_TEXTS)
def test_text_with_the_shape_of_a_key_is_redacted(text: str, secret: str) -> None:
    assert secret in text
    found = redact_patterns(text)
    assert secret not in found and "[secret:" in found


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_text_without_the_shape_of_a_key_is_not_redacted(text: str) -> None:
    assert redact_patterns(text) == text


def test_text_around_a_redacted_private_key_is_kept() -> None:
    assert redact_patterns(f"before\n{PEM}\nafter, too") == "before\n[secret:private-key]\nafter, too"
    assert redact_patterns(f"{PEM}\n{PEM}\n.") == "[secret:private-key]\n[secret:private-key]\n."


@given(st.text(string.ascii_letters + "-_.:=/ \n0123456789", max_size=300))
def test_redacting_patterns_twice_gives_the_same_text(text: str) -> None:
    once = redact_patterns(f"sk-{text} Bearer {text} eyJ{text}")
    assert redact_patterns(once) == once


HOSTILE_TEXTS = (
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


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_redaction_of_long_hostile_texts_is_not_slow(text: str) -> None:
    """Half a million characters each: a pattern with backtracking would not finish."""
    redactor = Redactor({f"s{n}": f"c4nary/c4nary/c4nary/{n:04d}" for n in range(100)})
    assert redactor.redact(text) is not None


@pytest.mark.spec("C99.error")
def test_redacting_an_error_removes_the_secret_and_keeps_the_same_error_object() -> None:
    secret = "plain-words-of-a-canary"
    error = Invalid(f"no {secret}", because=f"of {secret}", try_this=f"not {secret}", code="a.code")
    assert secret in str(error)
    shown = redact_error(error, Redactor({"canary": secret}).redact)
    assert shown is error and secret not in f"{shown} {shown!r} {shown.args}"
    assert str(shown) == "no [secret:canary] [a.code]\nbecause: of [secret:canary]\ntry: not [secret:canary]"


# --- in the log ---


@pytest.mark.spec("C99.log")
def test_a_known_secret_is_redacted_in_the_log() -> None:
    secret = "plain-words-that-look-like-nothing"
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    log = logging.getLogger("test.redaction")
    log.propagate = False
    log.addHandler(handler)

    def log_secret() -> str:
        stream.truncate(0)
        log.warning("it is %s", secret, extra={"because": f"so it is: {secret}"}, stack_info=True)
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("it failed")
        return stream.getvalue()

    try:
        assert secret in log_secret()  # it does not look like a secret
        set_known_secrets(Redactor({"canary": secret}))
        assert secret not in log_secret() and "[secret:***]" in log_secret()  # text after such a word is redacted, too
        long = "x" * (32 * 1024 - 10) + secret
        assert secret[:10] not in redact(long)
    finally:
        set_known_secrets(Redactor())
        log.removeHandler(handler)


# --- parts of a longer text ---

LONG_SECRET = "correct-horse-battery-staple"


@given(
    st.text(alphabet="ab \n", max_size=20),
    st.text(alphabet="ab \n", max_size=20),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_a_secret_that_crosses_the_end_of_a_part_of_a_text_is_redacted(
    lead: str, rest: str, begin: int, length: int
) -> None:
    redactor = Redactor({"horse": LONG_SECRET})
    text = f"{lead}{LONG_SECRET}{rest}"
    begin = min(begin, len(text))
    end = min(begin + length, len(text))
    shown = redact_part(text, begin, end, redactor.redact)
    first, last = len(lead), len(lead) + len(LONG_SECRET)
    if end <= first or begin >= last:
        assert shown == text[begin:end], "text outside of the secret is unchanged"
    else:
        assert begin == end or shown == text[begin:first] + build_placeholder("horse") + text[last:end]
    assert not any(LONG_SECRET[at : at + 8] in shown for at in range(len(LONG_SECRET) - 7))


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_part_of_a_text_within_a_private_key_is_redacted(at: int) -> None:
    body = "\n".join("MIIEvQ" + "0123456789abcdef" * 2 for _ in range(4))
    text = f"here\n-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\nthere"
    assert "0123456789abcdef" not in redact_part(text, at, at + 40, Redactor().redact)
    assert redact_part(text, len(text) - 5, len(text), Redactor().redact) == "there"
