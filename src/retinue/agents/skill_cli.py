#!/usr/bin/env python3
"""The command line of an exported skill bundle: one file that needs only the standard library.

    RETINUE_URL      address of the server, such as http://127.0.0.1:7717; may include a path
    RETINUE_SOCKET   path of the server's Unix socket; not used if RETINUE_URL is set
    RETINUE_TOKEN    token to sign in with
    RETINUE_SESSION  session that a request is for (or --session-id ID)

Results are JSON on stdout, and errors are JSON on stderr. Exit codes: 0 success, 1 other error, 2
usage error, 3 configuration error (no server or no token), 4 the server refused or is unreachable.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import mimetypes
import os
import socket
import sys
from typing import Any, NoReturn
from urllib.parse import urlsplit

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_CONFIG, EXIT_HTTP = range(5)
REQUEST_TIMEOUT_S = 120.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
INPUT_BYTES_MAX = 12 * 1024 * 1024

BUNDLE: dict[str, Any] = {"name": "", "summary": "", "commands": []}  # replaced by the exported commands


class SkillCliError(Exception):
    """An error of the command line, and the exit code for it."""

    def __init__(self, exit_code: int, code: str, sentence: str, *, because: str = "", try_this: str = "") -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.error: dict[str, Any] = {"code": code, "sentence": sentence, "because": because, "try": try_this}


class SkillCliParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SkillCliError(EXIT_USAGE, "usage.invalid", message, try_this=f"{self.prog} --help")


class UnixSocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("retinue", timeout=REQUEST_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(REQUEST_TIMEOUT_S)
        self.sock.connect(self._path)


# Command-line arguments


def build_parser() -> SkillCliParser:
    top = SkillCliParser(prog=os.path.basename(sys.argv[0]) or BUNDLE["name"], description=BUNDLE["summary"])
    commands = top.add_subparsers(dest="_command", required=True, metavar="COMMAND")
    for command in BUNDLE["commands"]:
        made = commands.add_parser(command["verb"], help=command["summary"], description=command["summary"])
        for parameter in command["parameters"]:
            _add_argument(made, parameter)
        made.add_argument("-s", "--session-id", dest="_session", metavar="ID", help="session that the request is for")
        if command["effect"]:
            made.add_argument(
                "--once",
                dest="_once",
                default="",
                metavar="KEY",
                help="idempotency key: a repeated request is performed once",
            )
    return top


def _add_argument(parser: SkillCliParser, parameter: dict[str, Any]) -> None:
    shown = {"help": parameter["help"].replace("%", "%%"), "dest": parameter["name"]}
    if parameter["positional"]:
        del shown["dest"]
        if not parameter["required"]:
            shown["nargs"] = "?"
        parser.add_argument(parameter["name"], metavar=parameter["name"].upper(), **shown)
    elif parameter["kind"] == "boolean" and not parameter["nullable"]:
        parser.add_argument(
            parameter["option"], action=argparse.BooleanOptionalAction, required=parameter["required"], **shown
        )
    else:
        action = "append" if parameter["repeated"] else "store"
        parser.add_argument(
            parameter["option"],
            action=action,
            required=parameter["required"],
            metavar=parameter["name"].upper(),
            **shown,
        )


def parse_parameters(command: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that were given on the command line."""
    found: dict[str, Any] = {}
    for parameter in command["parameters"]:
        typed = getattr(options, parameter["name"], None)
        if typed is None:
            continue
        if parameter["repeated"]:
            found[parameter["name"]] = _parse_list(parameter, typed)
        else:
            found[parameter["name"]] = _parse_value(parameter, typed)
    return found


def _parse_list(parameter: dict[str, Any], typed: list[str]) -> list[Any] | None:
    """Parse the values of an option that may be repeated.

    Each value is a JSON array or comma-separated text. An option for files takes one path at a
    time.
    """
    if parameter["nullable"] and list(typed) == ["null"]:
        return None
    values: list[Any] = []
    for text in typed:
        if parameter["kind"] == "file":
            values.append(_read_upload(text))
        elif text.lstrip().startswith("["):
            values += _parse_json(parameter, text)
        else:
            values += [_parse_value(parameter, word.strip()) for word in text.split(",") if word.strip()]
    return values


def _parse_value(parameter: dict[str, Any], typed: Any) -> Any:
    if isinstance(typed, bool):
        return typed
    if parameter["nullable"] and typed == "null":
        return None
    kind, option = parameter["kind"], parameter["option"]
    try:
        if kind == "number":
            return int(typed)
        if kind == "decimal":
            return float(typed)
    except ValueError:
        raise SkillCliError(
            EXIT_USAGE, "usage.invalid", f"invalid value for {option}: '{typed}'", because="it must be a number"
        ) from None
    if kind == "boolean":
        if typed not in ("true", "false"):
            raise SkillCliError(
                EXIT_USAGE,
                "usage.invalid",
                f"invalid value for {option}: '{typed}'",
                because="it must be true or false",
            )
        return typed == "true"
    if kind == "choice" and typed not in parameter["choices"]:
        because = f"it must be one of {', '.join(parameter['choices'])}"
        raise SkillCliError(EXIT_USAGE, "usage.invalid", f"invalid value for {option}: '{typed}'", because=because)
    if kind == "json":
        return _parse_json(parameter, typed)
    if kind == "file":
        return _read_upload(typed)
    if kind == "long_text" and typed == "-":
        return _read_stdin()
    return typed


