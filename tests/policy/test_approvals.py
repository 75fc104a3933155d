"""Test approvals: who may decide, how far a grant reaches, and what the question shows."""

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
from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_BY_ROLE, TRUST_BY_ROLE, Principal
from retinue.domain.tool import Call
from retinue.domain.trust import Trust
from retinue.policy.tools.approvals import find_next_approver, limit_scope, may_decide
from retinue.text.approval_text import (
    ARGUMENTS_SHOWN_MAX,
    escape_invisible,
    format_argument,
    format_calls,
    format_question,
)

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
EXEC = Permission(PermissionKind.TOOL, "exec")


def person(name: str, role: Role) -> Principal:
    return Principal(address=address.person_address(name), level=LEVEL_BY_ROLE[role], trust=TRUST_BY_ROLE[role])


OWNER, MARIA, NOOR = person("owner", Role.OWNER), person("maria", Role.MEMBER), person("noor", Role.MEMBER)
GUS = person("gus", Role.GUEST)
ADA = Principal(address=address.agent_address("ada"), level=PermissionLevel.BOSS, trust=Trust.AGENT)


def approval(**kw: Any) -> Approval:
    asked = dict[str, Any](
        id=ApprovalId("a" * 32),
        session=SessionId("5" * 32),
        run=RunId("7" * 32),
        calls=(Call(id="c0", tool="exec", arguments={"command": "ls"}),),
        because="rules",
        state=ApprovalState.OPEN,
        requested_at=NOON,
        expires_at=NOON,
        grant_permissions=(EXEC,),
        recipients=(address.person_address("maria"), address.person_address("gus"), address.agent_address("ada")),
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
def test_the_principal_decides_which_approval_scopes_are_allowed(
    who: Principal, once: bool, session: bool, always: bool
) -> None:
    allowed_scopes = [may_decide(who, approval(), scope).is_allowed for scope in GrantScope]
    assert allowed_scopes == [once, session, always]


def test_a_longer_approval_scope_needs_a_permission_to_grant() -> None:
    for scope in GrantScope:
        assert limit_scope(scope, approval()) is scope
    only_these = approval(grant_permissions=())
    assert [limit_scope(scope, only_these) for scope in GrantScope] == [GrantScope.ONCE, None, None]


def test_the_next_approver_is_the_first_who_was_not_asked() -> None:
    line = [address.person_address(name) for name in ("maria", "noor")]
    assert find_next_approver([], line) == line[0]
    assert find_next_approver(line[:1], line) == line[1]
    assert find_next_approver(line, line) is None


# --- the text of a question ---


@given(st.text())
def test_an_approval_question_shows_any_argument_as_one_line_of_visible_characters(text: str) -> None:
    format_with_defaults = format_argument(text)
    assert "\n" not in format_with_defaults and format_with_defaults.isprintable()
    assert not set(format_with_defaults) & set("\u3164\u115f\u1160\u2800\uffa0\u034f\ufe00")


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_arguments_never_look_the_same_in_an_approval_question(one: str, other: str) -> None:
    assert (format_argument(one) == format_argument(other)) is (one == other)


def test_an_approval_question_truncates_a_long_argument_with_a_marker_that_cannot_be_forged() -> None:
    forged = 'x" [cut: 1 characters are not shown here; to see everything: retinue status] "y'
    assert r"x\" [cut" in format_argument(forged), "inside, its quotes are escaped"
    long = format_argument("a" * 5_000 + "rm -rf /")
    assert '" [cut: ' in long and long.endswith('rm -rf /"') and long.startswith('"aaa')


def test_an_approval_question_truncates_too_many_arguments_or_calls_with_a_note() -> None:
    many = Call(id="c0", tool="exec", arguments={f"name_{n}": n for n in range(100)})
    lines = format_calls([many])
    assert lines[-1].strip().startswith(f"[cut: {100 - ARGUMENTS_SHOWN_MAX} more arguments")
    calls = [Call(id=f"c{n}", tool="exec", arguments={"command": "x" * 1_900}) for n in range(50)]
    assert format_calls(calls)[-1].startswith("[cut: ") and "more calls" in format_calls(calls)[-1]


def test_an_approval_question_escapes_invisible_characters_in_an_argument_name() -> None:
    lines = format_calls([Call(id="c0", tool="exec", arguments={"a\n- read\u202e": 1})])
    assert lines == ["- exec", r'    "a\n- read\u202e": 1']


def test_the_approval_text_leaves_ordinary_visible_text_unescaped() -> None:
    for honest in ("ls -la", "Grüße, 東京", "I ❤️ it", "naïve café"):
        assert escape_invisible(honest) == honest


def format_with_defaults(**kw: Any) -> str:
    asked = dict[str, Any](
        id_="9c8d7e6f",
        asker="ada",
        is_background=False,
        grantee="ada",
        calls=(Call(id="c0", tool="exec", arguments={"command": "ls"}),),
        because="the rules ask",
        permissions_needed=(),
        would_grant=(EXEC,),
        expires_at=NOON,
        can_grant_always=True,
    )
    return format_question(**{**asked, **kw})


def test_an_approval_question_lists_calls_permissions_reason_and_answers() -> None:
    assert format_with_defaults(permissions_needed=(Permission(PermissionKind.READ, "/srv"),)).split("\n") == [
        "ada asks: may I do this?",
        "- exec",
        '    command: "ls"',
        "Permissions needed: read:/srv",
        "Because: the rules ask",
        "Answer with: /allow 9c8d7e6f or /deny 9c8d7e6f",
        "To allow more than once (tool:exec): /allow 9c8d7e6f session, or /allow 9c8d7e6f always",
        "The request expires at 2026-01-05 12:00 UTC.",
    ]
    assert "session" not in format_with_defaults(would_grant=()) and "always" not in format_with_defaults(
        would_grant=()
    )
    assert "always" not in format_with_defaults(can_grant_always=False) and "session" in format_with_defaults(
        can_grant_always=False
    )


def test_an_approval_question_from_the_background_names_the_asking_agent() -> None:
    assert format_with_defaults(is_background=True).startswith("ada, in the background, asks: may I do this?")
    wish = format_with_defaults(
        calls=(), would_grant=(Permission(PermissionKind.WEB),), grantee="cleo", is_background=True
    )
    assert wish.startswith("ada, in the background, asks: may cleo have web?")


def test_an_approval_question_shows_a_long_permission_path_in_full() -> None:
    path = "/" + "x" * 4_000
    assert f"read:{path}" in format_with_defaults(permissions_needed=(Permission(PermissionKind.READ, path),))
