"""Runs the operation of a command: collects its parameters, calls the server and prints the response."""

from __future__ import annotations

import os
import sys

from retinue.cli.client import CALL_TIMEOUT_S, call_raw, has_server_url, parse_error, send_until_accepted
from retinue.cli.errors import EXIT_FAILED, EXIT_NOT_RUNNING, EXIT_OK, CliError, ServerNotAnswering
from retinue.cli.output import print_error, print_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

INPUT_BYTES_MAX = 12 * 1024 * 1024  # encoded, this fits into the server's request size limit
OFFLINE_OPERATIONS = (
    "server.ledger",
    "server.why",
    "server.doctor",
    "server.backup",
    "session.export",
    "audit.list",
    "audit.verify",
    "audit.export",
)
"""Operations that also work without a running server: a child process reads the store. See `retinue.app.offline`."""
SLOW_CALL_TIMEOUT_S = 900.0
SLOW_OPERATIONS = (
    "server.ledger",
    "server.doctor",
    "server.backup",
    "server.purge",
    "session.export",
    "session.import",
    "audit.verify",
    "audit.export",
    "connector.add",
    "connector.test",
)
"""Operations that wait for another service, or read or write large parts of the store, before they answer."""


def run_operation(options: Namespace) -> int:
    """Run the operation of a command and print its response."""
    parameters = collect_parameters(options)
    if options.operation == "connector.add":
        from retinue.cli.connector_wizard import prompt_for_parameters

        parameters = prompt_for_parameters(parameters)
    return run_send(options, parameters) if options.operation == "envelope.send" else run_call(options, parameters)


def collect_parameters(options: Namespace) -> dict[str, Any]:
    """Return the parameters that the user gave. All others are omitted, so that the operation's defaults apply."""
    from retinue.cli.parser import NULL, find_operation, to_dest

    parameters: dict[str, Any] = {}
    for name, _, kind, *_ in find_operation(options.operation)[4]:
        value = getattr(options, to_dest(name), None)
        if value is None:
            continue
        if value is NULL:
            parameters[name] = None
        elif kind == "long_text":
            parameters[name] = read_text(value)
        elif kind == "file":
            parameters[name] = _read_attachments(value)
        else:
            parameters[name] = value
    return parameters


def run_send(options: Namespace, parameters: dict[str, Any]) -> int:
    """Send an envelope, and retry until the server accepts it. The idempotency key prevents duplicates."""
    parameters["key"] = parameters.get("key") or os.urandom(16).hex()
    try:
        sent = send_until_accepted(parameters, wait_s=options.wait, on_waiting=_print_waiting)
    except ServerNotAnswering as closed:
        if closed.may_have_arrived:
            closed.try_this = f"retinue up, then send it again with --key {parameters['key']}: it is accepted only once"
        raise
    if options.json:
        import json

        print_lines([json.dumps(sent, ensure_ascii=False)])
    else:
        from retinue.cli.formatters import format_sent

        print_lines(format_sent(sent))
    return EXIT_OK


def _print_waiting() -> None:
    sys.stderr.write("the server is not answering, waiting...\n")
    sys.stderr.flush()


def run_call(options: Namespace, parameters: dict[str, Any]) -> int:
    """Call an operation and print the response.

    If no server is running, some operations are performed by a child process that reads the store.
    """
    import json

    timeout_s = SLOW_CALL_TIMEOUT_S if options.operation in SLOW_OPERATIONS else CALL_TIMEOUT_S
    try:
        response = call_raw(options.operation, parameters, key=options.key, timeout_s=timeout_s)
    except ServerNotAnswering as closed:
        if closed.may_have_arrived or options.operation not in OFFLINE_OPERATIONS or has_server_url():
            raise
        response = run_offline(options.operation, parameters)
    answer: dict[str, Any] = json.loads(response)
    if options.json:
        print_lines([response.decode()])
    else:
        print_lines(_format_response(options.operation, answer))
    if (problem := find_problem(options.operation, answer)) is not None:
        print_error(problem)
        return EXIT_FAILED
    return EXIT_OK


def find_problem(operation: str, response: dict[str, Any]) -> CliError | None:
    """Return an error if the response reports a problem, such as a failed check. Otherwise return None."""
    if operation == "server.ledger" and not response["ok"]:
        return CliError(
            "the ledger is inconsistent",
            code="ledger.broken",
            because="an equation above does not hold",
            try_this="copy the data directory before you change anything, and report it",
        )
    if operation == "server.doctor" and response.get("health") == "problem":
        return CliError(
            "the doctor found problems",
            code="server.unhealthy",
            because="at least one of the checks above failed",
            try_this="take the next step given for each problem, then run retinue doctor again",
        )
    if operation == "connector.test" and not response["ok"]:
        name, reason = response["name"], response["because"] or response["sentence"]
        return CliError(
            f"the connector '{name}' cannot connect",
            code="connector.rejected",
            because=reason,
            try_this=response["try"] or "check its settings; docs/guides has a page for its platform",
        )
    if operation == "audit.verify" and not response["ok"]:
        return CliError(
            "the audit log is inconsistent",
            code="audit.broken",
            because="entries were changed or removed, as shown above",
            try_this="copy the data directory before you change anything; an older backup may have the entries",
        )
    return None


def _format_response(operation: str, response: dict[str, Any]) -> list[str]:
    from retinue.cli.formatters import format_for_terminal, format_lines

    if not sys.stdout.isatty():
        return format_lines(operation, response)
    return format_for_terminal(operation, response, os.get_terminal_size(sys.stdout.fileno()).columns or 80)


def run_offline(operation: str, parameters: dict[str, Any]) -> bytes:
    """Perform an operation without a server. A child process takes the instance lock and reads the store."""
    import json
    import subprocess

    sys.stdout.flush()
    words = [sys.executable, "-P", "-m", "retinue.app.offline", operation, json.dumps(parameters)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    if done.returncode != EXIT_OK:
        error = parse_error(done.stdout)
        error.exit_code = EXIT_NOT_RUNNING if error.code == "server.not_running" else error.exit_code
        raise error
    return done.stdout.rstrip(b"\n")


# Input from stdin and files


def read_text(value: str) -> str:
    """Return the given text. For `-`, return the text from stdin, without a newline at its end."""
    if value != "-":
        return value
    data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    if len(data) > INPUT_BYTES_MAX:
        raise _too_large_error("the text from stdin")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise not_utf8_error() from None


def not_utf8_error() -> CliError:
    return CliError(
        "the input on stdin is not text",
        code="text.not_utf8",
        because="it is not valid UTF-8",
        try_this="send it as a file: --attach FILE",
    )


def _too_large_error(part: str) -> CliError:
    return CliError(
        "the request is too large",
        code="request.too_large",
        because=f"the limit is {INPUT_BYTES_MAX:,} bytes for {part}",
        try_this="send less in one request",
    )


def _read_attachments(paths: list[str]) -> list[dict[str, str]]:
    import mimetypes
    from binascii import b2a_base64

    found: list[dict[str, str]] = []
    left = INPUT_BYTES_MAX
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CliError(
                f"cannot attach '{path}'",
                code="attachment.unreadable",
                because=reason,
                try_this="check the path and its permissions",
            ) from None
        left -= len(data)
        if left < 0:
            raise _too_large_error("all attachments together")
        media_type = mimetypes.guess_type(path, strict=False)[0] or "application/octet-stream"
        encoded = b2a_base64(data, newline=False).decode()
        found.append({"name": os.path.basename(path), "data": encoded, "media_type": media_type})
    return found
