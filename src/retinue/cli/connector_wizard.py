"""Prompts for missing values in `retinue connector add` if it runs at a terminal."""

from __future__ import annotations

import json
import sys

from retinue.cli.client import call_raw
from retinue.cli.output import print_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    JsonObject = dict[str, Any]


def prompt_for_parameters(parameters: JsonObject) -> JsonObject:
    """Return the parameters, after prompting for missing values.

    Secrets are read without echo and are not stored in the history of the terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return parameters
    platform = next((each for each in _fetch_platforms() if each["platform"] == parameters.get("platform")), None)
    if platform is None:  # the server reports it with a better error
        return parameters
    name = parameters.get("name") or _prompt_line(f"Connector name [{platform['platform']}]: ") or platform["platform"]
    answers, secrets = dict[str, str](), dict(parameters.get("secrets") or {})
    for question in _find_unanswered(platform["questions"], parameters):
        if question["help"]:
            print_lines([question["help"]])
        if question["secret"]:
            if answer := _prompt_secret(f"{question['question']}: "):
                secrets[question["key"]] = answer
        else:
            shown = f" [{question['default']}]" if question["default"] else ""
            if answer := _prompt_line(f"{question['question']}{shown}: ") or question["default"]:
                answers[question["key"]] = answer
    return {**parameters, "name": name, "answers": answers, "secrets": secrets}


def _fetch_platforms() -> list[JsonObject]:
    return json.loads(call_raw("connector.platforms"))["platforms"]


def _find_unanswered(questions: list[JsonObject], parameters: JsonObject) -> list[JsonObject]:
    """Return the questions about settings that were not given as options."""
    given = {key for part in ("settings", "answers", "secrets") for key in parameters.get(part) or ()}
    return [each for each in questions if not {each["key"], f"{each['key']}_env", f"{each['key']}_file"} & given]


def _prompt_line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def _prompt_secret(prompt: str) -> str:
    from getpass import getpass

    try:
        return getpass(prompt).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def format_added(data: JsonObject) -> list[str]:
    """Format the response of `connector add`."""
    account = f" as {data['account']}" if data["account"] else ""
    connector = data["connector"]
    steps = [f"  {number}. {step}" for number, step in enumerate(data["next"], start=1)]
    return [
        f"'{connector['name']}' was added{account}; its state is {connector['state']}.",
        "",
        "Next steps:",
        *steps,
    ]
