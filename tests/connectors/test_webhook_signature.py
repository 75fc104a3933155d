"""Test webhook signatures, and templates that are filled with untrusted values."""

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


def sign_as_stripe(*, at: int = NOW_S, body: bytes = BODY, secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={digest},v0=old"}


def test_the_signature_matches_the_standard_webhooks_example() -> None:
    made = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        id_="msg_p5jXN8AQM9LWM0D4loKWxJek",
        at="1614265330",
        body=b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_one_valid_webhook_signature_among_several_is_enough() -> None:
    good = sign(SECRET, id_="one", at=str(NOW_S), body=BODY)
    headers = {
        "webhook-id": "one",
        "webhook-timestamp": str(NOW_S),
        "webhook-signature": f"v1,{base64.b64encode(b'x' * 32).decode()} {good}",
    }
    assert verify_request(SignatureScheme.STANDARD, SECRET, headers, BODY, now_s=NOW_S) == "one"


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_a_webhook_signature_with_an_empty_secret_is_invalid(secret: str) -> None:
    made = base64.b64encode(hmac.new(b"", f"one.{NOW_S}.".encode() + BODY, hashlib.sha256).digest()).decode()
    headers = {"webhook-id": "one", "webhook-timestamp": str(NOW_S), "webhook-signature": f"v1,{made}"}
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.STANDARD, secret, headers, BODY, now_s=NOW_S)


def test_a_stripe_webhook_signed_again_keeps_its_event_id() -> None:
    first = verify_request(SignatureScheme.STRIPE, SECRET, sign_as_stripe(), BODY, now_s=NOW_S)
    again = verify_request(SignatureScheme.STRIPE, SECRET, sign_as_stripe(at=NOW_S + 60), BODY, now_s=NOW_S + 60)
    assert first == again == "evt_1"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        sign_as_stripe(at=NOW_S - 301),
        sign_as_stripe(at=NOW_S + 301),
        sign_as_stripe(secret="another"),
        sign_as_stripe(body=b"{}"),
        {"stripe-signature": "t=,v1="},
        {"stripe-signature": "t=" + "9" * 5_000},
    ],
)
def test_an_old_or_wrong_stripe_webhook_signature_is_invalid(headers: dict[str, str]) -> None:
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.STRIPE, SECRET, headers, BODY, now_s=NOW_S)


@pytest.mark.parametrize("header", ["", "Basic a secret", "Bearer", "Bearer a secre", "Bearer a secret2", "Bearer Ä"])
def test_a_wrong_bearer_token_of_a_webhook_request_is_invalid(header: str) -> None:
    with pytest.raises(SignatureInvalid):
        verify_request(SignatureScheme.TOKEN, SECRET, {"authorization": header}, BODY, now_s=NOW_S)


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
def test_a_webhook_template_cannot_produce_huge_output_or_reach_python_internals(text: str) -> None:
    payload: dict[str, Any] = {"many": 10**9, "name": "maria", "words": ["a", "b"]}
    try:
        made = webhook_templates.render(text, {"payload": payload})
    except Invalid as error:
        assert error.code == "webhook.template_failed"
    else:
        assert made == ""


@pytest.mark.parametrize("text", ["{{ payload | center(9) }}", "{{ range(9) }", "{% for %}", "{{ x | unheard }}"])
def test_an_invalid_webhook_template_is_found_when_it_is_checked(text: str) -> None:
    assert webhook_templates.check_template(text)


def test_values_in_a_webhook_template_are_limited_in_length_and_number() -> None:
    payload = webhook_templates.limit_payload({"words": ["x" * 1_000] * 100_000, "deep": _nest(100)})
    assert len(payload["words"]) == webhook_templates.ITEMS_MAX
    made = webhook_templates.render("{% for w in payload.words %}{{ w }}{% endfor %}", {"payload": payload})
    assert len(made) <= ENVELOPE_TEXT_BYTES_MAX + 1_000


def test_a_webhook_template_finds_a_value_by_its_path_and_leaves_a_missing_one_empty() -> None:
    values = {"payload": {"a": [{"b": True}, {"b": 7}]}}
    assert webhook_templates.render("[{{ payload.no.such.thing }}]", values) == "[]"
    assert [webhook_templates.get_text_at(values, f"payload.a.{n}.b") for n in (0, 1, 2)] == ["true", "7", ""]
    assert webhook_templates.get_text_at(values, "payload.a") == ""


def _nest(levels: int) -> Any:
    return {"in": _nest(levels - 1)} if levels else "bottom"
