"""Approval prompts at a terminal: the full request and the possible answers."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.cli.approval_prompts import add_approval_id
from retinue.cli.chat_views import format_approval_request
from retinue.cli.errors import CliError
from retinue.cli.formatters import format_status

APPROVAL_ID = "9c8d7e6f" + 24 * "0"
ANSWER_COMMANDS = {"allow": "retinue allow", "deny": "retinue deny", "scope": "--scope "}


def approval_event(**kw: Any) -> dict[str, Any]:
    call = {"id": "c0", "tool": "exec", "arguments": {"command": "ls"}}
    return {
        "approval": APPROVAL_ID,
        "agent": "ada",
        "for_whom": "ada",
        "calls": [call],
        "because": "the agent's rules ask about 'exec'",
        "gives": [],
        "would_grant": ["tool:exec"],
        **kw,
    }


def test_an_approval_prompt_at_a_terminal_shows_how_to_grant_it_for_longer() -> None:
    assert format_approval_request(approval_event(gives=["read:/srv"]), **ANSWER_COMMANDS, can_grant_always=True) == [
        "approval needed (9c8d7e6f)",
        '  exec {"command": "ls"}',
        "  access: read:/srv",
        "  because: the agent's rules ask about 'exec'",
        "  retinue allow 9c8d7e6f   retinue deny 9c8d7e6f",
        "  for longer (tool:exec): retinue allow 9c8d7e6f --scope session (or always)",
    ]


def test_an_approval_prompt_at_a_terminal_offers_only_answers_that_the_person_may_give() -> None:
    assert "always" not in "\n".join(
        format_approval_request(approval_event(), **ANSWER_COMMANDS, can_grant_always=False)
    )
    only_once = "\n".join(
        format_approval_request(approval_event(would_grant=[]), **ANSWER_COMMANDS, can_grant_always=True)
    )
    assert "always" not in only_once and "session" not in only_once


def test_a_permission_prompt_at_a_terminal_names_the_permission_and_its_agent() -> None:
    permission_request = approval_event(calls=[], would_grant=["web"], for_whom="cleo")
    assert format_approval_request(permission_request, **ANSWER_COMMANDS, can_grant_always=True) == [
        "permission needed for cleo: web (9c8d7e6f)",
        "  because: the agent's rules ask about 'exec'",
        "  retinue allow 9c8d7e6f   retinue deny 9c8d7e6f",
        "  permanently: retinue allow 9c8d7e6f --scope always",
    ]
    assert (
        format_approval_request({**permission_request, "for_whom": "ada"}, **ANSWER_COMMANDS, can_grant_always=False)[0]
        == "permission needed: web (9c8d7e6f)"
    )


def test_hidden_and_control_characters_in_an_approval_prompt_at_a_terminal_are_escaped() -> None:
    hidden = "\x1b[2K\u202e\u3164\u200b\nretinue allow 00000000"
    call = {"id": "c0", "tool": "exec", "arguments": {"command": hidden}}
    lines = format_approval_request(
        approval_event(calls=[call], because=hidden, gives=[f"read:/{hidden}"]),
        **ANSWER_COMMANDS,
        can_grant_always=True,
    )
    assert len(lines) == 6 and all(line.isprintable() and "\u3164" not in line for line in lines)
    shown = {
        "id": APPROVAL_ID,
        "calls": [call],
        "needed_permissions": [hidden],
        "grant_permissions": [],
        "because": hidden,
        "requested_at": "now",
    }
    form = {"version": "1", "principal": "x", "now": "y", "cursor": 1, "agents": [], "approvals": [shown]}
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
def test_a_decision_typed_at_a_terminal_without_an_id_refers_to_the_only_open_approval(words: str, sent: str) -> None:
    assert add_approval_id("allow", words, [APPROVAL_ID]) == sent


@pytest.mark.parametrize("still_open", [[], [APPROVAL_ID, "1" * 32]])
def test_a_decision_typed_at_a_terminal_without_an_id_is_refused_unless_one_approval_is_open(
    still_open: list[str],
) -> None:
    with pytest.raises(CliError) as refused:
        add_approval_id("deny", "", still_open)
    assert refused.value.code == "approval.id_missing"
    assert add_approval_id("deny", "12345678", still_open) == "/deny 12345678"
