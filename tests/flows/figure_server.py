"""The server for the flows of the figures: a real server in its own process, with a model that reads a script from
disk.

`python -m flows.figure_server`, with RETINUE_TEST_SCRIPT naming a JSON file: for words in the last message, the replies
to it, one after the other. A reply with `once_told` waits until the owner has received that text. The file is read
again for each reply, so that a test may change it while the server runs.
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
from retinue.config import load_settings
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.record import UserTurn
from retinue.models.base import ModelPrompt
from retinue.store.core.connection import NO_FAULTS
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply
from retinue.testing.wait_conditions import wait_until

STAFF = (
    Agent(name="general", model="scripted", description="Knows whom to ask."),
    Agent(name="notes", model="scripted", description="Writes things down."),
    Agent(name="reading-list", model="scripted", description="Keeps what is to be read."),
    Agent(name="journal", model="scripted", tools=ToolRules(allow=("session_status",)), turns_max=2),
)


class Script:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._used_lines: Counter[str] = Counter()

    def __call__(self, prompt: ModelPrompt) -> ScriptedReply:
        read = next((r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn)), "")
        for words, lines in json.loads(self._path.read_text()).items():
            if words in read and self._used_lines[words] < len(lines):
                line = lines[self._used_lines[words]]
                self._used_lines[words] += 1
                return ScriptedReply(text=line) if isinstance(line, str) else _line(line)
        return ScriptedReply(text="(nothing to say)")


def _line(line: dict[str, object]) -> ScriptedReply:
    calls = line.pop("calls", [])
    assert isinstance(calls, list)
    if (words := line.pop("once_told", None)) is not None:
        line["once"] = lambda: wait_until(lambda: _was_sent_to_owner(str(words)), f"the owner received {words!r}")
    return ScriptedReply(calls=tuple((tool, arguments) for tool, arguments in calls), **line)  # type: ignore[arg-type]


def _was_sent_to_owner(words: str) -> bool:
    with closing(sqlite3.connect(f"file:{os.environ['RETINUE_HOME']}/retinue.db?mode=ro", uri=True)) as store:
        sql = "SELECT 1 FROM envelopes WHERE recipient = 'person:owner' AND text = ?"
        return store.execute(sql, (words,)).fetchone() is not None


def main() -> int:
    set_up_logs(sys.stderr)
    clock = RealClock()
    model = ScriptedModel(clock, rule=Script(Path(os.environ["RETINUE_TEST_SCRIPT"])))
    connectors = [FakeConnector(clock, name="quiet")]
    parts = server.ServerParts(
        clock=clock, ids=RandomIds(), crash_points=NO_FAULTS, models=[model], first_agents=STAFF, connectors=connectors
    )
    server.run(load_settings(os.environ), parts, announce=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