def _parse_json(parameter: dict[str, Any], typed: str) -> Any:
    try:
        return json.loads(typed)
    except (ValueError, RecursionError) as error:
        sentence = f"invalid value for {parameter['option']}: it is not JSON"
        raise SkillCliError(EXIT_USAGE, "usage.invalid", sentence, because=str(error)) from None


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    if len(data) > INPUT_BYTES_MAX:
        raise SkillCliError(EXIT_USAGE, "request.too_large", "the input on stdin is too large")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise SkillCliError(
            EXIT_USAGE, "text.not_utf8", "the input on stdin is not text", because="it is not UTF-8"
        ) from None


def _read_upload(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            data = file.read(INPUT_BYTES_MAX + 1)
    except OSError as error:
        because = (error.strerror or str(error)).lower()
        raise SkillCliError(EXIT_USAGE, "attachment.unreadable", f"cannot read '{path}'", because=because) from None
    if len(data) > INPUT_BYTES_MAX:
        raise SkillCliError(EXIT_USAGE, "request.too_large", f"'{path}' is too large")
    media_type = mimetypes.guess_type(path, strict=False)[0] or "application/octet-stream"
    return {"name": os.path.basename(path), "data": base64.b64encode(data).decode(), "media_type": media_type}


# Requests to the server


def open_connection() -> tuple[http.client.HTTPConnection, str]:
    """Return a connection to the server, and the path prefix of its URL."""
    url, path = os.environ.get("RETINUE_URL", "").strip(), os.environ.get("RETINUE_SOCKET", "")
    if url:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
            because = "it must be http:// or https:// and a host, with an optional port and path"
            raise SkillCliError(EXIT_CONFIG, "config.invalid", "invalid RETINUE_URL", because=because)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=REQUEST_TIMEOUT_S), parts.path.rstrip("/")
    if path:
        return UnixSocketConnection(path), ""
    raise SkillCliError(
        EXIT_CONFIG,
        "config.no_server",
        "no server given",
        because="neither RETINUE_URL nor RETINUE_SOCKET is set",
        try_this="set RETINUE_URL=http://127.0.0.1:7717",
    )


def build_headers(options: argparse.Namespace) -> dict[str, str]:
    token = os.environ.get("RETINUE_TOKEN", "").strip()
    if not token:
        because, try_this = "RETINUE_TOKEN is not set", "create a token: retinue token create"
        raise SkillCliError(
            EXIT_CONFIG, "config.no_token", "not signed in: the token is missing", because=because, try_this=try_this
        )
    made = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    session = getattr(options, "_session", None) or os.environ.get("RETINUE_SESSION", "")
    if session:
        made["X-Retinue-Session"] = session
    if once := getattr(options, "_once", ""):
        made["Idempotency-Key"] = once
    for name, value in made.items():
        if not (value.isascii() and value.isprintable()):
            sentence = f"invalid value for the header {name}: it must be printable ASCII"
            raise SkillCliError(EXIT_CONFIG if name == "Authorization" else EXIT_USAGE, "usage.invalid", sentence)
    return made


def send_request(command: dict[str, Any], options: argparse.Namespace) -> bytes:
    body = json.dumps(parse_parameters(command, options)).encode()
    sent = build_headers(options)
    link, prefix = open_connection()
    try:
        link.request("POST", prefix + command["route"], body, sent)
        answer = link.getresponse()
        response = answer.read(ANSWER_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as error:
        because = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SkillCliError(EXIT_HTTP, "server.not_running", "the server does not answer", because=because) from None
    finally:
        link.close()
    if len(response) > ANSWER_BYTES_MAX:
        raise SkillCliError(EXIT_HTTP, "answer.too_large", f"the response has more than {ANSWER_BYTES_MAX:,} bytes")
    if answer.status != 200:  # redirects too: the token must not be sent elsewhere
        raise _error_from_response(answer.status, response)
    return response


def _error_from_response(status: int, body: bytes) -> SkillCliError:
    trouble = SkillCliError(EXIT_HTTP, "http.refused", f"the server answered {status}")
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    if isinstance(error, dict):
        trouble.error.update(error)  # pyright: ignore[reportUnknownArgumentType]
    trouble.error["status"] = status
    return trouble


def run(arguments: list[str]) -> int:
    try:
        options = build_parser().parse_args(arguments)
        command = next(each for each in BUNDLE["commands"] if each["verb"] == options._command)
        sys.stdout.write(send_request(command, options).decode() + "\n")
        sys.stdout.flush()
        return EXIT_OK
    except SkillCliError as trouble:
        error, exits = trouble.error, trouble.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except Exception as error_:  # noqa: BLE001 - the caller parses JSON, not a traceback
        error, exits = {"code": "cli.internal_error", "sentence": f"{type(error_).__name__}: {error_}"}, EXIT_ERROR
    sys.stderr.write(json.dumps({"error": error}) + "\n")
    return exits


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
