"""What each command asks of the house, and how the answer reads."""

from __future__ import annotations

import os
import sys

from retinue.cli.client import ask, post
from retinue.cli.errors import FAILED, OK, CliError, HouseClosed
from retinue.cli.output import blocks, call_line, complain, indented, pair, pairs, say, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

INPUT_BYTES_MAX = 12 * 1024 * 1024  # what fits, encoded, into the largest request the house takes

ENVELOPE_KEYS = (
    "id",
    "from",
    "to",
    "kind",
    "status",
    "outcome",
    "because",
    "accepted-at",
    "deliver-at",
    "reply-to",
    "answer",
)


def send(options: Namespace) -> int:
    """Sent until it is acknowledged: once the line broke in the middle, only the key keeps it from arriving twice."""
    parameters: dict[str, Any] = {
        "to": options.to,
        "text": text_from(options.text),
        "key": options.key or os.urandom(16).hex(),
    }
    for name in ("conversation", "deliver_at", "expires_at", "reply_to"):
        if getattr(options, name):
            parameters[name] = getattr(options, name)
    if options.attach:
        parameters["attachments"] = _attachments(options.attach)
    try:
        sent = post(parameters, wait_s=options.wait, waiting=_say_waiting)
    except HouseClosed as closed:
        if closed.asked:
            closed.try_this = f"retinue run, then send it again with --key {parameters['key']}: it is accepted once"
        raise
    if options.json:
        import json

        say([json.dumps(sent, ensure_ascii=False)])
    else:
        say(sent_lines(sent))
    return OK


def _say_waiting() -> None:
    sys.stderr.write("the house is closed, waiting...\n")
    sys.stderr.flush()


def text_from(given: str) -> str:
    """The words themselves, or for `-` what comes by stdin, without the line end that tools put behind it."""
    if given != "-":
        return given
    heard = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    if len(heard) > INPUT_BYTES_MAX:
        raise _too_large("what came by stdin")
    try:
        return heard.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise not_text() from None


def not_text() -> CliError:
    return CliError(
        "what came by stdin is no text",
        code="text.not-utf8",
        because="it is not UTF-8",
        try_this="send bytes with --attach FILE",
    )


def _too_large(what: str) -> CliError:
    return CliError(
        f"{what} is too large",
        code="request.too-large",
        because=f"one request carries at most {INPUT_BYTES_MAX:,} bytes",
        try_this="send less at once",
    )


def _attachments(paths: list[str]) -> list[dict[str, str]]:
    import mimetypes
    from binascii import b2a_base64

    found: list[dict[str, str]] = []
    left = INPUT_BYTES_MAX
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            raise CliError(
                f"'{path}' cannot be attached",
                code="attachment.unreadable",
                because=(error.strerror or str(error)).lower(),
                try_this="check the path",
            ) from None
        left -= len(data)
        if left < 0:
            raise _too_large("what is attached")
        media_type = mimetypes.guess_type(path, strict=False)[0] or "application/octet-stream"
        encoded = b2a_base64(data, newline=False).decode()
        found.append({"name": os.path.basename(path), "data": encoded, "media_type": media_type})
    return found


def inquire(options: Namespace) -> int:
    """Every command that is one question and one answer."""
    import json

    operation, names = ASKS[options.command]
    parameters = {name: getattr(options, name) for name in names if getattr(options, name) not in (None, "")}
    if options.command in ("allow", "deny"):
        parameters["allow"] = options.command == "allow"
    heard = ask(operation, parameters)
    answer: dict[str, Any] = json.loads(heard)
    if options.json:
        say([heard.decode()])
    else:
        say(LINES[options.command](answer))
    if options.command == "ledger" and not answer["holds"]:
        complain(
            CliError(
                "the ledger does not hold",
                code="ledger.broken",
                because="a sum above does not come out",
                try_this="keep a copy of the house before anything else, and report it",
            )
        )
        return FAILED
    return OK


# How answers read


def sent_lines(form: dict[str, Any]) -> list[str]:
    lines = pairs(form, ("envelope", "session"))
    if form["duplicate"]:
        lines += pair("duplicate", True)
    return lines + (pairs(form, ("outcome", "because")) if form["outcome"] else [])


def envelope_lines(form: dict[str, Any]) -> list[str]:
    lines = pairs(form, ENVELOPE_KEYS)
    for attachment in form.get("attachments", ()):
        lines += pair("attachment", attachment["name"])
        lines += indented(pairs(attachment, ("media-type", "size-bytes")))
    return lines + pair("text", form["text"])


def thread_lines(form: dict[str, Any]) -> list[str]:
    shown = [envelope_lines(envelope) for envelope in form["envelopes"]]
    return blocks([*shown, pairs(form, ("total", "left-out"))])


def dead_lines(form: dict[str, Any]) -> list[str]:
    return blocks([envelope_lines(letter) for letter in form["letters"]]) or ["dead: none"]


def told_lines(form: dict[str, Any]) -> list[str]:
    return form["lines"]


def status_lines(form: dict[str, Any]) -> list[str]:
    lines = pairs(form, ("version", "you", "now", "cursor"))
    for agent in form["agents"]:
        lines += pair("agent", agent["name"]) + indented(pairs(agent, ("model", "description")))
    for approval in form["approvals"]:
        calls = [line for call in approval["calls"] for line in pair("call", call_line(call))]
        lines += pair("approval", approval["id"]) + indented(calls + pairs(approval, ("because", "asked-at")))
    return lines


def sessions_lines(form: dict[str, Any]) -> list[str]:
    keys = ("id", "agent", "origin", "wakefulness", "updated-at", "snippet")
    return blocks([pairs(session, keys) for session in form["sessions"]]) or ["sessions: none"]


def stop_lines(form: dict[str, Any]) -> list[str]:
    runs = ", ".join(short(run) for run in form["cancelled-runs"])
    return pair("cancelled-runs", runs) + pairs(form, ("cleared-pending-count",))


def reset_lines(form: dict[str, Any]) -> list[str]:
    return pairs(form, ("session",)) + pair("cancelled-runs", ", ".join(form["cancelled-runs"]))


def queue_lines(form: dict[str, Any]) -> list[str]:
    queue: dict[str, Any] = form["queue"]
    own = {key: "as the agent's" if value is None else value for key, value in queue.items()}
    return pairs(form, ("session",)) + pairs(own, ("mode", "cap", "overflow"))


def decided_lines(form: dict[str, Any]) -> list[str]:
    return pairs(form, ("approval", "state"))


# Which operation a command asks for, and which of its parameters it takes from the command line.
ASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "show": ("envelope.show", ("id",)),
    "thread": ("envelope.thread", ("id",)),
    "why": ("house.why", ("id",)),
    "ledger": ("house.ledger", ()),
    "dead": ("envelope.dead", ("limit",)),
    "retry": ("envelope.retry", ("id",)),
    "status": ("house.status", ()),
    "stop": ("session.stop", ("session", "why")),
    "reset": ("session.reset", ("session", "message")),
    "queue": ("session.queue", ("session", "mode", "cap", "overflow")),
    "allow": ("approval.answer", ("id",)),
    "deny": ("approval.answer", ("id",)),
    "sessions": ("session.list", ("limit",)),
}
LINES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "show": envelope_lines,
    "thread": thread_lines,
    "why": told_lines,
    "ledger": told_lines,
    "dead": dead_lines,
    "retry": sent_lines,
    "status": status_lines,
    "stop": stop_lines,
    "reset": reset_lines,
    "queue": queue_lines,
    "allow": decided_lines,
    "deny": decided_lines,
    "sessions": sessions_lines,
}
