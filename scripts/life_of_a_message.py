"""Writes docs/internals/life-of-a-message.md: the functions that one message passes, as measured.

tests/flows/message_path.py sends the message through a production server. `make generate` runs this
module.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from flows.message_path import SOURCE, Frame, MessagePath, Stack, measure  # noqa: E402

PAGE = ROOT / "docs" / "internals" / "life-of-a-message.md"

HEAD = """\
<!-- Made from the code by `make generate`. -->

# The life of a message

This page follows one message from Telegram to the model and back. A test sends the message through
a real server, and records which functions of `src/retinue` are on the call stack at four moments.
Each table begins with the outermost function. `make shape` prints how long these paths are, and
`tests/flows/test_message_path.py` fails if they get longer.
"""

# For each moment: its heading, what happens before and at it, and what follows.
MOMENTS = {
    "accept": (
        "From the connector to the commit",
        "The connector receives the message. Intake checks who may write, fetches attachments, finds the\n"
        "session, and stores the message as an envelope. If the session is idle, the same commit starts its\n"
        "run. Only after the commit does the connector confirm the message to Telegram.",
    ),
    "model": (
        "From the lane to the model",
        "The lane of the session executes the run. The loop derives the next step from the records of the\n"
        "run. Before the model is called, the journal stores the intent of the call and reserves its cost.",
    ),
    "tool": (
        "From the lane to a tool",
        "The policy decides on all calls of a reply before the first one is performed. The journal stores\n"
        "the reply together with the intent of the first call, and the result of each call with the intent of\n"
        "the next one.",
    ),
    "delivery": (
        "From the outbox to the platform",
        "The last commit of the run stores the answer as an envelope, with the outcome of the message and\n"
        "the end of the run. The outbox stores each delivery attempt before it sends the answer.",
    ),
}


def main() -> int:
    """Measure the path of a message, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = asyncio.run(measure(Path(folder)))
    PAGE.write_text(render(path), encoding="utf-8")
    return 0


def render(path: MessagePath) -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for moment, (heading, text) in MOMENTS.items():
        rows = "".join(_rows(getattr(path, moment)))
        parts.append(f"## {heading}\n\n{text}\n\n| file | function | what it does |\n|---|---|---|\n{rows}")
    return "\n".join(parts)


def _rows(stack: Stack) -> Iterator[str]:
    file = ""
    for frame in stack:
        shown = "" if frame.file == file else f"`{frame.file}`"
        file = frame.file
        yield f"| {shown} | `{frame.function}` | {describe(frame)} |\n"


def describe(frame: Frame) -> str:
    """Return the first sentence of a function's docstring, or an empty string."""
    node: ast.AST | None = _module(frame.file)
    for name in frame.function.split("."):
        inside = ast.iter_child_nodes(node) if node is not None else ()
        node = next((each for each in inside if getattr(each, "name", "") == name), None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    sentence, dot, _ = text.partition(". ")
    return (sentence + dot).strip()


@cache
def _module(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
