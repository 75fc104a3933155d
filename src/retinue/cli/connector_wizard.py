"""`retinue connector add`: prompts for missing values at a terminal. Programs pass them as options."""

from __future__ import annotations

import json
import sys

from retinue.cli.client import ask
from retinue.cli.output import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Form = dict[str, Any]


def with_answers(parameters: Form) -> Form:
    """Return the parameters with prompted values added. Secrets are read without echo and without history."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return parameters
    kind = next((each for each in _kinds() if each["kind"] == parameters.get("kind")), None)
    if kind is None:  # the server reports it with a better error
        return parameters
    name = parameters.get("name") or _line(f"What to call it here [{kind['kind']}]: ") or kind["kind"]
    answers, secrets = dict[str, str](), dict(parameters.get("secrets") or {})
    for question in _open(kind["questions"], parameters):
        if question["help"]:
            say([question["help"]])
        if question["secret"]:
            if told := _secret(f"{question['ask']}: "):
                secrets[question["key"]] = told
        else:
            shown = f" [{question['default']}]" if question["default"] else ""
            if told := _line(f"{question['ask']}{shown}: ") or question["default"]:
                answers[question["key"]] = told
    return {**parameters, "name": name, "answers": answers, "secrets": secrets}


def _kinds() -> list[Form]:
    return json.loads(ask("connector.kinds"))["kinds"]


def _open(questions: list[Form], parameters: Form) -> list[Form]:
    """Return the questions that no option has answered."""
    given = {key for part in ("settings", "answers", "secrets") for key in parameters.get(part) or ()}
    return [each for each in questions if not {each["key"], f"{each['key']}_env", f"{each['key']}_file"} & given]


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def _secret(prompt: str) -> str:
    from getpass import getpass

    try:
        return getpass(prompt).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def added_lines(form: Form) -> list[str]:
    """Format the answer of `connector add`."""
    known = f" as {form['account']}" if form["account"] else ""
    connector = form["connector"]
    steps = [f"  {number}. {step}" for number, step in enumerate(form["next"], start=1)]
    return [
        f"'{connector['name']}' is connected{known}; its line is {connector['state']}.",
        "",
        "What to do next:",
        *steps,
    ]
