"""What is tried after a failure, by reason, credential and model, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.model import ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.session import SessionOptions
from retinue.models.credential_order import keep_credential, order_credentials, release_credential
from retinue.models.errors import ConfiguredLimitReached
from retinue.models.fallback import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    COMPACTIONS_MAX,
    FAILURE_TEXTS,
    WAIT_MAX_S,
    FallbackPlan,
    build_fallback_plan,
    describe_plan,
)
from retinue.models.fallback_actions import (
    CompactAction,
    FallbackKind,
    GiveUpAction,
    NextCredentialAction,
    NextModelAction,
    RetryAction,
)
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import CredentialCooldowns

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BIG, SMALL, OTHER = ModelRef("acme", "big"), ModelRef("acme", "small"), ModelRef("rival", "large")
LOCAL, GUIDE = ModelRef("mine", "llama"), ModelRef("", "guide")
A = Credential(id="acme:a", provider="acme", source="env:A")
B = Credential(id="acme:b", provider="acme", source="env:B")
R = Credential(id="rival:env", provider="rival", source="env:R")
ALL_CREDENTIALS = (A, B, R)
CREDENTIAL_FAILURES = frozenset(
    {ModelFailureKind.AUTH, ModelFailureKind.PERMISSION, ModelFailureKind.QUOTA, ModelFailureKind.RATE_LIMIT}
)


def make_plan(
    *chain: ModelRef,
    credentials: Sequence[Credential] = ALL_CREDENTIALS,
    states: CredentialCooldowns | None = None,
    options: SessionOptions | None = None,
    retries_max: int = 2,
) -> FallbackPlan:
    return build_fallback_plan(
        chain,
        lambda provider: [each for each in credentials if each.provider == provider],
        states or CredentialCooldowns(),
        options or SessionOptions(),
        needs_key=lambda provider: provider != "mine",
        retries_max=retries_max,
        now=NOW,
        random=Random(7),
        explain_none=lambda provider: f"no API key: set {provider.upper()}_API_KEY",
    )


def failure(
    reason: ModelFailureKind, *, retry_after_s: float | None = None, begun: bool = False, says: str = "no"
) -> ModelFailed:
    return ModelFailed(
        says,
        because="it said so",
        code=f"model.{reason}",
        failure=reason,
        retry_after_s=retry_after_s,
        may_be_charged=begun,
    )


def make_cooldowns(
    credential: Credential, reason: ModelFailureKind, *, model: str = "big", at: datetime = NOW, times: int = 1
) -> CredentialCooldowns:
    states = CredentialCooldowns()
    for _ in range(times):
        mark = cooldowns.build_failure_record(credential, model, reason, at=at)
        assert mark is not None
        states = states.with_failure(mark)
    return states


def current_candidate(plan: FallbackPlan) -> tuple[str, str]:
    assert plan.current is not None
    return str(plan.current.ref), plan.current.credential.id if plan.current.credential else ""


def handle_failures(plan: FallbackPlan, *reasons: ModelFailureKind) -> list[str]:
    return [plan.handle_failure(failure(reason), now=NOW).kind for reason in reasons]


# The next action for each failure


@pytest.mark.spec("C107")
@pytest.mark.parametrize(
    "reason", [ModelFailureKind.AUTH, ModelFailureKind.PERMISSION, ModelFailureKind.QUOTA, ModelFailureKind.RATE_LIMIT]
)
def test_a_credential_failure_tries_the_next_credential_and_then_the_next_model(
    reason: ModelFailureKind,
) -> None:
    plan = make_plan(BIG, OTHER)
    assert current_candidate(plan) == ("acme/big", "acme:a")
    first = plan.handle_failure(failure(reason), now=NOW)
    assert isinstance(first, NextCredentialAction)
    assert first.mark is not None and first.mark.credential == A and first.mark.failure is reason
    assert current_candidate(plan) == ("acme/big", "acme:b")
    second = plan.handle_failure(failure(reason), now=NOW)
    assert isinstance(second, NextModelAction) and second.candidate.ref == OTHER
    assert str(BIG) in second.candidate.because and FAILURE_TEXTS[reason] in second.candidate.because


@pytest.mark.spec("C107", "D64")
@pytest.mark.parametrize(
    "reason",
    [
        ModelFailureKind.TIMEOUT,
        ModelFailureKind.NOT_FOUND,
        ModelFailureKind.CONTENT_FILTER,
        ModelFailureKind.BAD_REQUEST,
    ],
)
def test_a_failure_unrelated_to_the_credential_tries_the_next_model_at_once(reason: ModelFailureKind) -> None:
    plan = make_plan(BIG, OTHER)
    action = plan.handle_failure(failure(reason), now=NOW)
    assert isinstance(action, NextModelAction) and action.kind == FallbackKind.NEXT_MODEL == "next_model"
    assert current_candidate(plan) == ("rival/large", "rival:env")
    assert (action.mark is not None) is (reason is ModelFailureKind.TIMEOUT)


@pytest.mark.spec("C107")
@pytest.mark.parametrize("reason", [ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE])
def test_a_context_overflow_is_compacted_and_the_same_model_is_tried_again(reason: ModelFailureKind) -> None:
    plan = make_plan(BIG, OTHER)
    before = current_candidate(plan)
    for _ in range(COMPACTIONS_MAX):
        action = plan.handle_failure(failure(reason), now=NOW)
        assert isinstance(action, CompactAction) and action.kind == "compaction" and action.mark is None
        assert current_candidate(plan) == before
    assert handle_failures(plan, reason, reason) == ["next_model", "give_up"]  # no compaction made it short enough


@pytest.mark.parametrize("reason", [ModelFailureKind.SERVER, ModelFailureKind.OVERLOADED, ModelFailureKind.CONNECTION])
def test_a_transient_failure_is_retried_with_growing_delays_and_then_on_the_next_model(
    reason: ModelFailureKind,
) -> None:
    plan = make_plan(BIG, OTHER, retries_max=4)
    waits = list[float]()
    for _ in range(4):
        action = plan.handle_failure(failure(reason), now=NOW)
        assert isinstance(action, RetryAction) and action.kind == "retry"
        waits.append(action.delay_s)
    assert waits == sorted(waits) and waits[0] >= BACKOFF_MIN_S and waits[-1] <= BACKOFF_MAX_S
    assert handle_failures(plan, reason) == ["next_model"]


def test_the_jitter_of_a_model_retry_delay_uses_the_given_random_source() -> None:
    def backoff_delay_s() -> float:
        return make_plan(BIG).handle_failure(failure(ModelFailureKind.SERVER), now=NOW).delay_s

    assert backoff_delay_s() == backoff_delay_s() != BACKOFF_MIN_S


def test_a_malformed_model_reply_is_retried_once_before_the_next_model_is_tried() -> None:
    assert handle_failures(make_plan(BIG, OTHER), *[ModelFailureKind.MALFORMED] * 4) == [
        "retry",
        "next_model",
        "retry",
        "give_up",
    ]


@pytest.mark.spec("C107")
def test_a_short_retry_after_is_waited_for_and_a_long_one_starts_a_credential_cooldown() -> None:
    plan = make_plan(BIG, OTHER)
    action = plan.handle_failure(failure(ModelFailureKind.RATE_LIMIT, retry_after_s=12.5), now=NOW)
    assert isinstance(action, RetryAction) and 12.5 <= action.delay_s <= BACKOFF_MAX_S and action.mark is None
    action = plan.handle_failure(failure(ModelFailureKind.RATE_LIMIT, retry_after_s=600), now=NOW)
    assert isinstance(action, NextCredentialAction) and action.mark is not None
    assert cooldowns.apply_failure(None, action.mark).until == NOW + timedelta(minutes=10)


def test_a_partly_received_reply_is_retried_before_the_fallback_model_only_if_allowed() -> None:
    cut = failure(ModelFailureKind.CONNECTION, begun=True)
    assert make_plan(BIG, OTHER).handle_failure(cut, now=NOW).kind == "next_model"
    assert make_plan(BIG, OTHER).handle_failure(cut, now=NOW, may_repeat=True).kind == "retry"


def test_a_busy_local_model_server_without_credentials_is_retried() -> None:
    assert handle_failures(make_plan(LOCAL), *[ModelFailureKind.RATE_LIMIT] * 3) == ["retry", "retry", "give_up"]


def test_a_configured_rate_limit_tries_the_next_model_and_marks_no_credential_as_failed() -> None:
    plan = make_plan(BIG, OTHER)
    action = plan.handle_failure(ConfiguredLimitReached("acme", wait_s=61), now=NOW)
    assert isinstance(action, NextModelAction) and action.mark is None
    assert "the next call is possible in 61 seconds" in action.candidate.because


def test_cancellation_is_not_a_model_failure_and_starts_no_fallback() -> None:
    assert not issubclass(asyncio.CancelledError, ModelFailed)  # a plan accepts only `ModelFailed`
    assert not issubclass(asyncio.CancelledError, Exception)  # so no `except Exception` catches it


# Giving up


@pytest.mark.spec("D64")
def test_if_all_models_failed_one_error_lists_each_reason_and_the_next_available_time() -> None:
    plan = make_plan(BIG, OTHER, LOCAL)
    handle_failures(plan, ModelFailureKind.RATE_LIMIT, ModelFailureKind.QUOTA, ModelFailureKind.TIMEOUT)
    action = plan.handle_failure(failure(ModelFailureKind.BAD_REQUEST), now=NOW)
    assert isinstance(action, NextModelAction) and action.delay_s == 60  # it is available first
    action = plan.handle_failure(failure(ModelFailureKind.RATE_LIMIT), now=NOW + timedelta(minutes=1))
    assert isinstance(action, GiveUpAction) and action.kind == "give_up"
    error = action.error
    assert error.code == "model.all_failed"
    assert "acme/big: too many requests (acme:a), the account has no credit left (acme:b)" in error.because
    assert "rival/large: it took too long (rival:env)" in error.because
    assert "mine/llama: it rejected the request: it said so" in error.because  # the provider's own text
    assert "acme/big is available again at 2026-03-01T12:06:00+00:00" in error.because
    assert error.retry_after_s == 300 and "retinue" in error.try_this


def test_a_fallback_plan_with_a_single_model_raises_the_error_of_that_model() -> None:
    action = make_plan(OTHER).handle_failure(
        failure(ModelFailureKind.BAD_REQUEST, says="rival wants no such thing"), now=NOW
    )
    assert isinstance(action, GiveUpAction)
    assert (action.error.sentence, action.error.code) == ("rival wants no such thing", "model.bad_request")
    slow = make_plan(OTHER).handle_failure(failure(ModelFailureKind.TIMEOUT), now=NOW)
    assert isinstance(slow, GiveUpAction) and slow.mark is not None
    assert slow.error.because == "it said so; rival/large is available again at 2026-03-01T12:01:00+00:00"


def test_the_error_of_a_fallback_plan_names_no_time_to_retry_a_rejected_key() -> None:
    action = make_plan(OTHER).handle_failure(failure(ModelFailureKind.AUTH), now=NOW)
    assert isinstance(action, GiveUpAction) and "available again" not in action.error.because


def test_a_fallback_plan_without_a_key_calls_no_model_and_its_error_names_the_variable() -> None:
    plan = make_plan(BIG, credentials=())
    assert plan.current is None
    error = plan.build_error(NOW)
    assert error.code == "model.all_failed" and "set ACME_API_KEY" in error.because


def test_a_fallback_plan_needs_no_key_for_built_in_and_local_models() -> None:
    assert current_candidate(make_plan(GUIDE)) == ("guide", "")
    assert current_candidate(make_plan(LOCAL)) == ("mine/llama", "")


# Cooldowns


@pytest.mark.spec("C35")
def test_a_fallback_plan_skips_a_provider_with_all_credentials_in_cooldown_and_says_why() -> None:
    states = CredentialCooldowns(
        [
            *make_cooldowns(A, ModelFailureKind.QUOTA).cooldowns,
            *make_cooldowns(B, ModelFailureKind.RATE_LIMIT, times=2).cooldowns,
        ]
    )
    plan = make_plan(BIG, OTHER, states=states)
    assert current_candidate(plan) == ("rival/large", "rival:env")
    assert plan.current is not None and "acme:a is in cooldown until 2026-03-01T17:00:00" in plan.current.because
    assert "acme:b is in cooldown until 2026-03-01T12:05:00" in plan.current.because


def test_a_fallback_plan_waits_for_a_short_cooldown_of_its_only_credential() -> None:
    plan = make_plan(
        OTHER, states=make_cooldowns(R, ModelFailureKind.RATE_LIMIT, model="large", at=NOW - timedelta(seconds=20))
    )
    assert plan.current is not None and plan.current.wait_s == 40
    later = NOW + timedelta(seconds=40)
    action = plan.handle_failure(failure(ModelFailureKind.RATE_LIMIT), now=later)
    assert isinstance(action, GiveUpAction) and action.error.retry_after_s == 300  # five minutes are too long to wait


@pytest.mark.spec("C38")
def test_a_fallback_plan_neither_waits_for_nor_clears_a_long_cooldown() -> None:
    plan = make_plan(OTHER, states=make_cooldowns(R, ModelFailureKind.QUOTA))
    assert plan.current is None
    assert "rival/large is available again at 2026-03-01T17:00:00+00:00" in plan.build_error(NOW).because


@pytest.mark.spec("C38")
def test_a_model_failure_without_a_fallback_still_starts_a_cooldown() -> None:
    """Without another model to use, a cooldown that was just stored was once cleared again."""
    action = make_plan(OTHER).handle_failure(failure(ModelFailureKind.QUOTA), now=NOW)
    assert isinstance(action, GiveUpAction)
    assert action.mark is not None and action.mark.failure is ModelFailureKind.QUOTA


def test_after_a_rate_limit_of_one_model_the_fallback_tries_another_model_of_its_provider() -> None:
    plan = make_plan(BIG, SMALL, credentials=(A,))
    assert handle_failures(plan, ModelFailureKind.RATE_LIMIT) == ["next_model"]
    assert current_candidate(plan) == ("acme/small", "acme:a")


def test_the_fallback_does_not_try_a_rejected_key_with_another_model() -> None:
    plan = make_plan(BIG, SMALL, OTHER, credentials=(A, R))
    assert handle_failures(plan, ModelFailureKind.AUTH) == ["next_model"]
    assert current_candidate(plan) == ("rival/large", "rival:env")


# Order and session options


def ordered_ids(
    *credentials: Credential, states: CredentialCooldowns | None = None, options: SessionOptions | None = None
) -> list[str]:
    found = order_credentials(
        credentials, states or CredentialCooldowns(), model="big", session_options=options or SessionOptions(), now=NOW
    )
    return [f"{each.agent}/{each.id}" if each.agent else each.id for each in found]


def credential(
    name: str,
    *,
    kind: CredentialKind = CredentialKind.API_KEY,
    agent: str = "",
    position: int | None = None,
    used_h: int | None = None,
) -> Credential:
    used_at = None if used_h is None else NOW - timedelta(hours=used_h)
    return Credential(
        id=f"acme:{name}", provider="acme", source="env:X", kind=kind, agent=agent, position=position, used_at=used_at
    )


@pytest.mark.spec("C35")
def test_in_the_credential_order_tokens_precede_keys_and_the_least_recently_used_comes_first() -> None:
    token = credential("token", kind=CredentialKind.TOKEN, used_h=1)
    old, new, never = credential("old", used_h=9), credential("new", used_h=2), credential("never")
    assert ordered_ids(new, old, token, never) == ["acme:token", "acme:never", "acme:old", "acme:new"]


@pytest.mark.spec("C35")
def test_a_configured_credential_order_is_kept_with_cooldowns_last() -> None:
    one, two, three = (credential(name, position=place) for place, name in enumerate(("c", "b", "a")))
    rest = credential("rest", kind=CredentialKind.TOKEN)
    assert ordered_ids(rest, three, one, two) == ["acme:c", "acme:b", "acme:a", "acme:rest"]
    states = CredentialCooldowns(
        [
            *make_cooldowns(one, ModelFailureKind.QUOTA).cooldowns,
            *make_cooldowns(two, ModelFailureKind.RATE_LIMIT).cooldowns,
        ]
    )
    assert ordered_ids(one, two, three, states=states) == ["acme:a", "acme:b", "acme:c"]


@pytest.mark.spec("C35", "C106")
def test_credentials_of_the_agent_are_ordered_before_shared_ones() -> None:
    mine, server = credential("x", agent="ada", used_h=1), credential("y", kind=CredentialKind.TOKEN, position=0)
    assert ordered_ids(server, mine) == ["ada/acme:x", "acme:y"]
    assert ordered_ids(server, mine, states=make_cooldowns(mine, ModelFailureKind.RATE_LIMIT)) == [
        "acme:y",
        "ada/acme:x",
    ]


@pytest.mark.spec("C36")
def test_a_session_keeps_its_credential_until_its_cooldown_or_release() -> None:
    options = keep_credential(SessionOptions(), B)
    assert options == SessionOptions(credential="acme:b")
    assert current_candidate(make_plan(BIG, options=options)) == ("acme/big", "acme:b")
    assert current_candidate(
        make_plan(BIG, options=options, states=make_cooldowns(B, ModelFailureKind.RATE_LIMIT))
    ) == ("acme/big", "acme:a")
    assert release_credential(options) == SessionOptions()  # after a reset or a compaction
    assert keep_credential(options, B) is options and keep_credential(options, None) is options


@pytest.mark.spec("C36")
def test_a_pinned_credential_is_never_replaced_and_its_failure_tries_the_next_model() -> None:
    options = SessionOptions(credential="acme:b", pinned=True)
    assert keep_credential(options, A) is options and release_credential(options) is options
    plan = make_plan(BIG, OTHER, options=options)
    assert current_candidate(plan) == ("acme/big", "acme:b")
    assert handle_failures(plan, ModelFailureKind.RATE_LIMIT) == ["next_model"]
    assert current_candidate(plan) == ("rival/large", "rival:env")
    assert current_candidate(
        make_plan(BIG, OTHER, options=options, states=make_cooldowns(B, ModelFailureKind.AUTH))
    ) == ("rival/large", "rival:env")


@pytest.mark.spec("C36")
def test_a_missing_pinned_credential_is_reported_and_not_replaced_by_a_fallback_plan() -> None:
    plan = make_plan(BIG, options=SessionOptions(credential="acme:gone", pinned=True))
    assert plan.current is None
    assert "acme:gone was chosen for this session" in plan.build_error(NOW).because


def test_a_described_fallback_plan_lists_each_candidate_with_its_reason() -> None:
    plan = make_plan(BIG, ModelRef("nobody", "x"), OTHER, states=make_cooldowns(A, ModelFailureKind.OVERLOADED))
    assert describe_plan(plan, NOW) == [
        "acme/big with acme:b: acme:a is in cooldown until 2026-03-01T12:01:00+00:00: it is overloaded",
        "nobody/x: not now, no API key: set NOBODY_API_KEY",
        "rival/large with rival:env: if those before it fail",
    ]


# Properties


@st.composite
def failures(draw: st.DrawFn) -> ModelFailed:
    return failure(
        draw(st.sampled_from(list(ModelFailureKind))),
        retry_after_s=draw(st.none() | st.floats(0, 1e6)),
        begun=draw(st.booleans()),
    )


@given(data=st.data())
def test_any_sequence_of_model_failures_ends_and_available_candidates_precede_cooldowns(data: st.DataObject) -> None:
    refs = data.draw(st.lists(st.sampled_from([BIG, SMALL, OTHER, LOCAL, GUIDE]), min_size=1, max_size=5))
    held = data.draw(st.lists(st.sampled_from(ALL_CREDENTIALS), unique=True))
    states = CredentialCooldowns()
    for each in data.draw(st.lists(st.sampled_from(ALL_CREDENTIALS), max_size=4)):
        model, reason = (
            data.draw(st.sampled_from(["big", "small", "large"])),
            data.draw(st.sampled_from(list(ModelFailureKind))),
        )
        if mark := cooldowns.build_failure_record(
            each, model, reason, at=NOW - timedelta(seconds=data.draw(st.integers(0, 400)))
        ):
            states = states.with_failure(mark)
    options = data.draw(
        st.sampled_from(
            [SessionOptions(), SessionOptions(credential="acme:b"), SessionOptions(credential="acme:b", pinned=True)]
        )
    )
    retries_max = data.draw(st.integers(0, 3))
    plan = make_plan(*refs, credentials=held, states=states, options=options, retries_max=retries_max)
    now, calls, error, cooled = NOW, 0, None, True
    tried, done_with = set[tuple[ModelRef, Credential | None]](), set[ModelRef]()
    while (candidate := plan.current) is not None and error is None:
        calls += 1
        assert calls <= (len(ALL_CREDENTIALS) + 2) * len(refs) * 2 * (retries_max + 1) + COMPACTIONS_MAX
        assert 0 <= candidate.wait_s <= WAIT_MAX_S
        if candidate.wait_s and cooled:  # then no candidate was available at once
            for ref in refs:
                own = [each for each in held if each.provider == ref.provider and _may_use(options, each)]
                fresh = [each for each in own if states.find_active(each, ref.model, now) is None]
                assert ref in done_with or all((ref, each) in tried for each in fresh)
        now += timedelta(seconds=candidate.wait_s)
        if candidate.credential is not None:
            assert candidate.credential in held and _may_use(options, candidate.credential)
            assert (
                states.find_active(candidate.credential, candidate.ref.model, now) is None
            )  # not called during its cooldown
        tried.add((candidate.ref, candidate.credential))
        if data.draw(st.integers(0, 9)) == 0:
            return  # it replied
        now += timedelta(seconds=data.draw(st.integers(0, 200)))
        failed = data.draw(failures())
        action = plan.handle_failure(failed, now=now, may_repeat=data.draw(st.booleans()))
        if action.mark is not None:
            assert action.mark.credential == candidate.credential
            states = states.with_failure(action.mark)
        if isinstance(action, RetryAction):
            assert 0 < action.delay_s <= WAIT_MAX_S and plan.current is not None
            assert (plan.current.ref, plan.current.credential) == (candidate.ref, candidate.credential)
        elif not isinstance(action, CompactAction) and failed.failure not in CREDENTIAL_FAILURES:
            done_with.add(candidate.ref)
        if isinstance(action, GiveUpAction):
            error = action.error
        else:
            assert plan.current is not None and plan.current.wait_s == action.delay_s
        cooled = action.mark is not None or not isinstance(action, RetryAction)
    error = error or plan.build_error(now)
    assert error.because and error.sentence
    if len(set(refs)) > 1:
        assert error.code == "model.all_failed"
        assert all(f"{ref}: " in error.because for ref in refs) and "not asked" not in error.because


def _may_use(options: SessionOptions, credential: Credential) -> bool:
    return not options.pinned or credential.provider != "acme" or credential.id == options.credential
