"""A house in a process of its own, with a door to a real place and a model whose words a test decides.

One house stands for a whole file of tests: each has questions of its own, and leaves the house open.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.server_process import HouseProcess
from flows.fake_provider import Answer, Asked, Provider, Said, provider, says

from retinue.testing.wait_conditions import wait_until

AFTER_ACCEPT = "accept.after-commit:1"  # the question is in the house, and nobody has answered
BETWEEN_PARTS = "deliver-part.after-commit:1"  # the first part is there, and written down
IN_DOUBT = "deliver.after:1"  # the place has it, and the house does not know

_HOUSE = """
[house]
zone = "UTC"
drain_s = 5.0

[providers.mock]
url = "{model}"
format = "openai-chat"
key = {{ file = "{home}/mock-key" }}

[models]
default = "mock/m1"
"""
_WORD = re.compile(r"ask[0-9a-z-]+")

Reply = Said | Answer | Callable[[Asked], Said | Answer]


@dataclass(slots=True, eq=False)
class RealHouse:
    """`said` is what the model has to say to a question, by the word in it, such as `ask-lunch`."""

    process: HouseProcess
    model: Provider
    said: dict[str, Reply] = field(default_factory=dict[str, Reply])
    is_open: bool = False

    async def open(self, *, dies_at: str = "") -> None:
        await asyncio.to_thread(self.process.open, crash_at=dies_at)
        self.is_open = True

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)
        self.is_open = False

    async def close(self) -> None:
        """In good order."""
        await asyncio.to_thread(self.process.close)
        self.is_open = False

    async def reopen(self, *, dies_at: str = "") -> None:
        """Killed like any process, with whatever it was at."""
        await self.kill()
        await self.open(dies_at=dies_at)

    async def dies(self) -> None:
        await asyncio.to_thread(self.process.wait_for_crash)
        self.is_open = False

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.process.call, operation, **parameters)

    async def retinue(self, *words: str) -> str:
        """What the command says, which must say yes."""
        done = await asyncio.to_thread(self.process.retinue, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def until_quiet(self) -> None:
        """Until nobody works, and nothing is on its way out."""

        open_ones = "select count(*) from envelopes where status in ('pending', 'claimed')"
        await wait_until(lambda: self.rows(open_ones) == [(0,)], "nobody works, and nothing is on its way out")

    async def holds(self) -> None:
        """Nothing is lost, as the command says that every owner has."""
        await self.until_quiet()
        await self.retinue("ledger")

    def rows(self, sql: str, *parameters: str) -> list[Any]:
        """Read behind the house's back."""
        with closing(sqlite3.connect(f"file:{self.process.home / 'house.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql, parameters).fetchall()

    def outcomes(self, word: str) -> list[str]:
        """How each answer with a word in it ended that was addressed to a room."""
        sql = (
            "select outcome from envelopes join outcomes on outcomes.envelope = envelopes.id "
            "where text like ? and recipient like 'channel:%' order by seq"
        )
        return [outcome for (outcome,) in self.rows(sql, f"%{word}%")]

    def reply(self, asked: Asked) -> Said | Answer:
        """To the newest word of a question, whatever stands around it."""
        words = _WORD.findall(_last_user(asked))
        found = self.said.get(words[-1]) if words else None
        if found is None:
            return says(f"An answer to {words[-1]}." if words else "I was asked nothing.")
        return found(asked) if callable(found) else found


def _last_user(asked: Asked) -> str:
    """The words of whoever spoke last, where a call's results are nobody's."""
    for message in reversed(asked.body["messages"]):
        if message["role"] == "user":
            return as_text(message["content"])
    return ""


def as_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def was_called(asked: Asked) -> bool:
    """Whether the tools that were asked for have answered: the model's turn to say the last word."""
    return asked.body["messages"][-1]["role"] == "tool"


def once(texts: list[str], word: str) -> bool:
    """Whether one of them has the word in it, and not two."""
    return Counter(word in text for text in texts)[True] == 1


@asynccontextmanager
async def real_house(root: Path, settings: str, *, secrets: Mapping[str, str]) -> AsyncGenerator[RealHouse]:
    """Open, with these settings. `{home}` in them is where the secrets are, each in a file of its own."""
    process = HouseProcess(root / "home")
    process.home.mkdir(parents=True, mode=0o700)
    async with provider() as model:
        for name, secret in {"mock-key": "sk-doors-0123456789abcdef", **secrets}.items():
            (process.home / name).write_text(secret)
            (process.home / name).chmod(0o600)
        text = _HOUSE.format(model=model.url, home=process.home) + settings.replace("{home}", str(process.home))
        (process.home / "retinue.toml").write_text(text)
        house = RealHouse(process, model)
        model.rule = house.reply
        try:
            await house.open()
            yield house
        finally:
            await asyncio.to_thread(process.close)
