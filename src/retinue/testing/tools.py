"""Tools for tests. `append_line` writes its effects to a file outside the server, independent of the store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.tools.base import ToolContext, schema_of


class AppendLineArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of the test tools that write one line."""

    text: str


@dataclass(frozen=True, slots=True)
class AppendLineTool:
    """A tool that appends one line to a file and calls fsync. A test can check that this happened only once."""

    file: Path
    arguments: type[msgspec.Struct] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="append_line",
            description="Append one line to the witness file.",
            parameters=schema_of(AppendLineArguments),
            effects=frozenset({ToolEffect.WRITES}),
            is_repeatable=False,
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> str:
        line = f"{context.call} {arguments.text}\n".encode()
        fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
        return "appended"
