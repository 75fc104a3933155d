"""The whole daemon: `core` makes the floor's own request, `thinker` asks the mock provider through the real client.

`python -m benchmarks.house HOME PORT [TELEGRAM]`: with the address of a Bot API, it listens there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from benchmarks.core_model import WINDOW_TOKENS, CoreModel
from benchmarks.mock import TOOL
from benchmarks.staff_model import HELPER, StaffModel
from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.app.logs import set_up_logs
from retinue.app.server import ServerParts, run
from retinue.config import Settings
from retinue.config.connectors import ConnectorSettings
from retinue.config.models import ContextSettings, ModelEntry, ModelRoutingSettings, ProviderSettings, WireFormat
from retinue.config.secret import SecretReference
from retinue.config.settings import ListenSettings, RequestLimitSettings
from retinue.connectors.telegram.settings import TelegramSettings
from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.tool import ToolSpec
from retinue.engine.lanes import SlotLimits
from retinue.store.core.connection import NO_FAULTS
from retinue.tools.base import ToolContext, schema_of

SESSIONS_MAX = 100
SUBAGENTS_AT_ONCE = 8
KEY = "BENCH_API_KEY"
BOT = "BENCH_BOT_TOKEN"


class Zone(msgspec.Struct, forbid_unknown_fields=True):
    zone: str


class LooksAtTheClock:
    """Costs nothing by itself: what is measured is everything around a call."""

    arguments = Zone
    spec = ToolSpec(name=TOOL, description="Tells the time.", parameters=schema_of(Zone))

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        return f"It is noon in {arguments.zone}."


def _doors(telegram: str) -> dict[str, ConnectorSettings]:
    return {"bot": ConnectorSettings(kind="telegram", own=TelegramSettings(token_env=BOT, api_base=telegram))}


def main() -> None:
    home, port, *telegram = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    set_up_logs(sys.stderr)
    os.environ[KEY] = "sk-bench-0123456789"
    settings = Settings(
        home=home,
        store=home / "house.db",
        zone=ZoneInfo("UTC"),
        listen=ListenSettings(enabled=False),
        limits=RequestLimitSettings(
            calls_per_minute=1_000_000, envelopes_per_minute=1_000_000, requests_per_minute=1_000_000
        ),
        providers={
            "bench": ProviderSettings(
                format=WireFormat.OPENAI_CHAT, url=f"http://127.0.0.1:{port}/v1", key=SecretReference(env=KEY)
            )
        },
        # Whatever the length of a conversation, all of it is sent: what is measured is sending it.
        models=ModelRoutingSettings(entries={"bench/mock": ModelEntry(window_tokens=WINDOW_TOKENS)}),
        context=ContextSettings(emergency_context_limit=WINDOW_TOKENS),
        connectors=_doors(telegram[0]) if telegram else {},
    )
    parts = ServerParts(
        clock=RealClock(),
        ids=RandomIds(),
        crash_points=NO_FAULTS,
        tools=[LooksAtTheClock()],
        models=[CoreModel(port), StaffModel(port)],
        first_agents=[
            Agent(name="core", model="core", concurrency=SESSIONS_MAX),
            Agent(name="thinker", model="bench/mock", concurrency=SESSIONS_MAX),
            Agent(name="asker", model="staff", concurrency=SESSIONS_MAX, delegation=DelegationRules(open_max=1_000)),
            Agent(name=HELPER, model="staff", concurrency=SESSIONS_MAX),
        ],
        slots=SlotLimits(main=SESSIONS_MAX, subagent=SUBAGENTS_AT_ONCE),
    )
    run(settings, parts, announce=False)


if __name__ == "__main__":
    main()
