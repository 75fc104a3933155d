"""Random valid and invalid requests to every operation, from callers of every role: no internal error, no response that
the OpenAPI document does not describe, and no data of other people.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from api.tcp_server import ApiClient, open_api_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from retinue.testing.wait_conditions import WAIT_LIMIT_S

SECRET = "the key is under the third flowerpot"
EXAMPLES = 3  # for each operation
EXAMPLES_SLOW = 40
CALLERS = ("stranger", "guest", "agent", "member", "owner")  # the owner last, who can change the most
LIMITS = """
[server.limits]
requests_per_minute = 1000000
envelopes_per_minute = 1000000
sign_in_attempts_max = 1000
"""

SUPPRESSED_CHECKS = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]

load_all_checks()


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("fuzz"), LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(api_client: ApiClient) -> dict[str, str]:
    """The tokens of all callers, and a private conversation of maria."""
    maria = api_client.member("maria")
    api_client.do("envelope.send", as_=maria, to="agent:guide", text=f"echo {SECRET}")
    guest = api_client.do("person.invite", name="gus", role="guest")["invitation"]
    joined = api_client.ask("POST", "/api/join", {"invitation": guest}).json
    found = {
        "owner": api_client.token,
        "member": api_client.member("noor"),
        "guest": joined["token"],
        "agent": api_client.do("token.create", principal="agent:clerk")["token"],
        "stranger": "x" * 43,
    }
    for who in CALLERS[1:]:
        api_client.do("person.whoami", as_=found[who])  # before the lockout of the stranger locks this address
    return found


@pytest.fixture(scope="module")
def pool(api_client: ApiClient, tokens: dict[str, str]) -> dict[str, list[Any]]:
    """Existing ids and names for parameters: random texts would never match one."""
    sent = [
        api_client.do("envelope.send", as_=tokens[who], to="agent:guide", text=f"echo hello from {who}")
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
def document(api_client: ApiClient) -> Any:
    """The OpenAPI document for the owner, which has every operation."""
    answer = api_client.ask("GET", "/api/openapi.json", token=api_client.token)
    assert answer.status == 200
    loaded = schemathesis.openapi.from_dict(answer.json)
    loaded.config.update(base_url=api_client.address)
    return loaded


# These would break the other tests. They are tested elsewhere.
NOT_TRIED_AS_OWNER = {"token.revoke", "token.rotate", "person.forget", "person.role", "agent.delete", "server.backup"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(EXAMPLES_SLOW, marks=pytest.mark.slow)])
def test_no_fuzzed_api_request_causes_a_server_error_an_undocumented_response_or_a_leak(
    examples: int, document: Any, tokens: dict[str, str], pool: dict[str, list[Any]]
) -> None:
    answered = Counter[str]()
    for found in document.get_all_operations():
        operation = found.ok()
        _fuzz_operation(operation, operation.definition.raw["operationId"], tokens, pool, examples, answered)
    assert {who for who in CALLERS if answered[who] > 5 * examples} == {*CALLERS} - {"stranger"}


def _fuzz_operation(
    operation: Any,
    name: str,
    tokens: dict[str, str],
    pool: dict[str, list[Any]],
    examples: int,
    answered: Counter[str],
) -> None:
    """Send each example as every caller, and count the callers whose request was not refused."""
    asking = CALLERS[:-1] if name in NOT_TRIED_AS_OWNER else CALLERS

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=SUPPRESSED_CHECKS)
    @given(case=operation.as_strategy(), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        for field in list(case.body) if isinstance(case.body, dict) else []:
            if field in pool and data.draw(st.integers(0, 3)):
                case.body[field] = data.draw(st.sampled_from(pool[field]))
        for who in asking:
            response = case.call(headers={"authorization": f"Bearer {tokens[who]}"}, timeout=WAIT_LIMIT_S)
            assert response.status_code < 500, (name, who, case.body, response.text)
            case.validate_response(response, checks=[status_code_conformance, response_schema_conformance])
            answered[who] += response.status_code == 200
            if who == "stranger":
                assert response.status_code in (401, 429)  # 429 after the lockout
            if who != "owner":
                assert SECRET not in response.text, (name, who)
            if response.status_code >= 400:
                error = json.loads(response.text)["error"]
                assert error["code"] and error["sentence"], error

    ask()


def test_after_fuzzing_the_ledger_is_consistent_and_the_log_has_no_traceback(
    api_client: ApiClient, tokens: dict[str, str]
) -> None:
    assert api_client.do("server.ledger")["ok"]
    assert "Traceback" not in Path(f"{api_client.process.home}.log").read_text()
