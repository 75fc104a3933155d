"""Short forms of frequent commands, such as `retinue send` for `retinue envelope send`, with their help."""

from __future__ import annotations

from retinue.cli.operation_table import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    # operation (empty if there is none), summary, examples, positional parameters, fixed parameter values
    CommandAlias = tuple[str, str, str, tuple[str, ...], tuple[tuple[str, object], ...]]

_ALL_ALIASES: dict[str, CommandAlias] = {
    "up": (
        "",
        "Start the server in the background.",
        "retinue up\nretinue up --force",
        (),
        (),
    ),
    "down": ("", "Stop the server. Active runs get time to finish.", "retinue down\nretinue down --wait 60", (), ()),
    "run": (
        "",
        "Start the server in the foreground.",
        "retinue run\nRETINUE_HOME=/srv/retinue retinue run",
        (),
        (),
    ),
    "status": ("server.status", "Show the agents and your pending approvals.", "retinue status", (), ()),
    "logs": (
        "",
        "Show the server's log.",
        "retinue logs\nretinue logs --lines 200 --follow",
        (),
        (),
    ),
    "chat": (
        "",
        "Chat with an agent in the terminal.",
        'retinue chat\nretinue chat --agent clerk --session taxes\nretinue chat --once "What is on today?"\n'
        'retinue chat --once - < question.txt\nprintf "one\\ntwo\\n" | retinue chat',
        (),
        (),
    ),
    "send": (
        "envelope.send",
        "Send an envelope without waiting for its answer.",
        'retinue send agent:guide "Good morning"\nretinue send agent:guide "Water the plants" --deliver-at +2h\n'
        "retinue send agent:guide - --attach report.pdf < message.txt",
        (),
        (),
    ),
    "inbox": ("inbox.list", "List your unread messages.", "retinue inbox\nretinue inbox --ack", (), ()),
    "show": ("envelope.show", "Show an envelope.", "retinue show 1a2b3c4d", (), ()),
    "thread": (
        "envelope.thread",
        "Show the reply thread of an envelope, back to its first envelope.",
        "retinue thread 1a2b3c4d",
        (),
        (),
    ),
    "why": (
        "server.why",
        "Explain what happened to an envelope, run, approval or session.",
        "retinue why 1a2b3c4d",
        (),
        (),
    ),
    "ledger": ("server.ledger", "Check the ledger: prove that no message was lost.", "retinue ledger", (), ()),
    "dead": ("envelope.dead", "List dead letters: envelopes that failed for good.", "retinue dead --limit 50", (), ()),
    "retry": (
        "envelope.retry",
        "Retry a dead letter: send it again as a new envelope.",
        "retinue retry 1a2b3c4d",
        (),
        (),
    ),
    "sessions": ("session.list", "List recent sessions.", "retinue sessions --limit 50", (), ()),
    "stop": (
        "session.stop",
        "Stop the current run of a session, and clear the session's queue.",
        'retinue stop 5e6f7a8b --reason "wrong file"',
        (),
        (),
    ),
    "reset": (
        "session.reset",
        "Stop the current run of a session, and reset the context of the session.",
        'retinue reset 5e6f7a8b "We were at chapter 3."',
        ("session", "message"),
        (),
    ),
    "queue": (
        "session.set_queue",
        "Set how messages are queued during a run. Without options, the agent's settings apply again.",
        "retinue queue 5e6f7a8b --mode steer\nretinue queue 5e6f7a8b",
        (),
        (),
    ),
    "allow": (
        "approval.answer",
        "Approve a request from an agent.",
        "retinue allow 9c8d7e6f",
        (),
        (("allow", True),),
    ),
    "deny": (
        "approval.answer",
        "Deny a request from an agent.",
        "retinue deny 9c8d7e6f",
        (),
        (("allow", False),),
    ),
    "models": (
        "model.show",
        "Show which models an agent would use now, and why.",
        "retinue models\nretinue models ada\nretinue models --session 5e6f7a8b",
        (),
        (),
    ),
    "usage": (
        "usage.show",
        "Show usage and cost, by day or another grouping.",
        "retinue usage\nretinue usage --by model --from 2026-11-01\nretinue usage --agent clerk",
        (),
        (),
    ),
    "result": (
        "run.show",
        "Show how a run ended, and which models, tokens and cost it used.",
        "retinue result 3c6ef362",
        (),
        (),
    ),
    "config": ("config.show", "Show the current settings.", "retinue config", (), ()),
    "apply": (
        "config.apply",
        "Apply the agents, people, schedules and bindings that the settings file declares.",
        "retinue apply --dry-run\nretinue apply",
        (),
        (),
    ),
    "doctor": ("server.doctor", "Check the server for problems.", "retinue doctor", (), ()),
    "backup": ("server.backup", "Back up the data of the server to a new folder.", "retinue backup", (), ()),
    "export": ("session.export", "Export a session as files.", "retinue export 5e6f7a8b --json", (), ()),
    "restore": (
        "",
        "Restore a backup while the server is stopped.",
        "retinue restore ~/.retinue/backups/2026-11-15T09-00-00Z",
        (),
        (),
    ),
    "dry-run": (
        "",
        "Simulate the schedules of the next days on a copy of the data, and show the runs and their cost.",
        "retinue dry-run\nretinue dry-run --days 7 --all\nretinue dry-run --from 2027-03-27 --days 3\n"
        "retinue dry-run --run-duration 90s --json",
        (),
        (),
    ),
    "service": (
        "",
        "Print a systemd user unit for the server, and the commands that install it.",
        "retinue service install",
        (),
        (),
    ),
    "join": (
        "",
        "Accept an invitation and get a token.",
        "RETINUE_URL=http://127.0.0.1:7717 retinue join INVITATION",
        (),
        (),
    ),
    "completion": (
        "",
        "Print a completion script for a shell.",
        'eval "$(retinue completion bash)"\nretinue completion fish > ~/.config/fish/completions/retinue.fish',
        (),
        (),
    ),
    "version": ("", "Show the version.", "retinue version", (), ()),
}
_OPERATION_NAMES = frozenset([each[0] for each in OPERATIONS])

