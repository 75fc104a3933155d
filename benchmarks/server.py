"""The complete server: the model of `core` makes the floor's own request, `thinker` calls the mock provider through
the real client.

`python -m benchmarks.server HOME PORT [TELEGRAM]` starts it; TELEGRAM is the URL of a Bot API to connect to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from benchmarks.core_model import WINDOW_TOKENS, CoreModel
from benchmarks.delegation_model import HELPER, DelegatingModel
from benchmarks.mock import TOOL
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
KEY_VARIABLE = "BENCH_API_KEY"
BOT_TOKEN_VARIABLE = "BENCH_BOT_TOKEN"


class Zone(msgspec.Struct, forbid_unknown_fields=True):
    zone: str


class ClockTool:
    """A tool without cost: only the work around a call is measured."""

    arguments = Zone
    spec = ToolSpec(name=TOOL, description="Tells the time.", parameters=schema_of(Zone))

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        return f"It is noon in {arguments.zone}."


def _connector_settings(telegram: str) -> dict[str, ConnectorSettings]:
    return {
        "bot": ConnectorSettings(
            platform="telegram", platform_settings=TelegramSettings(token_env=BOT_TOKEN_VARIABLE, api_base=telegram)
        )
    }


def main() -> None:
    home, port, *telegram = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    set_up_logs(sys.stderr)
    os.environ[KEY_VARIABLE] = "sk-bench-0123456789"
    settings = Settings(
        home=home,
        store=home / "retinue.db",
        zone=ZoneInfo("UTC"),
        listen=ListenSettings(enabled=False),
        limits=RequestLimitSettings(
            calls_per_minute=1_000_000, envelopes_per_minute=1_000_000, requests_per_minute=1_000_000
        ),
        providers={
            "bench": ProviderSettings(
                format=WireFormat.OPENAI_CHAT, url=f"http://127.0.0.1:{port}/v1", key=SecretReference(env=KEY_VARIABLE)
            )
        },
        # The complete conversation is sent, however long it is, because sending it is measured.
        models=ModelRoutingSettings(entries={"bench/mock": ModelEntry(window_tokens=WINDOW_TOKENS)}),
        context=ContextSettings(emergency_context_limit=WINDOW_TOKENS),
        connectors=_connector_settings(telegram[0]) if telegram else {},
    )
    parts = ServerParts(
        clock=RealClock(),
        ids=RandomIds(),
        crash_points=NO_FAULTS,
        tools=[ClockTool()],
        models=[CoreModel(port), DelegatingModel(port)],
        first_agents=[
            Agent(name="core", model="core", concurrency=SESSIONS_MAX),
            Agent(name="thinker", model="bench/mock", concurrency=SESSIONS_MAX),
            Agent(
                name="asker", model="delegating", concurrency=SESSIONS_MAX, delegation=DelegationRules(open_max=1_000)
            ),
            Agent(name=HELPER, model="delegating", concurrency=SESSIONS_MAX),
        ],
        slots=SlotLimits(main=SESSIONS_MAX, subagent=SUBAGENTS_AT_ONCE),
    )
    run(settings, parts, announce=False)


if __name__ == "__main__":
    main()
