"""The house of the figures: the real daemon in a process of its own, with a model that goes by a script on disk.

`python -m flows.figure_daemon`, with RETINUE_TEST_SCRIPT naming a JSON file: for words that stand in what was read
last, the lines to say, one after the other. A line with `once_told` is said when the owner was told those words. Read
anew for every reply, so that a test may write it as it goes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from retinue.app import server
from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.app.logs import set_up_logs
from retinue.config import from_environment
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.record import UserTurn
from retinue.models.base import Prompt
from retinue.store.core.connection import NO_FAULTS
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.scripted_model import Line, ScriptedModel
from retinue.testing.waiting import wait_until

STAFF = (
    Agent(name="general", model="scripted", description="Knows whom to ask."),
    Agent(name="notes", model="scripted", description="Writes things down."),
    Agent(name="reading-list", model="scripted", description="Keeps what is to be read."),
    Agent(name="journal", model="scripted", tools=ToolRules(allow=("session_status",)), turns_max=2),
)


class Script:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: Counter[str] = Counter()

    def __call__(self, prompt: Prompt) -> Line:
        read = next((r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn)), "")
        for words, lines in json.loads(self._path.read_text()).items():
            if words in read and self._said[words] < len(lines):
                line = lines[self._said[words]]
                self._said[words] += 1
                return Line(text=line) if isinstance(line, str) else _line(line)
        return Line(text="(nothing to say)")


def _line(line: dict[str, object]) -> Line:
    calls = line.pop("calls", [])
    assert isinstance(calls, list)
    if (words := line.pop("once_told", None)) is not None:
        line["once"] = lambda: wait_until(lambda: _is_told(str(words)), f"the owner was told {words!r}")
    return Line(calls=tuple((tool, arguments) for tool, arguments in calls), **line)  # type: ignore[arg-type]


def _is_told(words: str) -> bool:
    with closing(sqlite3.connect(f"file:{os.environ['RETINUE_HOME']}/house.db?mode=ro", uri=True)) as store:
        sql = "SELECT 1 FROM envelopes WHERE recipient = 'person:owner' AND text = ?"
        return store.execute(sql, (words,)).fetchone() is not None


def main() -> int:
    set_up_logs(sys.stderr)
    clock = RealClock()
    model = ScriptedModel(clock, rule=Script(Path(os.environ["RETINUE_TEST_SCRIPT"])))
    connectors = [QuietConnector(clock, instance="quiet")]
    parts = server.Parts(
        clock=clock, ids=RandomIds(), faults=NO_FAULTS, models=[model], staff=STAFF, connectors=connectors
    )
    server.run(from_environment(os.environ), parts, announce=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
