"""What is tried next: by reason, by credential, by model, and never for ever."""

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
ALL = (A, B, R)
BLAME = frozenset(
    {ModelFailureKind.AUTH, ModelFailureKind.PERMISSION, ModelFailureKind.QUOTA, ModelFailureKind.RATE_LIMIT}
)


def made(
    *chain: ModelRef,
    credentials: Sequence[Credential] = ALL,
    states: CredentialCooldowns | None = None,
    mind: SessionOptions | None = None,
    retries_max: int = 2,
) -> FallbackPlan:
    return build_fallback_plan(
        chain,
        lambda provider: [each for each in credentials if each.provider == provider],
        states or CredentialCooldowns(),
        mind or SessionOptions(),
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


def cooling(
    credential: Credential, reason: ModelFailureKind, *, model: str = "big", at: datetime = NOW, times: int = 1
) -> CredentialCooldowns:
    states = CredentialCooldowns()
    for _ in range(times):
        mark = cooldowns.build_failure_record(credential, model, reason, at=at)
        assert mark is not None
        states = states.with_failure(mark)
    return states


def asked(going: FallbackPlan) -> tuple[str, str]:
    assert going.current is not None
    return str(going.current.ref), going.current.credential.id if going.current.credential else ""


def moves(going: FallbackPlan, *reasons: ModelFailureKind) -> list[str]:
    return [going.handle_failure(failure(reason), now=NOW).kind for reason in reasons]


# Each failure has its next step


@pytest.mark.spec("C107")
@pytest.mark.parametrize(
    "reason", [ModelFailureKind.AUTH, ModelFailureKind.PERMISSION, ModelFailureKind.QUOTA, ModelFailureKind.RATE_LIMIT]
)
def test_what_a_credential_is_to_blame_for_goes_to_the_next_one_and_then_to_the_next_model(
    reason: ModelFailureKind,
) -> None:
    going = made(BIG, OTHER)
    assert asked(going) == ("acme/big", "acme:a")
    first = going.handle_failure(failure(reason), now=NOW)
    assert isinstance(first, NextCredentialAction)
    assert first.mark is not None and first.mark.credential == A and first.mark.failure is reason
    assert asked(going) == ("acme/big", "acme:b")
    second = going.handle_failure(failure(reason), now=NOW)
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
def test_what_no_credential_can_help_goes_to_the_next_model_at_once(reason: ModelFailureKind) -> None:
    going = made(BIG, OTHER)
    verdict = going.handle_failure(failure(reason), now=NOW)
    assert isinstance(verdict, NextModelAction) and verdict.kind == FallbackKind.NEXT_MODEL == "next-model"
    assert asked(going) == ("rival/large", "rival:env")
    assert (verdict.mark is not None) is (reason is ModelFailureKind.TIMEOUT)


@pytest.mark.spec("C107")
@pytest.mark.parametrize("reason", [ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE])
def test_a_context_that_is_too_long_is_made_shorter_and_the_same_model_is_asked(reason: ModelFailureKind) -> None:
    going = made(BIG, OTHER)
    before = asked(going)
    for _ in range(COMPACTIONS_MAX):
        verdict = going.handle_failure(failure(reason), now=NOW)
        assert isinstance(verdict, CompactAction) and verdict.kind == "compaction" and verdict.mark is None
        assert asked(going) == before
    assert moves(going, reason, reason) == ["next-model", "give-up"]  # nothing made it short enough


@pytest.mark.parametrize("reason", [ModelFailureKind.SERVER, ModelFailureKind.OVERLOADED, ModelFailureKind.CONNECTION])
def test_a_passing_failure_is_tried_again_after_a_growing_wait_and_then_elsewhere(reason: ModelFailureKind) -> None:
    going = made(BIG, OTHER, retries_max=4)
    waits = list[float]()
    for _ in range(4):
        verdict = going.handle_failure(failure(reason), now=NOW)
        assert isinstance(verdict, RetryAction) and verdict.kind == "again"
        waits.append(verdict.delay_s)
    assert waits == sorted(waits) and waits[0] >= BACKOFF_MIN_S and waits[-1] <= BACKOFF_MAX_S
    assert moves(going, reason) == ["next-model"]


def test_the_jitter_of_a_wait_comes_from_the_chance_that_was_handed_in() -> None:
    def waited() -> float:
        return made(BIG).handle_failure(failure(ModelFailureKind.SERVER), now=NOW).delay_s

    assert waited() == waited() != BACKOFF_MIN_S


def test_a_malformed_reply_is_asked_for_once_more() -> None:
    assert moves(made(BIG, OTHER), *[ModelFailureKind.MALFORMED] * 4) == ["again", "next-model", "again", "give-up"]


@pytest.mark.spec("C107")
def test_a_short_wait_that_a_provider_asks_for_is_waited_and_a_long_one_is_a_cooldown() -> None:
    going = made(BIG, OTHER)
    verdict = going.handle_failure(failure(ModelFailureKind.RATE_LIMIT, retry_after_s=12.5), now=NOW)
    assert isinstance(verdict, RetryAction) and 12.5 <= verdict.delay_s <= BACKOFF_MAX_S and verdict.mark is None
    verdict = going.handle_failure(failure(ModelFailureKind.RATE_LIMIT, retry_after_s=600), now=NOW)
    assert isinstance(verdict, NextCredentialAction) and verdict.mark is not None
    assert cooldowns.apply_failure(None, verdict.mark).until == NOW + timedelta(minutes=10)


def test_a_reply_that_was_seen_in_part_is_not_asked_of_the_same_model_unless_the_caller_allows_it() -> None:
    cut = failure(ModelFailureKind.CONNECTION, begun=True)
    assert made(BIG, OTHER).handle_failure(cut, now=NOW).kind == "next-model"
    assert made(BIG, OTHER).handle_failure(cut, now=NOW, may_repeat=True).kind == "again"


def test_a_server_of_ones_own_that_is_busy_is_given_time() -> None:
    assert moves(made(LOCAL), *[ModelFailureKind.RATE_LIMIT] * 3) == ["again", "again", "give-up"]


def test_our_own_limit_blames_no_credential() -> None:
    going = made(BIG, OTHER)
    verdict = going.handle_failure(ConfiguredLimitReached("acme", wait_s=61), now=NOW)
    assert isinstance(verdict, NextModelAction) and verdict.mark is None
    assert "the next call is possible in 61 seconds" in verdict.candidate.because


def test_a_cancelled_call_is_no_failure() -> None:
    assert not issubclass(asyncio.CancelledError, ModelFailed)  # and a plan takes nothing else
    assert not issubclass(asyncio.CancelledError, Exception)  # so that nobody takes it for one by accident


# Giving up


@pytest.mark.spec("D64")
def test_when_everything_failed_one_error_says_so_of_each_and_when_to_come_back() -> None:
    going = made(BIG, OTHER, LOCAL)
    moves(going, ModelFailureKind.RATE_LIMIT, ModelFailureKind.QUOTA, ModelFailureKind.TIMEOUT)
    verdict = going.handle_failure(failure(ModelFailureKind.BAD_REQUEST), now=NOW)
    assert isinstance(verdict, NextModelAction) and verdict.delay_s == 60  # the first of all, when it is free again
    verdict = going.handle_failure(failure(ModelFailureKind.RATE_LIMIT), now=NOW + timedelta(minutes=1))
    assert isinstance(verdict, GiveUpAction) and verdict.kind == "give-up"
    error = verdict.error
    assert error.code == "model.all_failed"
    assert "acme/big: too many requests (acme:a), the account has no credit left (acme:b)" in error.because
    assert "rival/large: it took too long (rival:env)" in error.because
    assert "mine/llama: it rejected the request: it said so" in error.because  # the provider's own words
    assert "acme/big is available again at 2026-03-01T12:06:00+00:00" in error.because
    assert error.retry_after_s == 300 and "retinue" in error.try_this


def test_one_that_was_asked_alone_speaks_for_itself() -> None:
    verdict = made(OTHER).handle_failure(
        failure(ModelFailureKind.BAD_REQUEST, says="rival wants no such thing"), now=NOW
    )
    assert isinstance(verdict, GiveUpAction)
    assert (verdict.error.sentence, verdict.error.code) == ("rival wants no such thing", "model.bad_request")
    slow = made(OTHER).handle_failure(failure(ModelFailureKind.TIMEOUT), now=NOW)
    assert isinstance(slow, GiveUpAction) and slow.mark is not None
    assert slow.error.because == "it said so; rival/large is available again at 2026-03-01T12:01:00+00:00"


def test_a_refused_key_does_not_become_good_by_waiting() -> None:
    verdict = made(OTHER).handle_failure(failure(ModelFailureKind.AUTH), now=NOW)
    assert isinstance(verdict, GiveUpAction) and "available again" not in verdict.error.because


def test_without_a_key_nobody_is_asked_and_the_error_says_what_to_set() -> None:
    going = made(BIG, credentials=())
    assert going.current is None
    error = going.build_error(NOW)
    assert error.code == "model.all_failed" and "set ACME_API_KEY" in error.because


def test_models_of_the_house_and_servers_of_ones_own_need_no_key() -> None:
    assert asked(made(GUIDE)) == ("guide", "")
    assert asked(made(LOCAL)) == ("mine/llama", "")


# Cooldowns


@pytest.mark.spec("C35")
def test_a_provider_whose_credentials_all_cool_is_skipped_without_a_call_and_said_so() -> None:
    states = CredentialCooldowns(
        [*cooling(A, ModelFailureKind.QUOTA).cooldowns, *cooling(B, ModelFailureKind.RATE_LIMIT, times=2).cooldowns]
    )
    going = made(BIG, OTHER, states=states)
    assert asked(going) == ("rival/large", "rival:env")
    assert going.current is not None and "acme:a is in cooldown until 2026-03-01T17:00:00" in going.current.because
    assert "acme:b is in cooldown until 2026-03-01T12:05:00" in going.current.because


def test_the_only_one_there_is_is_waited_for_when_that_is_short() -> None:
    going = made(OTHER, states=cooling(R, ModelFailureKind.RATE_LIMIT, model="large", at=NOW - timedelta(seconds=20)))
    assert going.current is not None and going.current.wait_s == 40
    later = NOW + timedelta(seconds=40)
    verdict = going.handle_failure(failure(ModelFailureKind.RATE_LIMIT), now=later)
    assert isinstance(verdict, GiveUpAction) and verdict.error.retry_after_s == 300  # five minutes are not waited for


@pytest.mark.spec("C38")
def test_a_cooldown_that_is_long_is_not_waited_for_and_nobody_takes_it_back() -> None:
    going = made(OTHER, states=cooling(R, ModelFailureKind.QUOTA))
    assert going.current is None
    assert "rival/large is available again at 2026-03-01T17:00:00+00:00" in going.build_error(NOW).because


@pytest.mark.spec("C38")
def test_a_failure_without_a_fallback_still_leaves_its_mark() -> None:
    """With no other model to go to, the cooldown that was just written was cleared again."""
    verdict = made(OTHER).handle_failure(failure(ModelFailureKind.QUOTA), now=NOW)
    assert isinstance(verdict, GiveUpAction)
    assert verdict.mark is not None and verdict.mark.failure is ModelFailureKind.QUOTA


def test_a_rate_limit_of_one_model_leaves_the_others_of_that_provider_alone() -> None:
    going = made(BIG, SMALL, credentials=(A,))
    assert moves(going, ModelFailureKind.RATE_LIMIT) == ["next-model"]
    assert asked(going) == ("acme/small", "acme:a")


def test_a_key_that_was_refused_is_not_tried_with_another_model() -> None:
    going = made(BIG, SMALL, OTHER, credentials=(A, R))
    assert moves(going, ModelFailureKind.AUTH) == ["next-model"]
    assert asked(going) == ("rival/large", "rival:env")


# Order, and staying with one


def ordered(
    *credentials: Credential, states: CredentialCooldowns | None = None, mind: SessionOptions | None = None
) -> list[str]:
    found = order_credentials(
        credentials, states or CredentialCooldowns(), model="big", session_options=mind or SessionOptions(), now=NOW
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
def test_tokens_come_before_keys_and_the_longest_unused_first() -> None:
    token = credential("token", kind=CredentialKind.TOKEN, used_h=1)
    old, new, never = credential("old", used_h=9), credential("new", used_h=2), credential("never")
    assert ordered(new, old, token, never) == ["acme:token", "acme:never", "acme:old", "acme:new"]


@pytest.mark.spec("C35")
def test_an_order_that_someone_set_is_kept_and_those_that_cool_come_last_the_soonest_free_first() -> None:
    one, two, three = (credential(name, position=place) for place, name in enumerate(("c", "b", "a")))
    rest = credential("rest", kind=CredentialKind.TOKEN)
    assert ordered(rest, three, one, two) == ["acme:c", "acme:b", "acme:a", "acme:rest"]
    states = CredentialCooldowns(
        [*cooling(one, ModelFailureKind.QUOTA).cooldowns, *cooling(two, ModelFailureKind.RATE_LIMIT).cooldowns]
    )
    assert ordered(one, two, three, states=states) == ["acme:a", "acme:b", "acme:c"]


@pytest.mark.spec("C35", "C106")
def test_an_agents_own_come_before_the_houses() -> None:
    mine, house = credential("x", agent="ada", used_h=1), credential("y", kind=CredentialKind.TOKEN, position=0)
    assert ordered(house, mine) == ["ada/acme:x", "acme:y"]
    assert ordered(house, mine, states=cooling(mine, ModelFailureKind.RATE_LIMIT)) == ["acme:y", "ada/acme:x"]


@pytest.mark.spec("C36")
def test_a_session_stays_with_the_credential_that_served_it_until_that_cools_or_is_let_go() -> None:
    mind = keep_credential(SessionOptions(), B)
    assert mind == SessionOptions(credential="acme:b")
    assert asked(made(BIG, mind=mind)) == ("acme/big", "acme:b")
    assert asked(made(BIG, mind=mind, states=cooling(B, ModelFailureKind.RATE_LIMIT))) == ("acme/big", "acme:a")
    assert release_credential(mind) == SessionOptions()  # a reset, or a compaction
    assert keep_credential(mind, B) is mind and keep_credential(mind, None) is mind


@pytest.mark.spec("C36")
def test_what_a_person_chose_is_never_exchanged_and_when_it_fails_the_next_model_is_asked() -> None:
    mind = SessionOptions(credential="acme:b", pinned=True)
    assert keep_credential(mind, A) is mind and release_credential(mind) is mind
    going = made(BIG, OTHER, mind=mind)
    assert asked(going) == ("acme/big", "acme:b")
    assert moves(going, ModelFailureKind.RATE_LIMIT) == ["next-model"]
    assert asked(going) == ("rival/large", "rival:env")
    assert asked(made(BIG, OTHER, mind=mind, states=cooling(B, ModelFailureKind.AUTH))) == ("rival/large", "rival:env")


@pytest.mark.spec("C36")
def test_a_chosen_one_that_is_gone_is_said_and_not_replaced() -> None:
    going = made(BIG, mind=SessionOptions(credential="acme:gone", pinned=True))
    assert going.current is None
    assert "acme:gone was chosen for this session" in going.build_error(NOW).because


def test_what_would_be_asked_now_is_told_with_its_why() -> None:
    going = made(BIG, ModelRef("nobody", "x"), OTHER, states=cooling(A, ModelFailureKind.OVERLOADED))
    assert describe_plan(going, NOW) == [
        "acme/big with acme:b: acme:a is in cooldown until 2026-03-01T12:01:00+00:00: it is overloaded",
        "nobody/x: not now, no API key: set NOBODY_API_KEY",
        "rival/large with rival:env: if those before it fail",
    ]


# Whatever happens


@st.composite
def failures(draw: st.DrawFn) -> ModelFailed:
    return failure(
        draw(st.sampled_from(list(ModelFailureKind))),
        retry_after_s=draw(st.none() | st.floats(0, 1e6)),
        begun=draw(st.booleans()),
    )


@given(data=st.data())
def test_any_story_ends_and_a_fresh_candidate_always_comes_before_one_that_cools(data: st.DataObject) -> None:
    refs = data.draw(st.lists(st.sampled_from([BIG, SMALL, OTHER, LOCAL, GUIDE]), min_size=1, max_size=5))
    held = data.draw(st.lists(st.sampled_from(ALL), unique=True))
    states = CredentialCooldowns()
    for each in data.draw(st.lists(st.sampled_from(ALL), max_size=4)):
        model, reason = (
            data.draw(st.sampled_from(["big", "small", "large"])),
            data.draw(st.sampled_from(list(ModelFailureKind))),
        )
        if mark := cooldowns.build_failure_record(
            each, model, reason, at=NOW - timedelta(seconds=data.draw(st.integers(0, 400)))
        ):
            states = states.with_failure(mark)
    mind = data.draw(
        st.sampled_from(
            [SessionOptions(), SessionOptions(credential="acme:b"), SessionOptions(credential="acme:b", pinned=True)]
        )
    )
    retries_max = data.draw(st.integers(0, 3))
    going = made(*refs, credentials=held, states=states, mind=mind, retries_max=retries_max)
    now, calls, error, cooled = NOW, 0, None, True
    tried, done_with = set[tuple[ModelRef, Credential | None]](), set[ModelRef]()
    while (candidate := going.current) is not None and error is None:
        calls += 1
        assert calls <= (len(ALL) + 2) * len(refs) * 2 * (retries_max + 1) + COMPACTIONS_MAX
        assert 0 <= candidate.wait_s <= WAIT_MAX_S
        if candidate.wait_s and cooled:  # then there was nobody left who could have been asked at once
            for ref in refs:
                own = [each for each in held if each.provider == ref.provider and _may(mind, each)]
                fresh = [each for each in own if states.find_active(each, ref.model, now) is None]
                assert ref in done_with or all((ref, each) in tried for each in fresh)
        now += timedelta(seconds=candidate.wait_s)
        if candidate.credential is not None:
            assert candidate.credential in held and _may(mind, candidate.credential)
            assert (
                states.find_active(candidate.credential, candidate.ref.model, now) is None
            )  # not asked while it cools
        tried.add((candidate.ref, candidate.credential))
        if data.draw(st.integers(0, 9)) == 0:
            return  # it replied
        now += timedelta(seconds=data.draw(st.integers(0, 200)))
        failed = data.draw(failures())
        verdict = going.handle_failure(failed, now=now, may_repeat=data.draw(st.booleans()))
        if verdict.mark is not None:
            assert verdict.mark.credential == candidate.credential
            states = states.with_failure(verdict.mark)
        if isinstance(verdict, RetryAction):
            assert 0 < verdict.delay_s <= WAIT_MAX_S and going.current is not None
            assert (going.current.ref, going.current.credential) == (candidate.ref, candidate.credential)
        elif not isinstance(verdict, CompactAction) and failed.failure not in BLAME:
            done_with.add(candidate.ref)
        if isinstance(verdict, GiveUpAction):
            error = verdict.error
        else:
            assert going.current is not None and going.current.wait_s == verdict.delay_s
        cooled = verdict.mark is not None or not isinstance(verdict, RetryAction)
    error = error or going.build_error(now)
    assert error.because and error.sentence
    if len(set(refs)) > 1:
        assert error.code == "model.all_failed"
        assert all(f"{ref}: " in error.because for ref in refs) and "not asked" not in error.because


def _may(mind: SessionOptions, credential: Credential) -> bool:
    return not mind.pinned or credential.provider != "acme" or credential.id == mind.credential
