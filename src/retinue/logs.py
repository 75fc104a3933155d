"""Log lines: a fixed phrase and fields, to be searched and counted. Texts, tokens and prompts stay out."""

from __future__ import annotations

import logging
import re
from typing import TextIO

_PLAIN = re.compile(r"[A-Za-z0-9._:@/+-]+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogLine(logging.Formatter):
    """`2026-11-15T09:00:00Z info "run failed" run=ab12 agent=ada`"""

    def __init__(self) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname.lower()} {_quoted(record.getMessage())}"
        line += "".join(f" {key}={_quoted(str(value))}" for key, value in fields.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def set_up_logs(stream: TextIO, *, level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
