"""The simulation detects planted bugs, and the unchanged server passes the same seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from retinue.domain.approval import ApprovalState
from retinue.domain.errors import Invalid
from retinue.domain.tool import Call
from retinue.engine.journal import ApprovalAnswers
from retinue.testing.invariants import RULES, InvariantViolation
from retinue.testing.planted_bugs import PATCHED_NAMES, Bug, plant_bug, planted_bug
from retinue.testing.simulation import main, run_seed

RUNS = 60
SEEDS = (5, 13)
MORE_SEEDS = range(20, 32)  # some seeds do not show a bug, but these do
QUICK_SEED = 10  # its ten runs are short


@pytest.fixture(autouse=True)
def mark_as_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_TEST", "1")


QUICKLY_DETECTED = frozenset(
    {
        Bug.ACKNOWLEDGE_BEFORE_COMMIT,
        Bug.EPOCH_NOT_CHECKED,
        Bug.SLOT_FIRED_TWICE,
        Bug.NEXT_NOT_MADE,
        Bug.SKIP_NOT_TOLD,
    }
)


def violations(bug: Bug, rules: Collection[str], *, first: int) -> Iterator[InvariantViolation]:
    """Find violations, seed by seed, with the given rules alone.

    The seed `first` shows the bug soonest. After a change of the engine it may not, and then the other seeds are used.
    """
    runs = RUNS if bug in QUICKLY_DETECTED else 3 * RUNS  # not every run delegates or is interrupted in a call
    for seed in dict.fromkeys((first, *SEEDS, *MORE_SEEDS)):
        with planted_bug(bug):
            try:
                run_seed(seed, runs=runs, rules=rules)
            except InvariantViolation as violation:
                yield violation


@pytest.mark.parametrize(
    ("bug", "rule", "first"),
    [
        (Bug.ACKNOWLEDGE_BEFORE_COMMIT, "receipt", 20),
        (Bug.EFFECT_BEFORE_INTENT, "intent", 21),
        (Bug.EPOCH_NOT_CHECKED, "fenced", 32),
        (Bug.SLOT_FIRED_TWICE, "occurrences", 21),
        (Bug.NEXT_NOT_MADE, "armed", 5),
        (Bug.SKIP_NOT_TOLD, "occurrences", 20),
    ],
)
def test_a_planted_bug_is_detected_by_the_invariant_it_violates(bug: Bug, rule: str, first: int) -> None:
    caught = next(violations(bug, RULES, first=first))
    assert caught.rule == rule


@pytest.mark.parametrize(
    ("bug", "rules", "first"),
    [
        (Bug.ACKNOWLEDGE_BEFORE_COMMIT, {"lost"}, 5),
        (Bug.EFFECT_BEFORE_INTENT, {"doubled"}, 39),
        (Bug.EPOCH_NOT_CHECKED, set(RULES) - {"fenced"}, 32),
        (Bug.ANSWER_READ_TWICE, {"delegations"}, 31),
        (Bug.ANSWER_TO_ANOTHER_CALL, {"delegations"}, 23),
        (Bug.FAILURE_NOT_TOLD, {"ledger"}, 36),
        (Bug.NEXT_NOT_MADE, {"ledger"}, 5),
        (Bug.CALLBACK_HEARD_TWICE, {"doubled"}, 5),
        (Bug.CALLBACK_HEARD_TWICE, {"delegations"}, 23),
        (Bug.CALLBACK_TO_ANOTHER_SESSION, {"delegations"}, 28),
        (Bug.CALLBACK_TO_ANOTHER_SESSION, {"ledger"}, 28),
    ],
)
def test_a_planted_bug_is_detected_by_its_consequences_alone(bug: Bug, rules: set[str], first: int) -> None:
    """Crashes and obsolete workers cause the damage that the stricter checks only predict."""
    caught = next(violations(bug, rules, first=first))
    assert caught.rule in rules


def treat_any_answer_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_to = ApprovalAnswers.state_of

    def allow_any_answer(self: ApprovalAnswers, call: Call) -> ApprovalState | None:
        return ApprovalState.ALLOWED if answer_to(self, call) is not None else None

    monkeypatch.setattr(ApprovalAnswers, "state_of", allow_any_answer)


def test_the_simulation_detects_a_planted_call_without_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_any_answer_as_allowed(monkeypatch)
    with pytest.raises(InvariantViolation) as caught:
        run_seed(SEEDS[0], runs=10 * RUNS, rules={"unrequested"})
    assert caught.value.rule == "unrequested"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_server_without_planted_bugs_passes_the_seeds_that_detect_them(seed: int) -> None:
    run_seed(seed, runs=RUNS)


def test_a_violation_by_a_planted_bug_prints_the_command_to_repeat_it_and_the_last_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted_bug(Bug.ACKNOWLEDGE_BEFORE_COMMIT):
        assert main([str(SEEDS[0]), "--runs", str(RUNS)]) == 1
    told = capsys.readouterr().out
    assert "Violation: receipt: " in told
    assert f"to see it again: python -m retinue.testing.simulation {SEEDS[0]} --runs {RUNS} --trace" in told
    assert "server 1 is open" in told


def read_patched_code() -> list[object]:
    """The current values of all names that bugs replace."""
    return [vars(place)[name] for place, name in PATCHED_NAMES]


@pytest.mark.parametrize("bug", list(Bug))
def test_removing_a_planted_bug_restores_the_code(bug: Bug) -> None:
    before = read_patched_code()
    with planted_bug(bug):
        assert read_patched_code() != before
    assert read_patched_code() == before


def test_a_seed_passes_after_planted_bugs_were_removed() -> None:
    with planted_bug(Bug.EPOCH_NOT_CHECKED), planted_bug(Bug.EFFECT_BEFORE_INTENT):
        pass
    run_seed(SEEDS[0], runs=10)


@pytest.mark.parametrize("bug", list(Bug))
def test_a_bug_cannot_be_planted_outside_tests(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_TEST")
    before = read_patched_code()
    with pytest.raises(Invalid) as refused:
        plant_bug(bug)
    assert refused.value.code == "testing.bug_outside_test"
    with pytest.raises(Invalid), planted_bug(bug):
        pass
    assert read_patched_code() == before
    run_seed(QUICK_SEED, runs=10)
