"""`make verify-providers`: check that the real APIs still behave as our clients expect. This costs money.

Nothing is sent without `--yes` (or VERIFY=1). Only APIs whose key is in the environment are checked. No key is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from retinue.config import Settings  # noqa: E402
from retinue.config.models import ProviderSettings, WireFormat  # noqa: E402
from retinue.domain.model import ModelRef  # noqa: E402
from retinue.models.encoded_context_cache import EncodedContextCache  # noqa: E402
from retinue.models.formats.wire_formats import make_provider_format  # noqa: E402
from retinue.models.model_selection import ModelSelector  # noqa: E402
from retinue.models.provider_http import HttpModel, ProviderConnections  # noqa: E402
from retinue.models.providers import BUILT_IN_PROVIDERS  # noqa: E402
from scripts.verify_checks import CHECKS, Outcome, Subject, check, cost_bound_usd  # noqa: E402

URLS = "VERIFY_PROVIDERS_URL"  # replaces the real APIs, for a trial without cost: requests go to URL/NAME
CONFIRMED = "VERIFY"


@dataclass(frozen=True, slots=True)
class Api:
    """One provider API, and a cheap model that supports everything that is checked."""

    name: str
    ref: ModelRef
    format: WireFormat


# In the chat API, newer OpenAI models support tools only without thinking.
APIS = (
    Api("anthropic", ModelRef("anthropic", "claude-haiku-5-5"), WireFormat.ANTHROPIC),
    Api("openai-responses", ModelRef("openai", "gpt-6-luna"), WireFormat.OPENAI_RESPONSES),
    Api("openai-chat", ModelRef("openai", "gpt-5.4-mini"), WireFormat.OPENAI_CHAT),
    Api("google", ModelRef("google", "gemini-3.5-flash-lite"), WireFormat.GOOGLE),
)


def key_of(api: Api, environment: Mapping[str, str]) -> str:
    return next(
        (environment[name] for name in BUILT_IN_PROVIDERS[api.ref.provider].key_variables if environment.get(name)), ""
    )


def chosen(names: Sequence[str], models: Sequence[str]) -> list[Api]:
    """Return the requested APIs, with the models that were given for them as API=MODEL."""
    instead = {name: model for name, _, model in (each.partition("=") for each in models)}
    return [
        Api(api.name, ModelRef(api.ref.provider, instead.get(api.name) or api.ref.model), api.format)
        for api in APIS
        if not names or api.name in names
    ]


def subject(api: Api, key: str, environment: Mapping[str, str], link: ProviderConnections) -> Subject:
    urls = environment.get(URLS)
    own = {api.ref.provider: ProviderSettings(url=f"{urls.rstrip('/')}/{api.name}")} if urls else {}
    home = ROOT / "build"
    settings = Settings(home=home, store=home / "none.db", zone=ZoneInfo("UTC"), providers=own)
    catalog = ModelSelector(settings, environment, now=lambda: datetime.now(UTC))
    _, target = catalog.build_target(api.ref)
    return Subject(
        name=api.name, model=HttpModel(link, make_provider_format(api.format, EncodedContextCache()), target), key=key
    )


class Say:
    """Prints lines, and replaces every key in them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key for key in keys if key]

    def __call__(self, line: str) -> None:
        for key in self._keys:
            line = line.replace(key, "***")
        print(line, flush=True)


async def verify(subjects: Sequence[Subject], say: Say) -> list[tuple[str, Outcome]]:
    found: list[tuple[str, Outcome]] = []
    for each in subjects:
        for name in CHECKS:
            outcome = await check(each, name)
            say(f"{each.name:<18}{name:<11}{outcome.verdict:<9}{outcome.words}".rstrip())
            found.append((each.name, outcome))
    return found


async def _main(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    apis = chosen(asked.apis, asked.model)
    keyed = [(api, key) for api in apis if (key := key_of(api, environment))]
    say = Say([key for _, key in keyed])
    if not keyed:
        variables = sorted({name for api in apis for name in BUILT_IN_PROVIDERS[api.ref.provider].key_variables})
        say(f"nothing to verify: none of {', '.join(variables)} is set")
        return 0
    link = ProviderConnections()
    try:
        subjects = [subject(api, key, environment, link) for api, key in keyed]
        say(_announced(subjects))
        if not asked.yes and environment.get(CONFIRMED) != "1":
            say("nothing has been sent yet. To continue: make verify-providers ARGS=--yes")
            return 2
        outcomes = await verify(subjects, say)
    finally:
        await link.close()
    wrong = sum(not outcome.passed for _, outcome in outcomes)
    say(f"{len(outcomes) - wrong} of {len(outcomes)} as expected" + (f"; {wrong} not" if wrong else ""))
    return 1 if wrong else 0


def _announced(subjects: Sequence[Subject]) -> str:
    lines = ["this calls real providers and costs money:"]
    total: float | None = 0.0
    for each in subjects:
        bound = cost_bound_usd(each.model.facts)
        total = None if bound is None or total is None else total + bound
        words = "the price is unknown" if bound is None else f"at most ${bound:.2f}"
        lines.append(f"  {each.name:<18}{each.model.name}: {words}")
    lines.append(f"  total: {'unknown' if total is None else f'at most ${total:.2f}'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make verify-providers", description=__doc__)
    parser.add_argument(
        "apis", nargs="*", metavar="API", help=f"one or more of {', '.join(api.name for api in APIS)} (default: all)"
    )
    parser.add_argument("--yes", action="store_true", help="confirm, although it costs money")
    parser.add_argument(
        "--model", action="append", default=[], metavar="API=MODEL", help="use another model for an API"
    )
    asked = parser.parse_args()
    known = {api.name for api in APIS}
    if wrong := {*asked.apis, *(each.partition("=")[0] for each in asked.model)} - known:
        parser.error(f"no such API: {', '.join(sorted(wrong))}")
    return asyncio.run(_main(asked, os.environ))


if __name__ == "__main__":
    raise SystemExit(main())
