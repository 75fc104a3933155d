"""Who watches the watchers: a house that is broken on purpose is caught, and the sound one passes the same seeds."""

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
MORE = range(20, 32)  # a bug need not show at once, but it shows
QUICK_SEED = 10  # its ten runs are few and short


@pytest.fixture(autouse=True)
def this_is_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_TEST", "1")


SHOWN_AT_ONCE = frozenset(
    {
        Bug.ACKNOWLEDGE_BEFORE_COMMIT,
        Bug.EPOCH_NOT_CHECKED,
        Bug.SLOT_FIRED_TWICE,
        Bug.NEXT_NOT_MADE,
        Bug.SKIP_NOT_TOLD,
    }
)


def violations(bug: Bug, rules: Collection[str], *, first: int) -> Iterator[InvariantViolation]:
    """What is found wrong, seed by seed, by those rules alone.

    `first` showed the bug soonest. Once the engine has changed it may not show it any more, and then the others do.
    """
    runs = RUNS if bug in SHOWN_AT_ONCE else 3 * RUNS  # not every run hands work on, or is cut off in a call
    for seed in dict.fromkeys((first, *SEEDS, *MORE)):
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
        (Bug.SLOT_FIRED_TWICE, "slots", 21),
        (Bug.NEXT_NOT_MADE, "armed", 5),
        (Bug.SKIP_NOT_TOLD, "slots", 20),
    ],
)
def test_a_planted_bug_is_caught_in_the_act(bug: Bug, rule: str, first: int) -> None:
    caught = next(violations(bug, RULES, first=first))
    assert caught.rule == rule


@pytest.mark.parametrize(
    ("bug", "rules", "first"),
    [
        (Bug.ACKNOWLEDGE_BEFORE_COMMIT, {"lost"}, 5),
        (Bug.EFFECT_BEFORE_INTENT, {"doubled"}, 39),
        (Bug.EPOCH_NOT_CHECKED, set(RULES) - {"fenced"}, 32),
        (Bug.ANSWER_READ_TWICE, {"handed"}, 31),
        (Bug.ANSWER_TO_ANOTHER_CALL, {"handed"}, 23),
        (Bug.FAILURE_NOT_TOLD, {"ledger"}, 36),
        (Bug.NEXT_NOT_MADE, {"ledger"}, 5),
        (Bug.CALLBACK_HEARD_TWICE, {"doubled"}, 5),
        (Bug.CALLBACK_HEARD_TWICE, {"handed"}, 23),
        (Bug.CALLBACK_TO_ANOTHER_SESSION, {"handed"}, 28),
        (Bug.CALLBACK_TO_ANOTHER_SESSION, {"ledger"}, 28),
    ],
)
def test_a_planted_bug_is_caught_by_its_consequences_alone(bug: Bug, rules: set[str], first: int) -> None:
    """Crashes and zombies really do the damage that the closer look only foresees."""
    caught = next(violations(bug, rules, first=first))
    assert caught.rule in rules


def takes_any_answer_for_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_to = ApprovalAnswers.state_of

    def hopeful(self: ApprovalAnswers, call: Call) -> ApprovalState | None:
        return ApprovalState.ALLOWED if answer_to(self, call) is not None else None

    monkeypatch.setattr(ApprovalAnswers, "state_of", hopeful)


def test_a_call_that_nobody_allowed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    takes_any_answer_for_a_yes(monkeypatch)
    with pytest.raises(InvariantViolation) as caught:
        run_seed(SEEDS[0], runs=10 * RUNS, rules={"unasked"})
    assert caught.value.rule == "unasked"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sound_house_passes_the_seeds_that_catch_the_bugs(seed: int) -> None:
    run_seed(seed, runs=RUNS)


def test_a_violation_says_how_to_see_it_again_and_what_happened_last(capsys: pytest.CaptureFixture[str]) -> None:
    with planted_bug(Bug.ACKNOWLEDGE_BEFORE_COMMIT):
        assert main([str(SEEDS[0]), "--runs", str(RUNS)]) == 1
    told = capsys.readouterr().out
    assert "Violation: receipt: " in told
    assert f"to see it again: python -m retinue.testing.simulation {SEEDS[0]} --runs {RUNS} --trace" in told
    assert "house 1 is open" in told


def code_in_use() -> list[object]:
    """Everything that a bug replaces, as it is now."""
    return [vars(place)[name] for place, name in PATCHED_NAMES]


@pytest.mark.parametrize("bug", list(Bug))
def test_what_a_bug_replaced_is_put_back(bug: Bug) -> None:
    before = code_in_use()
    with planted_bug(bug):
        assert code_in_use() != before
    assert code_in_use() == before


def test_a_bug_is_gone_again_after_the_test() -> None:
    with planted_bug(Bug.EPOCH_NOT_CHECKED), planted_bug(Bug.EFFECT_BEFORE_INTENT):
        pass
    run_seed(SEEDS[0], runs=10)


@pytest.mark.parametrize("bug", list(Bug))
def test_no_bug_can_be_planted_where_it_is_not_a_test(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_TEST")
    before = code_in_use()
    with pytest.raises(Invalid) as refused:
        plant_bug(bug)
    assert refused.value.code == "testing.bug_outside_test"
    with pytest.raises(Invalid), planted_bug(bug):
        pass
    assert code_in_use() == before
    run_seed(QUICK_SEED, runs=10)
