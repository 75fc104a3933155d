"""Proofs of requests, and templates that are filled with what strangers send: pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from retinue.connectors.webhook import webhook_templates
from retinue.connectors.webhook.settings import SignatureScheme
from retinue.connectors.webhook.webhook_signature import SignatureInvalid, sign, verify_request
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX
from retinue.domain.errors import Invalid

SECRET = "a secret"
NOW_S = 1_700_000_000
BODY = b'{"id": "evt_1", "type": "paid"}'


def stripe(*, at: int = NOW_S, body: bytes = BODY, secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={digest},v0=old"}


def test_a_signature_is_the_one_that_standard_webhooks_gives_as_its_example() -> None:
    made = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        id_="msg_p5jXN8AQM9LWM0D4loKWxJek",
        at="1614265330",
        body=b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_one_of_several_signatures_is_enough() -> None:
    good = sign(SECRET, id_="one", at=str(NOW_S), body=BODY)
    headers = {
        "webhook-id": "one",
        "webhook-timestamp": str(NOW_S),
        "webhook-signature": f"v1,{base64.b64encode(b'x' * 32).decode()} {good}",
    }
    assert verify_request(SignatureScheme.STANDARD, SECRET, headers, BODY, now_s=NOW_S) == "one"


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_an_empty_key_signs_nothing(secret: str) -> None:
    made = base64.b64encode(hmac.new(b"", f"one.{NOW_S}.".encode() + BODY, hashlib.sha256).digest()).decode()
    headers = {"webhook-id": "one", "webhook-timestamp": str(NOW_S), "webhook-signature": f"v1,{made}"}
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.STANDARD, secret, headers, BODY, now_s=NOW_S)


def test_what_stripe_signs_anew_is_still_the_same_by_the_id_within() -> None:
    first = verify_request(SignatureScheme.STRIPE, SECRET, stripe(), BODY, now_s=NOW_S)
    again = verify_request(SignatureScheme.STRIPE, SECRET, stripe(at=NOW_S + 60), BODY, now_s=NOW_S + 60)
    assert first == again == "evt_1"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        stripe(at=NOW_S - 301),
        stripe(at=NOW_S + 301),
        stripe(secret="another"),
        stripe(body=b"{}"),
        {"stripe-signature": "t=,v1="},
        {"stripe-signature": "t=" + "9" * 5_000},
    ],
)
def test_what_stripe_has_not_signed_now_is_not_proved(headers: dict[str, str]) -> None:
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.STRIPE, SECRET, headers, BODY, now_s=NOW_S)


@pytest.mark.parametrize("said", ["", "Basic a secret", "Bearer", "Bearer a secre", "Bearer a secret2", "Bearer Ä"])
def test_another_token_is_not_proved(said: str) -> None:
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.TOKEN, SECRET, {"authorization": said}, BODY, now_s=NOW_S)


# --- templates ---


@pytest.mark.parametrize(
    "text",
    [
        "{{ payload.__class__.__mro__ }}",
        "{{ ''.join(payload.words) }}",
        "{{ 'x' * payload.many }}",
        "{{ payload.many ** payload.many }}",
        "{{ '%1000000000d' % payload.many }}",
        "{{ payload.name.center(payload.many) }}",
        "{{ payload.name.replace('', payload.name) }}",
        "{{ '{:>1000000000}'.format(payload.name) }}",
    ],
)
def test_a_template_makes_nothing_huge_and_reaches_nothing_else(text: str) -> None:
    payload: dict[str, Any] = {"many": 10**9, "name": "maria", "words": ["a", "b"]}
    try:
        made = webhook_templates.render(text, {"payload": payload})
    except Invalid as error:
        assert error.code == "webhook.template_failed"
    else:
        assert made == ""


@pytest.mark.parametrize("text", ["{{ payload | center(9) }}", "{{ range(9) }", "{% for %}", "{{ x | unheard }}"])
def test_a_template_that_cannot_be_used_is_found_out_before_it_is(text: str) -> None:
    assert webhook_templates.check_template(text)


def test_what_is_filled_in_is_bounded_in_length_and_number() -> None:
    payload = webhook_templates.limit_payload({"words": ["x" * 1_000] * 100_000, "deep": _deep(100)})
    assert len(payload["words"]) == webhook_templates.ITEMS_MAX
    made = webhook_templates.render("{% for w in payload.words %}{{ w }}{% endfor %}", {"payload": payload})
    assert len(made) <= ENVELOPE_TEXT_BYTES_MAX + 1_000


def test_a_missing_value_is_empty_and_one_that_is_there_is_found_by_its_path() -> None:
    values = {"payload": {"a": [{"b": True}, {"b": 7}]}}
    assert webhook_templates.render("[{{ payload.no.such.thing }}]", values) == "[]"
    assert [webhook_templates.get_text_at(values, f"payload.a.{n}.b") for n in (0, 1, 2)] == ["true", "7", ""]
    assert webhook_templates.get_text_at(values, "payload.a") == ""


def _deep(levels: int) -> Any:
    return {"in": _deep(levels - 1)} if levels else "bottom"
