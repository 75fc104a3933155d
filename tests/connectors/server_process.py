"""Helpers to run the server in its own process, with a real platform server and a scripted model provider.

One process serves a whole test file: each test has questions of its own and leaves the server running.
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

from cli.server_process import ServerProcess
from flows.fake_provider import Answer, Asked, FakeReply, Provider, provider, says

from retinue.testing.wait_conditions import wait_until

AFTER_ACCEPT = "accept.after-commit:1"  # the question is stored and not answered
BETWEEN_PARTS = "deliver-part.after-commit:1"  # the first part is delivered and recorded
AFTER_PLATFORM_SEND = "deliver.after:1"  # the platform has the message, and the server does not know

_SERVER = """
[server]
zone = "UTC"
drain_s = 60.0

[providers.mock]
url = "{model}"
format = "openai-chat"
key = {{ file = "{home}/mock-key" }}

[models]
default = "mock/m1"
"""
_QUESTION_WORD = re.compile(r"ask[0-9a-z-]+")

Reply = FakeReply | Answer | Callable[[Asked], FakeReply | Answer]


@dataclass(slots=True, eq=False)
class ServerWithProvider:
    """A server and its model provider. `replies` has the reply to a question by its word, such as `ask-lunch`."""

    process: ServerProcess
    model: Provider
    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])
    is_open: bool = False

    async def open(self, *, crash_point: str = "") -> None:
        await asyncio.to_thread(self.process.open, crash_at=crash_point)
        self.is_open = True

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)
        self.is_open = False

    async def close(self) -> None:
        """Stop the server normally."""
        await asyncio.to_thread(self.process.close)
        self.is_open = False

    async def reopen(self, *, crash_point: str = "") -> None:
        """Kill the server, whatever it is doing, and start it again."""
        await self.kill()
        await self.open(crash_point=crash_point)

    async def wait_until_crashed(self) -> None:
        await asyncio.to_thread(self.process.wait_for_crash)
        self.is_open = False

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.process.call, operation, **parameters)

    async def retinue(self, *words: str) -> str:
        """Run a `retinue` command that must succeed, and return its output."""
        done = await asyncio.to_thread(self.process.retinue, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def wait_until_idle(self) -> None:
        """Wait until no run is active and no delivery is pending."""

        unsettled_count = "select count(*) from envelopes where status in ('pending', 'claimed')"
        await wait_until(
            lambda: self.query_database(unsettled_count) == [(0,)], "no run is active and no delivery is pending"
        )

    async def check_nothing_is_lost(self) -> None:
        """Check the ledger with the command that every owner has."""
        await self.wait_until_idle()
        await self.retinue("ledger")

    def query_database(self, sql: str, *parameters: str) -> list[Any]:
        """Query the database directly."""
        with closing(sqlite3.connect(f"file:{self.process.home / 'retinue.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql, parameters).fetchall()

    def list_delivery_outcomes(self, word: str) -> list[str]:
        """Return the outcome of each envelope to a channel whose text contains a word."""
        sql = (
            "select outcome from envelopes join outcomes on outcomes.envelope = envelopes.id "
            "where text like ? and recipient like 'channel:%' order by seq"
        )
        return [outcome for (outcome,) in self.query_database(sql, f"%{word}%")]

    def reply(self, asked: Asked) -> FakeReply | Answer:
        """Reply to the newest question in the prompt, whatever text surrounds it."""
        words = _QUESTION_WORD.findall(_last_user_text(asked))
        found = self.replies.get(words[-1]) if words else None
        if found is None:
            return says(f"An answer to {words[-1]}." if words else "I was asked nothing.")
        return found(asked) if callable(found) else found


def _last_user_text(asked: Asked) -> str:
    """Return the text of the newest message of a user. Tool results have another role."""
    for message in reversed(asked.body["messages"]):
        if message["role"] == "user":
            return as_text(message["content"])
    return ""


def as_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def tools_have_answered(asked: Asked) -> bool:
    """Return whether the requested tools have results, so that the model can give its final reply."""
    return asked.body["messages"][-1]["role"] == "tool"


def exactly_one_contains(texts: list[str], word: str) -> bool:
    """Return whether exactly one of the texts contains the word."""
    return Counter(word in text for text in texts)[True] == 1


@asynccontextmanager
async def open_server_with_provider(
    root: Path, settings: str, *, secrets: Mapping[str, str]
) -> AsyncGenerator[ServerWithProvider]:
    """Run a server with these settings. `{home}` in them is the folder of the secrets, each in its own file."""
    process = ServerProcess(root / "home")
    process.home.mkdir(parents=True, mode=0o700)
    async with provider() as model:
        for name, secret in {"mock-key": "sk-mock-0123456789abcdef", **secrets}.items():
            (process.home / name).write_text(secret)
            (process.home / name).chmod(0o600)
        text = _SERVER.format(model=model.url, home=process.home) + settings.replace("{home}", str(process.home))
        (process.home / "retinue.toml").write_text(text)
        server = ServerWithProvider(process, model)
        model.rule = server.reply
        try:
            await server.open()
            yield server
        finally:
            await asyncio.to_thread(process.close)
