"""Every connector, while its place, its line and its house fail. The matrix is printed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.connectors import connector_registry
from retinue.testing.fault_kit import matrix
from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.harness import open_harness
from retinue.testing.fault_kit.matrix import CellResult, MatrixCell, find_invalid_exemptions, format_matrix
from retinue.testing.fault_kit.peer_registry import PEERS, create_peer, find_platforms_without_peer


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bench", PEERS)
async def test_nothing_is_lost_or_doubled(
    bench: str, case: str, tmp_path: Path, fault_matrix: list[MatrixCell]
) -> None:
    cell = await matrix.run_cell(bench, create_peer(bench), CASES[case], tmp_path)

    fault_matrix.append(cell)
    assert cell.mark is not CellResult.BROKEN, cell.note


@pytest.mark.parametrize("bench", ["email", "irc", "telegram"])  # a webhook keeps no line
async def test_a_line_that_stands_is_told_of_each_time(bench: str, tmp_path: Path) -> None:
    async with open_harness(create_peer(bench), tmp_path) as stage:
        await stage.wait_until_true(lambda: stage.server.connections_made >= 1, "the house was not told")
        await stage.break_connection()
        before = stage.server.connections_made
        await stage.break_connection()
        await stage.wait_until_true(lambda: stage.server.connections_made > before, "the house was not told again")


@pytest.mark.parametrize("bench", PEERS)
def test_no_case_is_left_out_without_a_reason(bench: str) -> None:
    assert find_invalid_exemptions(create_peer(bench)) == []


def test_every_kind_of_connector_has_a_bench() -> None:
    assert find_platforms_without_peer(connector_registry.PLATFORM_NAMES) == []


def test_a_kind_without_a_bench_is_found() -> None:
    assert find_platforms_without_peer([*connector_registry.PLATFORM_NAMES, "pigeon"]) == ["pigeon"]


def test_a_place_is_not_exempt_from_everything() -> None:
    for bench in PEERS:
        assert len(create_peer(bench).exemptions) < len(CASES) / 2 or bench.startswith("quiet"), bench


def test_an_exemption_that_names_no_case_or_gives_no_reason_is_found() -> None:
    bench = create_peer("quiet")
    bench.exemptions = {"calm": "n/a", "moonlight": "there is none in the house of this bench"}  # type: ignore[misc]

    assert find_invalid_exemptions(bench) == ["no case named 'moonlight'", "calm is exempt without a reason"]


def test_the_matrix_has_a_row_for_each_fault_and_says_why() -> None:
    cells = [
        MatrixCell("irc", "calm", CellResult.HOLDS),
        MatrixCell("irc", "throttled", CellResult.EXEMPT, "it says no number"),
        MatrixCell("mail", "throttled", CellResult.EXEMPT, "it says no number"),
        MatrixCell("mail", "calm", CellResult.BROKEN, "lost: a letter"),
    ]

    head, *rows = format_matrix(cells)

    assert head.split() == ["irc", "mail"]
    assert rows[0].split() == ["calm", "holds", "BROKEN"]
    assert len(rows) == len(CASES) + 2
    assert rows[-2:] == [
        "exempt (irc: throttled; mail: throttled): it says no number",
        "BROKEN (mail: calm): lost: a letter",
    ]


def test_the_guide_names_every_case() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/write-a-connector.md").read_text()

    assert [line for line in guide.splitlines() if line.startswith("| `")] == [
        f"| `{case.name}` | {case.fault} |" for case in CASES.values()
    ]
    assert f"plays {len(CASES)} cases" in guide
