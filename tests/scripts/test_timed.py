"""Timing the parts of `make check`."""

from __future__ import annotations

import sys

import pytest

from scripts import timed


@pytest.mark.parametrize(("code", "verdict"), [(0, "ok"), (3, "failed")])
def test_a_timed_part_prints_all_output_and_its_verdict(
    code: int, verdict: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; print('one'); print('two', file=sys.stderr); sys.exit({code})"

    assert timed.main(["part", sys.executable, "-c", script]) == code
    out = capfd.readouterr().out
    assert set(out.splitlines()[:2]) == {"one", "two"}
    assert out.splitlines()[2].startswith(f"part: {verdict}, ")