ALIASES: dict[str, CommandAlias] = {
    name: short for name, short in _ALL_ALIASES.items() if not short[0] or short[0] in _OPERATION_NAMES
}


def split_command(operation: str) -> tuple[str, str]:
    """Return the noun and the verb of an operation as typed on the command line, in kebab-case."""
    noun, _, verb = operation.replace("_", "-").partition(".")
    return noun, verb


# Descriptions for the overview. A noun that is missing here is listed without a description.
NOUN_SUMMARIES: dict[str, str] = {
    "agent": "agents and their settings",
    "approval": "requests from agents that need your approval",
    "audit": "tamper-evident log of decisions and actions",
    "binding": "which agent answers in which channel",
    "config": "server settings",
    "connector": "connected Telegram, email, IRC and webhook accounts, and their status",
    "credential": "API keys of model providers, and their status",
    "delegation": "work that agents have given to other agents",
    "envelope": "stored messages",
    "grant": "permissions that were granted to agents, in addition to their rules",
    "heartbeat": "periodic check-ins of agents",
    "hook": "local programs that run after events",
    "identity": "platform ids linked to people",
    "inbox": "your unread messages",
    "mcp": "MCP servers whose tools agents can use",
    "model": "models that agents use",
    "notification": "your notifications",
    "pairing": "access requests from unknown senders",
    "person": "people and their roles",
    "plugin": "installed plugins",
    "poison-message": "inbound messages that could not be processed",
    "policy": "rules about which tools agents may use",
    "preference": "your preferences",
    "questionnaire": "forms that agents ask you to fill in",
    "reminder": "messages that remind a person at a set time",
    "run": "runs of agents, and their results",
    "schedule": "messages sent at set times, mostly to agents",
    "server": "the server",
    "session": "conversations with agents",
    "skill": "folders with instructions for agents",
    "slash-command": "slash commands that you can use in a conversation",
    "subagent": "agents that other agents have started",
    "token": "access tokens",
    "tool": "tools that agents use",
    "usage": "usage, cost and budgets",
    "wakeup": "messages sent to a conversation at set times, which wake its agent",
}
