"""The parts of the check."""

from __future__ import annotations

import sys

import pytest

from scripts import timed


@pytest.mark.parametrize(("code", "verdict"), [(0, "ok"), (3, "failed")])
def test_a_part_says_all_it_has_to_say_and_how_it_ended(
    code: int, verdict: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; print('one'); print('two', file=sys.stderr); sys.exit({code})"

    assert timed.main(["part", sys.executable, "-c", script]) == code
    out = capfd.readouterr().out
    assert set(out.splitlines()[:2]) == {"one", "two"}
    assert out.splitlines()[2].startswith(f"part: {verdict}, ")
