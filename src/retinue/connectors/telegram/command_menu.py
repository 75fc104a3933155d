"""The commands of the house in the menu of a bot, where people talk to it alone. Telegram keeps it: it is told once,
and again when it changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from retinue.connectors.base import Shelf
from retinue.domain.slash_command import SUMMARIES, CommandName

KEY = "menu"
DESCRIPTION_LENGTH_MAX = 256
ALIKE = frozenset({CommandName.ABORT, CommandName.APPROVE})  # say the same as another one

Call = Callable[[str, Mapping[str, Any]], Awaitable[bool]]

_SCOPE = {"scope": {"type": "all_private_chats"}}


def commands() -> list[dict[str, str]]:
    return [
        {"command": name.value, "description": meaning[:DESCRIPTION_LENGTH_MAX]}
        for name, (_, meaning) in SUMMARIES.items()
        if name not in ALIKE
    ]


async def offer(call: Call, shelf: Shelf, bot: int, *, wanted: bool) -> None:
    """Have the menu as it should be. What Telegram does not take is offered again with the next line."""
    known = await shelf.get(KEY)
    offered = commands() if wanted else []
    now = f"{bot} {msgspec.json.encode(offered).decode()}" if wanted else ""
    if (known or "") == now:
        return
    if wanted:
        taken = await call("setMyCommands", {"commands": offered, **_SCOPE})
    else:
        taken = await call("deleteMyCommands", _SCOPE)
    if taken:
        await shelf.put(KEY, now)
