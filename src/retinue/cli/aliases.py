"""Short commands for frequent use beside `retinue NOUN VERB`, each with a summary and examples."""

from __future__ import annotations

from retinue.cli.operation_table import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    # operation (empty if there is none), summary, examples, positional parameters, fixed parameter values
    Short = tuple[str, str, str, tuple[str, ...], tuple[tuple[str, object], ...]]

_ALL: dict[str, Short] = {
    "up": (
        "",
        "Open the house in the background.",
        "retinue up\nretinue up --force",
        (),
        (),
    ),
    "down": ("", "Close the house; what runs may finish first.", "retinue down\nretinue down --wait 60", (), ()),
    "run": (
        "",
        "Open the house in the foreground.",
        "retinue run\nRETINUE_HOME=/srv/house retinue run",
        (),
        (),
    ),
    "status": ("house.status", "Say who is here, and what waits for you.", "retinue status", (), ()),
    "logs": (
        "",
        "Show what the house has logged.",
        "retinue logs\nretinue logs --lines 200 --follow",
        (),
        (),
    ),
    "chat": (
        "",
        "Talk with an agent.",
        'retinue chat\nretinue chat --agent clerk --session taxes\nretinue chat --once "What is on today?"\n'
        'retinue chat --once - < question.txt\nprintf "one\\ntwo\\n" | retinue chat',
        (),
        (),
    ),
    "send": (
        "envelope.send",
        "Send an envelope, and do not wait for its answer.",
        'retinue send agent:guide "Good morning"\nretinue send agent:guide "Water the plants" --deliver-at +2h\n'
        "retinue send agent:guide - --attach report.pdf < words.txt",
        (),
        (),
    ),
    "inbox": ("inbox.list", "Show what waits for you.", "retinue inbox\nretinue inbox --ack", (), ()),
    "show": ("envelope.show", "Show an envelope.", "retinue show 1a2b3c4d", (), ()),
    "thread": (
        "envelope.thread",
        "Show what an envelope replies to, back to the first.",
        "retinue thread 1a2b3c4d",
        (),
        (),
    ),
    "why": ("house.why", "Tell why something became what it is.", "retinue why 1a2b3c4d", (), ()),
    "ledger": ("house.ledger", "Prove from the store that nothing is lost.", "retinue ledger", (), ()),
    "dead": ("envelope.dead", "List envelopes that could not be worked on.", "retinue dead --limit 50", (), ()),
    "retry": ("envelope.retry", "Send a dead envelope once more.", "retinue retry 1a2b3c4d", (), ()),
    "sessions": ("session.list", "List the recent sessions.", "retinue sessions --limit 50", (), ()),
    "stop": (
        "session.stop",
        "Stop what runs in a session, and clear what waits.",
        'retinue stop 5e6f7a8b --why "wrong file"',
        (),
        (),
    ),
    "reset": (
        "session.reset",
        "Begin a fresh context in a session.",
        'retinue reset 5e6f7a8b "We were at chapter 3."',
        ("session", "message"),
        (),
    ),
    "queue": (
        "session.queue",
        "Set how mail queues while an agent is busy; with no option, as the agent does.",
        "retinue queue 5e6f7a8b --mode steer\nretinue queue 5e6f7a8b",
        (),
        (),
    ),
    "allow": (
        "approval.answer",
        "Let an agent do what it asked for.",
        "retinue allow 9c8d7e6f",
        (),
        (("allow", True),),
    ),
    "deny": (
        "approval.answer",
        "Do not let an agent do what it asked for.",
        "retinue deny 9c8d7e6f",
        (),
        (("allow", False),),
    ),
    "models": (
        "model.show",
        "Show which models would be asked now, and why.",
        "retinue models\nretinue models ada\nretinue models --session 5e6f7a8b",
        (),
        (),
    ),
    "usage": (
        "usage.show",
        "Show what was used and what it cost, day by day or by what you like.",
        "retinue usage\nretinue usage --by model --from 2026-11-01\nretinue usage --agent clerk",
        (),
        (),
    ),
    "result": (
        "run.show",
        "Say how a run came out: the models that were asked, tokens and cost.",
        "retinue result 3c6ef362",
        (),
        (),
    ),
    "config": ("config.show", "Show the settings as they are.", "retinue config", (), ()),
    "apply": (
        "config.apply",
        "Bring the staff in line with the settings file.",
        "retinue apply --dry-run\nretinue apply",
        (),
        (),
    ),
    "doctor": ("house.doctor", "Look for what is wrong with the house.", "retinue doctor", (), ()),
    "backup": ("house.backup", "Make a copy of everything the house keeps.", "retinue backup", (), ()),
    "export": ("session.export", "Give a session as files.", "retinue export 5e6f7a8b --json", (), ()),
    "restore": (
        "",
        "Put a backup back, with the house closed.",
        "retinue restore ~/.retinue/backups/2026-11-15T09-00-00Z",
        (),
        (),
    ),
    "rehearse": (
        "",
        "Play the coming days on a copy of the house, and tell what would run and what it would cost.",
        "retinue rehearse\nretinue rehearse --days 7 --all\nretinue rehearse --from 2027-03-27 --days 3\n"
        "retinue rehearse --run-takes 90s --json",
        (),
        (),
    ),
    "service": (
        "",
        "Print what has the house run as a service of your own.",
        "retinue service install",
        (),
        (),
    ),
    "join": (
        "",
        "Become the person an invitation names, and get a token of your own.",
        "RETINUE_URL=http://127.0.0.1:7717 retinue join INVITATION",
        (),
        (),
    ),
    "completion": (
        "",
        "Print what lets a shell complete our commands.",
        'eval "$(retinue completion bash)"\nretinue completion fish > ~/.config/fish/completions/retinue.fish',
        (),
        (),
    ),
    "version": ("", "Say which version this is.", "retinue version", (), ()),
}
_KNOWN = frozenset([f"{each[0]}.{each[1]}" for each in OPERATIONS])

