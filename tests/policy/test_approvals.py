"""Who may decide, how far a yes goes, and what a person is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ApprovalId, RunId, SessionId
from retinue.domain.permission import Access, Permission
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_OF, TRUST_OF, Principal
from retinue.domain.tool import Call
from retinue.domain.trust import Trust
from retinue.policy.tools.approvals import may_decide, next_to_ask, scope_of
from retinue.text.approval_text import ARGUMENTS_SHOWN_MAX, call_lines, question, seen, value

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
EXEC = Permission(Access.TOOL, "exec")


def person(name: str, role: Role) -> Principal:
    return Principal(address=address.person(name), level=LEVEL_OF[role], trust=TRUST_OF[role])


OWNER, MARIA, NOOR = person("owner", Role.OWNER), person("maria", Role.MEMBER), person("noor", Role.MEMBER)
GUS = person("gus", Role.GUEST)
ADA = Principal(address=address.agent("ada"), level=PermissionLevel.BOSS, trust=Trust.AGENT)


def approval(**kw: Any) -> Approval:
    asked = dict[str, Any](
        id=ApprovalId("a" * 32),
        session=SessionId("5" * 32),
        run=RunId("7" * 32),
        calls=(Call(id="c0", tool="exec", arguments={"command": "ls"}),),
        because="rules",
        state=ApprovalState.OPEN,
        asked_at=NOON,
        expires_at=NOON,
        would_grant=(EXEC,),
        asked_of=(address.person("maria"), address.person("gus"), address.agent("ada")),
    )
    return Approval(**{**asked, **kw})


@pytest.mark.parametrize(
    ("who", "once", "session", "always"),
    [
        (OWNER, True, True, True),
        (MARIA, True, True, False),
        (NOOR, False, False, False),
        (GUS, False, False, False),
        (ADA, False, False, False),
    ],
)
def test_who_may_say_yes_and_for_how_long(who: Principal, once: bool, session: bool, always: bool) -> None:
    said = [may_decide(who, approval(), scope).allowed for scope in GrantScope]
    assert said == [once, session, always]


def test_a_yes_for_longer_than_once_needs_something_to_grant() -> None:
    for scope in GrantScope:
        assert scope_of(scope, approval()) is scope
    only_these = approval(would_grant=())
    assert [scope_of(scope, only_these) for scope in GrantScope] == [GrantScope.ONCE, None, None]


def test_the_next_in_line_is_the_first_who_was_not_asked() -> None:
    line = [address.person(name) for name in ("maria", "noor")]
    assert next_to_ask([], line) == line[0]
    assert next_to_ask(line[:1], line) == line[1]
    assert next_to_ask(line, line) is None


# --- what is shown ---


@given(st.text())
def test_whatever_a_text_holds_is_shown_in_one_line_of_seen_characters(text: str) -> None:
    shown = value(text)
    assert "\n" not in shown and shown.isprintable()
    assert not set(shown) & set("\u3164\u115f\u1160\u2800\uffa0\u034f\ufe00")


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_arguments_never_look_the_same(one: str, other: str) -> None:
    assert (value(one) == value(other)) is (one == other)


def test_what_is_long_is_cut_where_no_argument_can_write() -> None:
    forged = 'x" [cut: 1 characters are not shown here; all of it: retinue status] "y'
    assert r"x\" [cut" in value(forged), "inside, its quotes are escaped"
    long = value("a" * 5_000 + "rm -rf /")
    assert '" [cut: ' in long and long.endswith('rm -rf /"') and long.startswith('"aaa')


def test_many_arguments_and_many_calls_are_cut_visibly() -> None:
    many = Call(id="c0", tool="exec", arguments={f"name_{n}": n for n in range(100)})
    lines = call_lines([many])
    assert lines[-1].strip().startswith(f"[cut: {100 - ARGUMENTS_SHOWN_MAX} more arguments")
    calls = [Call(id=f"c{n}", tool="exec", arguments={"command": "x" * 1_900}) for n in range(50)]
    assert call_lines(calls)[-1].startswith("[cut: ") and "more calls" in call_lines(calls)[-1]


def test_the_name_of_an_argument_hides_nothing_either() -> None:
    lines = call_lines([Call(id="c0", tool="exec", arguments={"a\n- read\u202e": 1})])
    assert lines == ["- exec", r'    "a\n- read\u202e": 1']


def test_seen_leaves_honest_words_alone() -> None:
    for honest in ("ls -la", "Grüße, 東京", "I ❤️ it", "naïve café"):
        assert seen(honest) == honest


def shown(**kw: Any) -> str:
    asked = dict[str, Any](
        id_="9c8d7e6f",
        asker="ada",
        background=False,
        for_whom="ada",
        calls=(Call(id="c0", tool="exec", arguments={"command": "ls"}),),
        because="the rules ask",
        gives=(),
        would_grant=(EXEC,),
        until=NOON,
        always=True,
    )
    return question(**{**asked, **kw})


def test_a_question_about_calls() -> None:
    assert shown(gives=(Permission(Access.READ, "/srv"),)).split("\n") == [
        "ada asks: may I do this?",
        "- exec",
        '    command: "ls"',
        "It would reach: read:/srv",
        "Because: the rules ask",
        "Answer with: /allow 9c8d7e6f or /deny 9c8d7e6f",
        "For longer than once (tool:exec): /allow 9c8d7e6f session, or /allow 9c8d7e6f always",
        "It can be answered until 2026-01-05 12:00 UTC.",
    ]
    assert "session" not in shown(would_grant=()) and "always" not in shown(would_grant=())
    assert "always" not in shown(always=False) and "session" in shown(always=False)


def test_a_question_from_the_background_names_who_asks() -> None:
    assert shown(background=True).startswith("ada, which works in the background, asks: may I do this?")
    wish = shown(calls=(), would_grant=(Permission(Access.WEB),), for_whom="cleo", background=True)
    assert wish.startswith("ada, which works in the background, asks: may cleo have web?")


def test_a_long_path_is_shown_whole() -> None:
    path = "/" + "x" * 4_000
    assert f"read:{path}" in shown(gives=(Permission(Access.READ, path),))
