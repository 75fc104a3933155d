"""The server under test in the crash test: the real server, with a rule-based model and recorded effects.

Start it with `python -m retinue.testing.crash_server` and these variables:

- RETINUE_TEST=1.
- RETINUE_TEST_OUTSIDE: the folder in which tools and connectors record their effects, outside the
  server.
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
from retinue.app.clock_and_ids import RandomIds, RealClock, crash_points_from
from retinue.app.logs import set_up_logs
from retinue.config import load_settings
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, CrashPolicy, ExternalAgentEndpoint, ToolRules
from retinue.domain.delivery_part import ConnectorCapabilities, DeliveryPart
from retinue.domain.errors import RetinueError
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.engine.lanes import SlotLimits
from retinue.testing import crash_script as script
from retinue.testing.crash_bugs import BUGS
from retinue.testing.crash_client import APPROVAL_WAIT_S
from retinue.testing.crash_external_agent import ANSWER_WAIT_S, KEY_NAME
from retinue.testing.errors import CrashServerOutsideTest
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.tools import AppendLineTool
from retinue.tools.base import ToolContext

PART_CHARS_MAX = 8  # per message, so that every envelope to a channel leaves in several parts
AFTER_EFFECT_S = 0.01  # how long a call takes after its effect, and a channel for each delivery: the time for a kill
ATTEMPTS_MAX = 20
CONCURRENCY_MAX = 100
CALLS_PER_MINUTE = 1_000_000


def _build_agent(name: str, **kw: Any) -> Agent:
    return Agent(
        name=name,
        model="scripted",
        tools=ToolRules(ask=("ask_line",)),
        approval_wait_s=APPROVAL_WAIT_S,
        concurrency=CONCURRENCY_MAX,
        **kw,
    )


# One agent for each queue mode and delivery rule, and Dee, who receives delegations. Bob keeps the
# default number of attempts.
AGENTS = (
    _build_agent("ada", attempts_max=ATTEMPTS_MAX),
    _build_agent("bob", queue=QueuePolicy(mode=QueueMode.FOLLOWUP)),
    _build_agent("cat", crash_policy=CrashPolicy.AT_MOST_ONCE),
    _build_agent("dee", attempts_max=ATTEMPTS_MAX),
    _build_agent("eve", attempts_max=ATTEMPTS_MAX, queue=QueuePolicy(mode=QueueMode.STEER)),
    _build_agent("ivy", attempts_max=ATTEMPTS_MAX, queue=QueuePolicy(mode=QueueMode.INTERRUPT)),
)


def _build_external_agent(url: str) -> Agent:
    place = ExternalAgentEndpoint(url=url, secret=f"env:{KEY_NAME}", timeout_s=ANSWER_WAIT_S, retries=ATTEMPTS_MAX)
    return _build_agent(script.EXTERNAL_AGENT, runner=EXTERNAL, external=place, attempts_max=ATTEMPTS_MAX)


@dataclass(frozen=True, slots=True)
class SlowTool:
    """A tool that waits after its effect, so that the server can be killed before the result is stored."""

    tool: AppendLineTool
    arguments: type[msgspec.Struct] = field(init=False)
    spec: ToolSpec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", self.tool.arguments)
        object.__setattr__(self, "spec", self.tool.spec)

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        output = await self.tool.perform(arguments, context)
        await asyncio.sleep(AFTER_EFFECT_S)  # sleep: the time in which the kill is to happen
        return output


def _with_approval(tool: AppendLineTool) -> AppendLineTool:
    """Return the same tool under another name, for which the rules require an approval."""
    return AppendLineTool(tool.file, spec=replace(tool.spec, name="ask_line"))


def _build_connector(outside: Path, instance: str, *, repeats_safely: bool) -> FakeConnector:
    return FakeConnector(
        RealClock(),
        name=instance,
        repeats_safely=repeats_safely,
        delay_s=AFTER_EFFECT_S,
        capabilities=ConnectorCapabilities(text_max=PART_CHARS_MAX),
        on_deliver=partial(_record_delivery, outside / instance),
    )


def _record_delivery(file: Path, delivery_part: DeliveryPart) -> None:
    """Append a line to a file outside the server, with fsync, as evidence that the platform accepted this part."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        part = f"/{delivery_part.index}/{delivery_part.count}" if delivery_part.count > 1 else ""
        os.write(fd, f"{delivery_part.envelope.id}{part} {delivery_part.envelope.text}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def build_parts(environment: Mapping[str, str]) -> server.ServerParts:
    outside = Path(environment["RETINUE_TEST_OUTSIDE"])
    clock = RealClock()
    append = AppendLineTool(outside / "witness")
    model = ScriptedModel(clock, rule=partial(script.choose_reply, whim=f"by-{os.getpid()}"))
    return server.ServerParts(
        clock=clock,
        ids=RandomIds(),
        crash_points=crash_points_from(dict(environment)),
        models=[model],
        tools=[SlowTool(append), SlowTool(_with_approval(append))],
        first_agents=(*AGENTS, _build_external_agent(environment["RETINUE_TEST_ELSEWHERE"])),
        connectors=[
            _build_connector(outside, script.SAFE_CONNECTOR, repeats_safely=True),
            _build_connector(outside, script.UNSAFE_CONNECTOR, repeats_safely=False),
        ],
        slots=SlotLimits(
            main=CONCURRENCY_MAX, schedule=CONCURRENCY_MAX, subagent=CONCURRENCY_MAX, background=CONCURRENCY_MAX
        ),
    )


def require_test_environment(environment: Mapping[str, str]) -> None:
    if environment.get("RETINUE_TEST") != "1":
        raise CrashServerOutsideTest


def main() -> int:
    set_up_logs(sys.stderr)
    try:
        require_test_environment(os.environ)
        for name in filter(None, os.environ.get("RETINUE_TEST_BUG", "").split(",")):
            BUGS[name]()
        settings = load_settings(os.environ)
        # Fifty clients cause more model calls per minute than the default limit allows.
        settings = replace(settings, limits=replace(settings.limits, calls_per_minute=CALLS_PER_MINUTE))
        place = urlsplit(os.environ["RETINUE_TEST_ELSEWHERE"]).netloc
        settings = replace(settings, external=replace(settings.external, private_hosts=(place,)))
        server.run(settings, build_parts(os.environ), announce=False)
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
