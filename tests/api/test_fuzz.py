"""Whatever is asked, by whomever: no fault of the house, no answer that its own document does not describe, and
nothing of anyone else's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from api.tcp_server import Rim, open_rim
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

SECRET = "the key is under the third flowerpot"
EXAMPLES = 3  # of each operation
EXAMPLES_SLOW = 40
WHO = ("stranger", "guest", "agent", "member", "owner")  # the owner last, who can do the most damage
LIMITS = """
[house.limits]
requests_per_minute = 1000000
envelopes_per_minute = 1000000
sign_in_attempts_max = 1000
"""

UNHURRIED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]

load_all_checks()


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("fuzz"), LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(rim: Rim) -> dict[str, str]:
    """Everyone's, and a conversation of Maria's that is nobody else's business."""
    maria = rim.member("maria")
    rim.do("envelope.send", as_=maria, to="agent:guide", text=f"echo {SECRET}")
    guest = rim.do("person.invite", name="gus", role="guest")["invitation"]
    joined = rim.ask("POST", "/api/join", {"invitation": guest}).json
    found = {
        "owner": rim.token,
        "member": rim.member("noor"),
        "guest": joined["token"],
        "agent": rim.do("token.create", principal="agent:clerk")["token"],
        "stranger": "x" * 43,
    }
    for who in WHO[1:]:
        rim.do("person.whoami", as_=found[who])  # known before the stranger has our address locked out
    return found


@pytest.fixture(scope="module")
def pool(rim: Rim, tokens: dict[str, str]) -> dict[str, list[Any]]:
    """Real things to be named where a parameter names one: a random text never would."""
    sent = [
        rim.do("envelope.send", as_=tokens[who], to="agent:guide", text=f"echo hello from {who}")
        for who in ("owner", "member", "guest")
    ]
    ids = [one[kind] for one in sent for kind in ("envelope", "session")]
    people = ["maria", "noor", "gus"]
    return {
        "id": [*ids, *(id_[:8] for id_ in ids)],
        "session": [one["session"] for one in sent],
        "before": ids,
        "reply_to": [one["envelope"] for one in sent],
        "to": ["agent:guide", "agent:clerk", "person:noor"],
        "from": ["agent:guide", "person:maria"],
        "principal": ["agent:clerk", "person:gus"],
        "agent": ["guide", "CLERK"],
        "name": ["guide", "clerk", "zoe", *people],
        "person": people,
        "limit": [1, 10],
        "version": [1, 2],
        "old": [1],
        "status": ["done", "pending"],
        "deliver_at": ["", "+1h"],
        "expires_at": ["", "+2h"],
        "attachments": [[]],
    }


@pytest.fixture(scope="module")
def document(rim: Rim) -> Any:
    """The owner's, who is told of every operation."""
    answer = rim.ask("GET", "/api/openapi.json", token=rim.token)
    assert answer.status == 200
    loaded = schemathesis.openapi.from_dict(answer.json)
    loaded.config.update(base_url=rim.address)
    return loaded


# What ends the tests themselves, or other people's: tried elsewhere, by hand.
LEFT_ALONE = {"token.revoke", "token.rotate", "person.forget", "person.role", "agent.delete", "house.backup"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(EXAMPLES_SLOW, marks=pytest.mark.slow)])
def test_nothing_that_is_asked_breaks_the_house_or_its_word(
    examples: int, document: Any, tokens: dict[str, str], pool: dict[str, list[Any]]
) -> None:
    answered = Counter[str]()
    for found in document.get_all_operations():
        operation = found.ok()
        _ask(operation, operation.definition.raw["operationId"], tokens, pool, examples, answered)
    assert {who for who in WHO if answered[who] > 5 * examples} == {*WHO} - {"stranger"}


def _ask(
    operation: Any,
    name: str,
    tokens: dict[str, str],
    pool: dict[str, list[Any]],
    examples: int,
    answered: Counter[str],
) -> None:
    """Ask each example as everyone, one after the other, and count who was answered and not refused."""
    asking = WHO[:-1] if name in LEFT_ALONE else WHO

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=UNHURRIED)
    @given(case=operation.as_strategy(), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        for field in list(case.body) if isinstance(case.body, dict) else []:
            if field in pool and data.draw(st.integers(0, 3)):
                case.body[field] = data.draw(st.sampled_from(pool[field]))
        for who in asking:
            response = case.call(headers={"authorization": f"Bearer {tokens[who]}"})
            assert response.status_code < 500, (name, who, case.body, response.text)
            case.validate_response(response, checks=[status_code_conformance, response_schema_conformance])
            answered[who] += response.status_code == 200
            if who == "stranger":
                assert response.status_code in (401, 429)  # by and by, locked out
            if who != "owner":
                assert SECRET not in response.text, (name, who)
            if response.status_code >= 400:
                error = json.loads(response.text)["error"]
                assert error["code"] and error["sentence"], error

    ask()


def test_a_house_that_was_asked_everything_still_keeps_its_books(rim: Rim, tokens: dict[str, str]) -> None:
    assert rim.do("house.ledger")["holds"]
    assert "Traceback" not in Path(f"{rim.process.home}.log").read_text()
