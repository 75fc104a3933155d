"""The server that crash tests kill: the real one, with a rule-based model and effects recorded outside it.

Start it with `python -m retinue.testing.crash_server` and these variables:

- RETINUE_TEST=1.
- RETINUE_TEST_OUTSIDE: the folder in which tools and channels record their effects.
- RETINUE_TEST_ELSEWHERE: the URL of the external agent.
- RETINUE_TEST_CRASH=point:n: kill the process when a crash point is reached for the n-th time.
- RETINUE_TEST_BUG: names of bugs to plant, which the verdict must detect.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from retinue.app import server
from retinue.app.clock_and_ids import RandomIds, RealClock, faults_from
from retinue.app.logs import set_up_logs
from retinue.config import from_environment
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, Delivery, External, ToolRules
from retinue.domain.delivery_part import Abilities, Parcel
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.engine.lanes import Slots
from retinue.testing import crash_script as script
from retinue.testing.crash_bugs import BUGS
from retinue.testing.crash_client import APPROVAL_WAIT_S
from retinue.testing.crash_external_agent import KEY_NAME, WAIT_S
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.tools import AppendLine
from retinue.tools.base import Scene

TEXT_MAX = 8  # per message, so that every envelope to a channel leaves in several parts
LINGER_S = 0.01  # how long a call takes after its effect, and a channel for each delivery: time in which to be killed
ATTEMPTS_MAX = 20
ANY = 100
CALLS_PER_MINUTE = 1_000_000


def _agent(name: str, **kw: Any) -> Agent:
    return Agent(
        name=name,
        model="scripted",
        tools=ToolRules(ask=("ask_line",)),
        approval_wait_s=APPROVAL_WAIT_S,
        concurrency=ANY,
        **kw,
    )


# One agent for each queue mode and delivery rule, and Dee, who receives delegations. Bob keeps the
# default number of attempts.
STAFF = (
    _agent("ada", attempts_max=ATTEMPTS_MAX),
    _agent("bob", queue=QueuePolicy(mode=QueueMode.FOLLOWUP)),
    _agent("cat", delivery=Delivery.AT_MOST_ONCE),
    _agent("dee", attempts_max=ATTEMPTS_MAX),
    _agent("eve", attempts_max=ATTEMPTS_MAX, queue=QueuePolicy(mode=QueueMode.STEER)),
    _agent("ivy", attempts_max=ATTEMPTS_MAX, queue=QueuePolicy(mode=QueueMode.INTERRUPT)),
)


def _who_works_elsewhere(url: str) -> Agent:
    place = External(url=url, secret=f"env:{KEY_NAME}", timeout_s=WAIT_S, retries=ATTEMPTS_MAX)
    return _agent(script.ELSEWHERE, runner=EXTERNAL, external=place, attempts_max=ATTEMPTS_MAX)


@dataclass(frozen=True, slots=True)
class Lingering:
    """A tool that waits after its effect, before the server learns of the effect."""

    tool: AppendLine
    arguments: type[msgspec.Struct] = field(init=False)
    spec: ToolSpec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", self.tool.arguments)
        object.__setattr__(self, "spec", self.tool.spec)

    async def perform(self, arguments: Any, scene: Scene) -> str:
        output = await self.tool.perform(arguments, scene)
        await asyncio.sleep(LINGER_S)  # sleep: the time in which the kill is to happen
        return output


def _asking(tool: AppendLine) -> AppendLine:
    """Returns the same tool under the name that needs an approval."""
    return AppendLine(tool.file, spec=replace(tool.spec, name="ask_line"))


def _room(outside: Path, instance: str, *, repeats_safely: bool) -> QuietConnector:
    return QuietConnector(
        RealClock(),
        instance=instance,
        repeats_safely=repeats_safely,
        after_s=LINGER_S,
        abilities=Abilities(text_max=TEXT_MAX),
        on_deliver=partial(_mark, outside / instance),
    )


def _mark(file: Path, parcel: Parcel) -> None:
    """Append a line with fsync, outside the server: evidence that the platform accepted this part."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        part = f"/{parcel.index}/{parcel.count}" if parcel.count > 1 else ""
        os.write(fd, f"{parcel.envelope.id}{part} {parcel.envelope.text}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def parts(environment: Mapping[str, str]) -> server.Parts:
    outside = Path(environment["RETINUE_TEST_OUTSIDE"])
    clock = RealClock()
    append = AppendLine(outside / "witness")
    model = ScriptedModel(clock, rule=partial(script.rule, whim=f"by-{os.getpid()}"))
    return server.Parts(
        clock=clock,
        ids=RandomIds(),
        faults=faults_from(dict(environment)),
        models=[model],
        tools=[Lingering(append), Lingering(_asking(append))],
        staff=(*STAFF, _who_works_elsewhere(environment["RETINUE_TEST_ELSEWHERE"])),
        connectors=[
            _room(outside, script.STEADY, repeats_safely=True),
            _room(outside, script.RISKY, repeats_safely=False),
        ],
        slots=Slots(main=ANY, schedule=ANY, subagent=ANY, background=ANY),
    )


def refuse_outside_tests(environment: Mapping[str, str]) -> None:
    if environment.get("RETINUE_TEST") != "1":
        raise Invalid(
            "this daemon is for crash tests",
            because="its staff, its tools and its model are made to be killed, and RETINUE_TEST is not 1",
            try_this="open a real house with `retinue run`",
            code="config.test-only",
        )


def main() -> int:
    set_up_logs(sys.stderr)
    try:
        refuse_outside_tests(os.environ)
        for name in filter(None, os.environ.get("RETINUE_TEST_BUG", "").split(",")):
            BUGS[name]()
        settings = from_environment(os.environ)
        # Fifty clients cause more model calls per minute than the default limit allows.
        settings = replace(settings, limits=replace(settings.limits, calls_per_minute=CALLS_PER_MINUTE))
        place = urlsplit(os.environ["RETINUE_TEST_ELSEWHERE"]).netloc
        settings = replace(settings, external=replace(settings.external, private_hosts=(place,)))
        server.run(settings, parts(os.environ), announce=False)
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
