"""Idempotency keys of operations: a repeated request has its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


@pytest.mark.spec("C91")
async def test_a_request_with_an_idempotency_key_has_its_effect_once(server: OperationsServer) -> None:
    first = await server.ask(MARIA, "token.create", once="k1", label="a")
    again = await server.ask(MARIA, "token.create", once="k1", label="a")
    assert again == {key: value for key, value in first.items() if key != "token"} | {"shown_once": ["token"]}
    assert first["token"] not in str(await server.server.execute_sql("SELECT * FROM idempotency_keys"))
    assert len((await server.ask(MARIA, "token.list"))["tokens"]) == 1
    with pytest.raises(Conflict) as reused:
        await server.ask(MARIA, "token.create", once="k1", label="b")
    assert reused.value.code == "key.reused"
    with pytest.raises(Conflict):
        await server.ask(MARIA, "token.code", once="k1")
    assert "token" in await server.ask(person("noor"), "token.create", once="k1", label="a")  # keys are per principal


@pytest.mark.spec("H60")
async def test_stored_answers_of_idempotency_keys_contain_no_secret(server: OperationsServer) -> None:
    for name, parameters in (
        ("token.create", {}),
        ("token.code", {}),
        ("person.invite", {"name": "zoe"}),
        ("agent.register", {"name": "zed", "token": True}),
    ):
        await server.ask(OWNER, name, once=f"key of {name}", **parameters)
    rows = await server.server.execute_sql("SELECT body FROM idempotency_keys")
    assert len(rows) == 4
    assert "secret-" not in str(rows)


@pytest.mark.spec("C91")
async def test_a_failed_request_can_be_repeated_with_its_idempotency_key(server: OperationsServer) -> None:
    with pytest.raises(NotFound):
        await server.ask(MARIA, "token.revoke", once="k", id="ffffffff")
    made = await server.ask(MARIA, "token.create")
    assert (await server.ask(MARIA, "token.revoke", once="k", id=made["id"]))["revoked"]
    for key in ("x" * 300, "a\0b"):
        with pytest.raises(Invalid):
            await server.ask(MARIA, "token.create", once=key)


@pytest.mark.spec("C91")
async def test_simultaneous_requests_with_one_idempotency_key_have_one_effect(server: OperationsServer) -> None:
    done = await asyncio.gather(
        *(server.ask(MARIA, "token.create", once="k", label="a") for _ in range(5)), return_exceptions=True
    )
    answers = [answer for answer in done if isinstance(answer, dict)]
    refused = [error for error in done if isinstance(error, Conflict)]
    assert len(answers) + len(refused) == 5
    assert len({answer["id"] for answer in answers}) == 1
    assert len([answer for answer in answers if "token" in answer]) == 1
    assert len((await server.ask(MARIA, "token.list"))["tokens"]) == 1


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64 - 1])
async def test_an_operation_refuses_a_number_outside_64_bits_and_names_its_parameter(
    server: OperationsServer, number: int
) -> None:
    with pytest.raises(Invalid, match=r"invalid parameters") as refused:
        await server.ask(OWNER, "agent.restore", name="ada", version=number)
    assert refused.value.code == "request.invalid" and "version" in refused.value.because
