"""Run the fault kit for every connector: faults of the platform, the connection and the server. The matrix is printed
at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.connectors import connector_registry
from retinue.testing.fault_kit import matrix
from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.harness import open_harness
from retinue.testing.fault_kit.matrix import CellResult, MatrixCell, find_invalid_exemptions, format_matrix
from retinue.testing.fault_kit.peer_registry import PEERS, create_peer, find_platforms_without_peer


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("peer_name", PEERS)
async def test_a_connector_loses_and_duplicates_nothing_in_any_fault_case(
    peer_name: str, case: str, tmp_path: Path, fault_matrix: list[MatrixCell]
) -> None:
    cell = await matrix.run_cell(peer_name, create_peer(peer_name), CASES[case], tmp_path)

    fault_matrix.append(cell)
    assert cell.mark is not CellResult.BROKEN, cell.note


@pytest.mark.parametrize("peer_name", ["email", "irc", "telegram"])  # a webhook has no lasting connection
async def test_a_connector_in_the_fault_kit_reports_each_new_connection(peer_name: str, tmp_path: Path) -> None:
    async with open_harness(create_peer(peer_name), tmp_path) as case_harness:
        await case_harness.wait_until_true(
            lambda: case_harness.server.connections_made >= 1, "the server was not notified"
        )
        await case_harness.break_connection()
        before = case_harness.server.connections_made
        await case_harness.break_connection()
        await case_harness.wait_until_true(
            lambda: case_harness.server.connections_made > before, "the server was not notified again"
        )


@pytest.mark.parametrize("peer_name", PEERS)
def test_every_exemption_from_a_fault_case_has_a_reason(peer_name: str) -> None:
    assert find_invalid_exemptions(create_peer(peer_name)) == []


def test_every_platform_has_a_fault_kit_peer() -> None:
    assert find_platforms_without_peer(connector_registry.PLATFORM_NAMES) == []


def test_a_platform_without_a_fault_kit_peer_is_found() -> None:
    assert find_platforms_without_peer([*connector_registry.PLATFORM_NAMES, "pigeon"]) == ["pigeon"]


def test_no_fault_kit_peer_is_exempt_from_half_of_the_fault_cases() -> None:
    for peer_name in PEERS:
        assert len(create_peer(peer_name).exemptions) < len(CASES) / 2 or peer_name.startswith("quiet"), peer_name


def test_an_exemption_from_an_unknown_fault_case_or_without_a_reason_is_invalid() -> None:
    peer_name = create_peer("quiet")
    peer_name.exemptions = {"no-fault": "n/a", "moonlight": "there is no moonlight on a test bench"}  # type: ignore[misc]

    assert find_invalid_exemptions(peer_name) == ["no case named 'moonlight'", "no-fault is exempt without a reason"]


def test_the_fault_matrix_has_a_row_per_case_and_explains_exemptions() -> None:
    cells = [
        MatrixCell("irc", "no-fault", CellResult.HOLDS),
        MatrixCell("irc", "throttled", CellResult.EXEMPT, "it says no number"),
        MatrixCell("mail", "throttled", CellResult.EXEMPT, "it says no number"),
        MatrixCell("mail", "no-fault", CellResult.BROKEN, "lost: a message"),
    ]

    head, *rows = format_matrix(cells)

    assert head.split() == ["irc", "mail"]
    assert rows[0].split() == ["no-fault", "holds", "BROKEN"]
    assert len(rows) == len(CASES) + 2
    assert rows[-2:] == [
        "exempt (irc: throttled; mail: throttled): it says no number",
        "BROKEN (mail: no-fault): lost: a message",
    ]


def test_the_connector_guide_lists_every_fault_case() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/write-a-connector.md").read_text()

    assert [line for line in guide.splitlines() if line.startswith("| `")] == [
        f"| `{case.name}` | {case.fault} |" for case in CASES.values()
    ]
    assert re.search(rf"\b{len(CASES)} cases\b", guide)