SHORTS: dict[str, Short] = {name: short for name, short in _ALL.items() if not short[0] or short[0] in _KNOWN}

# Descriptions for the overview. A noun that is missing here is listed without one.
NOUNS: dict[str, str] = {
    "agent": "the staff: who they are, and what they may do",
    "approval": "questions that agents put to people",
    "audit": "what was decided and done, in chains that show every change",
    "binding": "which agent answers where",
    "command": "what can be asked of the house in a conversation",
    "config": "the settings of the house",
    "connector": "doors to people: accounts of ours elsewhere, and how they fare",
    "credential": "keys to providers: where they are, and how they fare",
    "delegation": "work that agents have handed to one another",
    "envelope": "mail, one by one or in lists",
    "grant": "what agents were granted beyond their rules",
    "heartbeat": "what agents look after by themselves, and when",
    "hook": "programs of yours that are told what happens in the house",
    "house": "the house itself",
    "identity": "who is who at which place",
    "inbox": "what waits for you",
    "mcp": "MCP servers whose tools agents may use",
    "model": "what the staff thinks with",
    "notification": "what you are to notice",
    "pairing": "strangers who ask to be let in",
    "person": "who is at home here",
    "plugin": "what was brought in from elsewhere",
    "policy": "who may use which tool, and why",
    "preference": "what you have set for yourself",
    "questionnaire": "questions with fields that agents put to you",
    "reminder": "words that reach a person at a time",
    "run": "how work came out",
    "schedule": "what the clock sends, and when",
    "session": "conversations of agents",
    "set-aside": "messages that could not be taken in",
    "skill": "folders that tell agents how something is done",
    "subagent": "whom agents have sent out",
    "token": "what signs someone in",
    "tool": "what agents can do",
    "usage": "what was used, what it cost, and what may be spent",
    "wakeup": "words that reach a conversation at a time",
}
