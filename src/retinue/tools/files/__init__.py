"""The file tools: read, write, edit, list and find files that the agent may access."""

from __future__ import annotations

from retinue.tools.base import Tool
from retinue.tools.files.edit_tool import EditTool
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.find_tool import FindTool
from retinue.tools.files.list_tool import ListTool
from retinue.tools.files.path_access import resolve_permission
from retinue.tools.files.read_tool import ReadTool, read_file_inside
from retinue.tools.files.write_tool import WriteTool

__all__ = [
    "EditTool",
    "FileServices",
    "FindTool",
    "ListTool",
    "ReadTool",
    "WriteTool",
    "build_file_tools",
    "read_file_inside",
    "resolve_permission",
]


def build_file_tools(file_services: FileServices) -> tuple[Tool, ...]:
    return (
        ReadTool(file_services),
        WriteTool(file_services),
        EditTool(file_services),
        ListTool(file_services),
        FindTool(file_services),
    )
