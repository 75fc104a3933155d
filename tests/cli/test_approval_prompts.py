"""What a person reads before they decide, on a terminal: all of it, and only the answers that are possible."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.cli.chat import add_approval_id
from retinue.cli.chat_views import format_approval_request
from retinue.cli.errors import CliError
from retinue.cli.formatters import format_status

ID = "9c8d7e6f" + 24 * "0"
HOW = {"allow": "retinue allow", "deny": "retinue deny", "scope": "--scope "}


def asked(**kw: Any) -> dict[str, Any]:
    call = {"id": "c0", "tool": "exec", "arguments": {"command": "ls"}}
    return {
        "approval": ID,
        "agent": "ada",
        "for_whom": "ada",
        "calls": [call],
        "because": "the agent's rules ask about 'exec'",
        "gives": [],
        "would_grant": ["tool:exec"],
        **kw,
    }


def test_what_can_be_granted_for_longer_says_how() -> None:
    assert format_approval_request(asked(gives=["read:/srv"]), **HOW, can_grant_always=True) == [
        "approval needed (9c8d7e6f)",
        '  exec {"command": "ls"}',
        "  access: read:/srv",
        "  because: the agent's rules ask about 'exec'",
        "  retinue allow 9c8d7e6f   retinue deny 9c8d7e6f",
        "  for longer (tool:exec): retinue allow 9c8d7e6f --scope session (or always)",
    ]


def test_nobody_is_offered_what_they_may_not_give() -> None:
    assert "always" not in "\n".join(format_approval_request(asked(), **HOW, can_grant_always=False))
    only_once = "\n".join(format_approval_request(asked(would_grant=[]), **HOW, can_grant_always=True))
    assert "always" not in only_once and "session" not in only_once


def test_a_wish_names_what_is_wished_for_and_for_whom() -> None:
    wish = asked(calls=[], would_grant=["web"], for_whom="cleo")
    assert format_approval_request(wish, **HOW, can_grant_always=True) == [
        "permission needed for cleo: web (9c8d7e6f)",
        "  because: the agent's rules ask about 'exec'",
        "  retinue allow 9c8d7e6f   retinue deny 9c8d7e6f",
        "  permanently: retinue allow 9c8d7e6f --scope always",
    ]
    assert (
        format_approval_request({**wish, "for_whom": "ada"}, **HOW, can_grant_always=False)[0]
        == "permission needed: web (9c8d7e6f)"
    )


def test_nothing_in_a_question_hides_or_acts() -> None:
    hidden = "\x1b[2K\u202e\u3164\u200b\nretinue allow 00000000"
    call = {"id": "c0", "tool": "exec", "arguments": {"command": hidden}}
    lines = format_approval_request(
        asked(calls=[call], because=hidden, gives=[f"read:/{hidden}"]), **HOW, can_grant_always=True
    )
    assert len(lines) == 6 and all(line.isprintable() and "\u3164" not in line for line in lines)
    shown = {"id": ID, "calls": [call], "to-reach": [hidden], "would-grant": [], "because": hidden, "asked-at": "now"}
    form = {"version": "1", "you": "x", "now": "y", "cursor": 1, "agents": [], "approvals": [shown]}
    assert all(line.isprintable() and "\u3164" not in line for line in format_status(form))


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("", "/allow 9c8d7e6f"),
        ("12345678", "/allow 12345678"),
        ("12345678 always since I said so", "/allow 12345678 always since I said so"),
        ("session", "/allow 9c8d7e6f session"),
        ("always since I said so", "/allow 9c8d7e6f always since I said so"),
    ],
)
def test_a_decision_without_an_id_is_about_the_one_question_that_is_open(words: str, sent: str) -> None:
    assert add_approval_id("allow", words, [ID]) == sent


@pytest.mark.parametrize("still_open", [[], [ID, "1" * 32]])
def test_a_decision_about_none_or_several_is_not_guessed(still_open: list[str]) -> None:
    with pytest.raises(CliError) as refused:
        add_approval_id("deny", "", still_open)
    assert refused.value.code == "approval.id_missing"
    assert add_approval_id("deny", "12345678", still_open) == "/deny 12345678"
