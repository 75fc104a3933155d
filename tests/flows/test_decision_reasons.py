"""Why a call was allowed (rule, grant or approval), in its audit entry and in the explanation of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flows.approval_instance import (
    OWNER,
    append_line_instruction,
    asking_instance,
    follow_instruction,
    send_and_wait_for_approval,
)
from operations.operations_instance import OperationsServer, open_operations_server

from retinue.store.runs.explanations import explain


async def list_allow_reasons(operations: OperationsServer) -> list[str]:
    """The reason of each allowed call, oldest first."""
    found: dict[str, Any] = await operations.ask(OWNER, "audit.list", kind="call-allowed")
    return [each["because"] for each in reversed(found["entries"])]


async def explain_envelope(operations: OperationsServer, envelope: str) -> list[str]:
    found = await operations.server.store.scan(lambda conn: explain(conn, id_text=envelope))
    return [told.partition("  ")[2] for told in found.format_lines(ZoneInfo("UTC"))]


async def test_the_recorded_reason_of_a_decision_can_be_that_no_rule_denies_the_call(tmp_path: Path) -> None:
    instance = asking_instance(tmp_path, ask=())
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        receipt = await operations.server.send(append_line_instruction("one"), sender="person:owner")
        await operations.server.wait_for_outcome(receipt.envelope)
        assert await list_allow_reasons(operations) == ["no rule denies it"]
        assert "Turn 1: append_line (no rule denies it) returned in 0 ms." in await explain_envelope(
            operations, receipt.envelope
        )


async def test_the_reason_of_a_decision_is_the_approval_of_a_call_and_the_grant_of_a_later_one(tmp_path: Path) -> None:
    instance = asking_instance(tmp_path)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        envelope, approval = await send_and_wait_for_approval(
            operations.server, append_line_instruction("one"), sender="person:owner"
        )
        assert await list_allow_reasons(operations) == [], "the call is not allowed yet"
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
        await operations.server.wait_for_outcome(envelope)
        yes = f"approval {approval[:8]} allows it"
        assert await list_allow_reasons(operations) == [yes]
        assert f"Turn 1: append_line ({yes}) returned in 0 ms." in await explain_envelope(operations, envelope)

        await operations.server.wait_for_outcome(
            (await operations.server.send(append_line_instruction("two"), sender="person:owner")).envelope
        )
        assert await list_allow_reasons(operations) == [yes, "tool:append_line was granted"]


async def test_the_recorded_reason_of_a_decision_after_a_late_approval_is_that_approval(tmp_path: Path) -> None:
    instance = asking_instance(tmp_path)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        envelope, approval = await send_and_wait_for_approval(
            operations.server, append_line_instruction("one"), sender="person:owner"
        )
        later = await operations.server.send("go on", sender="person:owner")
        await operations.server.wait_for_outcome(later.envelope)
        await operations.server.wait_for_outcome(envelope)
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
        await operations.server.wait_until_idle()
        assert await list_allow_reasons(operations) == [f"approval {approval[:8]} allows it"]
