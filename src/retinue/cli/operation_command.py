"""Runs the operation of a command: collects its parameters, calls the server and prints the response."""

from __future__ import annotations

import os
import sys

from retinue.cli.client import CALL_S, ask, is_elsewhere, post, refusal
from retinue.cli.errors import CLOSED, FAILED, OK, CliError, HouseClosed
from retinue.cli.output import complain, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

INPUT_BYTES_MAX = 12 * 1024 * 1024  # encoded, this fits into the server's request size limit
LOOKS_SELF = (
    "house.ledger",
    "house.why",
    "house.doctor",
    "house.backup",
    "session.export",
    "audit.list",
    "audit.verify",
    "audit.export",
)
"""What can also be had of a closed house, by a program that opens its store: see `retinue.app.offline`."""
LONG_S = 900.0
TAKES_LONG = (
    "house.ledger",
    "house.doctor",
    "house.backup",
    "house.purge",
    "session.export",
    "session.import",
    "audit.verify",
    "audit.export",
    "connector.add",
    "connector.test",
)
"""What waits for a place elsewhere, or reads or writes as much as a whole house, before its answer begins."""


def perform(options: Namespace) -> int:
    """Run the operation of a command and print its response."""
    parameters = given(options)
    if options.operation == "connector.add":
        from retinue.cli.connector_wizard import with_answers

        parameters = with_answers(parameters)
    return send(options, parameters) if options.operation == "envelope.send" else inquire(options, parameters)


def given(options: Namespace) -> dict[str, Any]:
    """Return the parameters that were typed. Others are omitted, so that the operation's defaults apply."""
    from retinue.cli.parser import NULL, dest, find

    parameters: dict[str, Any] = {}
    for name, _, kind, *_ in find(options.operation)[5]:
        value = getattr(options, dest(name), None)
        if value is None:
            continue
        if value is NULL:
            parameters[name] = None
        elif kind == "words":
            parameters[name] = text_from(value)
        elif kind == "file":
            parameters[name] = _attachments(value)
        else:
            parameters[name] = value
    return parameters


def send(options: Namespace, parameters: dict[str, Any]) -> int:
    """Send an envelope until it is accepted. Its idempotency key makes a retry after a lost response safe."""
    parameters["key"] = parameters.get("key") or os.urandom(16).hex()
    try:
        sent = post(parameters, wait_s=options.wait, waiting=_say_waiting)
    except HouseClosed as closed:
        if closed.asked:
            closed.try_this = f"retinue up, then send it again with --key {parameters['key']}: it is accepted once"
        raise
    if options.json:
        import json

        say([json.dumps(sent, ensure_ascii=False)])
    else:
        from retinue.cli.formatters import sent_lines

        say(sent_lines(sent))
    return OK


def _say_waiting() -> None:
    sys.stderr.write("the house is closed, waiting...\n")
    sys.stderr.flush()


def inquire(options: Namespace, parameters: dict[str, Any]) -> int:
    """Call an operation and print its response. Without a server, some are answered from the store."""
    import json

    timeout_s = LONG_S if options.operation in TAKES_LONG else CALL_S
    try:
        heard = ask(options.operation, parameters, key=options.key, timeout_s=timeout_s)
    except HouseClosed as closed:
        if closed.asked or options.operation not in LOOKS_SELF or is_elsewhere():
            raise
        heard = look(options.operation, parameters)
    answer: dict[str, Any] = json.loads(heard)
    if options.json:
        say([heard.decode()])
    else:
        say(_lines(options.operation, answer))
    if (bad := bad_news(options.operation, answer)) is not None:
        complain(bad)
        return FAILED
    return OK


def bad_news(operation: str, answer: dict[str, Any]) -> CliError | None:
    """Return an error if a successful response reports a problem, such as a failed check."""
    if operation == "house.ledger" and not answer["holds"]:
        return CliError(
            "the ledger does not hold",
            code="ledger.broken",
            because="a sum above does not come out",
            try_this="keep a copy of the house before anything else, and report it",
        )
    if operation == "house.doctor" and answer.get("health") == "problem":
        return CliError(
            "the house is not well",
            code="house.unwell",
            because="there are problems above",
            try_this="do what stands below each of them, then ask again",
        )
    if operation == "connector.test" and not answer["ok"]:
        return CliError(
            f"the connector '{answer['name']}' does not get in",
            code="connector.not-accepted",
            because=answer["because"] or answer["sentence"],
            try_this=answer["try"] or "look at its settings, and at the page of its kind in docs/guides",
        )
    if operation == "audit.verify" and not answer["holds"]:
        return CliError(
            "the audit does not hold",
            code="audit.broken",
            because="it is not as it was written, where it says so above",
            try_this="keep a copy of the house before anything else; an older backup may show what was there",
        )
    return None


def _lines(operation: str, answer: dict[str, Any]) -> list[str]:
    from retinue.cli.formatters import lines_of, table_of

    if not sys.stdout.isatty():
        return lines_of(operation, answer)
    return table_of(operation, answer, os.get_terminal_size(sys.stdout.fileno()).columns or 80)


def look(operation: str, parameters: dict[str, Any]) -> bytes:
    """Answer an operation without a server: a child process takes the instance lock and reads the store."""
    import json
    import subprocess

    sys.stdout.flush()
    words = [sys.executable, "-P", "-m", "retinue.app.offline", operation, json.dumps(parameters)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    if done.returncode != OK:
        error = refusal(done.stdout)
        error.exits = CLOSED if error.code == "house.closed" else error.exits
        raise error
    return done.stdout.rstrip(b"\n")


# Input from stdin and files


def text_from(given: str) -> str:
    """Return the text, or for `-` the text from stdin without the newline that tools append."""
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
