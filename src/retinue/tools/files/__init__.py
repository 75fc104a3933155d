"""The file tools: read, write, edit, list and find files that the agent may access."""

from __future__ import annotations

from retinue.tools.base import Tool
from retinue.tools.files.edit_tool import Edit
from retinue.tools.files.file_access import Ground
from retinue.tools.files.find_tool import Find
from retinue.tools.files.list_tool import Ls
from retinue.tools.files.paths import as_granted
from retinue.tools.files.read_tool import Read, read_confined
from retinue.tools.files.write_tool import Write

__all__ = ["Edit", "Find", "Ground", "Ls", "Read", "Write", "as_granted", "file_tools", "read_confined"]


def file_tools(ground: Ground) -> tuple[Tool, ...]:
    return (Read(ground), Write(ground), Edit(ground), Ls(ground), Find(ground))
