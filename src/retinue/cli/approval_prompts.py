"""Adds a missing approval id to `/allow` or `/deny` if only one approval is pending, and reports pending approvals."""

from __future__ import annotations

from retinue.cli.errors import CliError
from retinue.cli.output import shorten_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DECISION_COMMANDS = ("allow", "approve", "deny")  # without an id: the only open approval of this session
GRANT_SCOPES = ("once", "session", "always", "allow-once", "allow-session", "allow-always")


def add_approval_id(command: str, arguments: str, open_approvals: Sequence[str]) -> str:
    """Return `/allow` or `/deny` with an approval id. The user may omit the id if exactly one approval is pending."""
    first = arguments.partition(" ")[0].casefold()
    if first and first not in GRANT_SCOPES and not (command == "approve" and first == "deny"):
        return f"/{command} {arguments}"
    if len(open_approvals) != 1:
        raise CliError(
            "no approval id given",
            code="approval.id_missing",
            because=f"this session has {len(open_approvals) or 'no'} pending approvals",
            try_this=f"/{command} {shorten_id(open_approvals[0]) if open_approvals else 'ID'}",
        )
    return f"/{command} {shorten_id(open_approvals[0])} {arguments}".strip()


def approval_pending_error(approvals: list[str]) -> CliError:
    return CliError(
        "no answer yet: the agent is waiting for an approval",
        code="approval.pending",
        because="the input ended before a person answered the approval request",
        try_this=f"retinue allow {shorten_id(approvals[0]) if approvals else 'ID'}",
    )
