"""Generated files that are not current are reported."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from retinue.operations import generate_reference as operations
from retinue.operations.catalog import OPERATIONS
from scripts import generate


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one generated file and its generator."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "maker.py").write_text("from pathlib import Path\nPath('made.txt').write_text('new')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "GENERATORS", ("maker", "no_such_generator_yet"))
    return tmp_path


def test_a_stale_generated_file_is_reported_and_regenerated(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "made.txt").write_text("old")

    assert generate.main(["--check"]) == 1
    assert "error: made.txt was not current; it is now" in capsys.readouterr().out
    assert (repository / "made.txt").read_text() == "new"
    assert generate.main(["--check"]) == 0


def test_a_missing_generated_file_is_reported(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 1
    assert "made.txt" in capsys.readouterr().out


def test_the_generate_script_exits_with_0_without_check(repository: Path) -> None:
    assert generate.main([]) == 0
    assert (repository / "made.txt").read_text() == "new"


def test_the_generated_operation_table_is_up_to_date() -> None:
    assert operations.OPERATION_TABLE.read_text() == operations.render_operation_table(OPERATIONS.values())
