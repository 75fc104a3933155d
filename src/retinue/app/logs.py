"""Formats and writes the log. A line is a fixed phrase and fields, without message texts, tokens or prompts.

Secrets that get into a line anyway are redacted: in the message, the fields and exception texts. This covers known
secrets (`set_known_secrets`) and text that looks like a secret. These rules are stricter than those for other output.
If a line cannot be formatted, a line that says so is written instead, because logging must not stop the server.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from retinue.config.settings import LogSettings
from retinue.text.redaction import Redactor

LOGS_FOLDER = "logs"
LOG_FILE = "retinue.log"
REDACTED = "***"
TEXT_CHARS_MAX = 32 * 1024
OWN_SECRET_CHARS = 43  # length of 256 bits as `secrets.token_urlsafe` writes them

_UNQUOTED = re.compile(r"[A-Za-z0-9._:@/+*-]+")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Names of secret values. Token counts are not secret, nor is a bare `key` unless its value looks like a secret.
_NAME = (
    r"[\w-]{0,60}(?:token(?!s)|secret|password|passwd|passphrase|pwd|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|authorization|cookie)[\w-]{0,40}"
)
_SECRET_NAME = re.compile(_NAME, re.I)
# Up to the closing quote, or up to the escaped quote if the text is nested in another.
_QUOTED = r"""\\"(?:(?!\\")[^\n])*(?:\\")?|\\'(?:(?!\\')[^\n])*(?:\\')?|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
_VALUE = rf"""(?:{_QUOTED}|[^\s"',;&<>(){{}}\[\]]+)"""
_WORD = r"[A-Za-z0-9_-]"
_LIKE_A_KEY = (
    r"sk-[\w-]{8,}|[sr]k_(?:live|test)_\w{8,}|whsec_\w{8,}"
    r"|gh[opusr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|hooks\.slack\.com/services/[\w/]+"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|hf_\w{16,}|npm_\w{16,}|pypi-[\w-]{16,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|syt_\w{8,}|AGE-SECRET-KEY-1\w{16,}|(?:bot)?\d{6,12}:AA[\w-]{30,}"
    r"|eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?|[\w-]{23,28}\.[\w-]{6}\.[\w-]{27,}"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A private key, on any number of lines, even without its end.
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
        REDACTED,
    ),
    # The password in a URL.
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:'\"]{0,200}:)[^\s/@'\"]{1,200}(?=@)", re.I),
        rf"\1{REDACTED}",
    ),
    # A whole header, up to the end of the line or of the quotes around it.
    (
        re.compile(
            r"((?<![\w-])(?:proxy-)?(?:authorization|set-cookie|cookie)\\?[\"']?\s{0,3}[:=,]\s{0,3}b?)"
            rf"""(?:{_QUOTED}|[^\n"']+)""",
            re.I,
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"\b((?:bearer|basic)\s{{1,3}}){_WORD}[\w.~+/=-]{{5,}}", re.I), rf"\1{REDACTED}"),
    # name=value, name: value, 'name': 'value', ('name', b'value'), and the output of f"{name=}".
    (
        re.compile(rf"((?<![\w-]){_NAME}\\?[\"']?\s{{0,3}}(?:=>|[=:]|(?<=[\"']),)\s{{0,3}}b?){_VALUE}", re.I),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(r"((?<![\w])[\w-]{0,40}key\\?[\"']?\s{0,3}[=:]\s{0,3}b?[\"']?)[\w+/=-]{20,}", re.I),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"(?<![\w-])(?:{_LIKE_A_KEY})"), REDACTED),
    # One of our own tokens anywhere. Words of this length rarely have both upper and lower case.
    (
        re.compile(
            rf"(?<!{_WORD})(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z]){_WORD}{{{OWN_SECRET_CHARS}}}(?!{_WORD})",
        ),
        REDACTED,
    ),
)


_known_secrets = [Redactor()]  # global, like logging itself


def set_known_secrets(redactor: Redactor) -> None:
    """Redact these secrets in every log line of this process from now on."""
    _known_secrets[0] = redactor


def redact(text: str) -> str:
    """Redact known secrets and text that looks like a secret. Long text is shortened, with a mark.

    Known secrets are redacted before the text is shortened, so that no part of a secret remains.
    """
    more = len(text) - TEXT_CHARS_MAX
    text = _known_secrets[0].redact_values(text[: 2 * TEXT_CHARS_MAX])
    if more > 0:
        text = f"{text[:TEXT_CHARS_MAX]} [and {more:,} more characters]"
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


class LogFormatter(logging.Formatter):
    """Formats a line as `2026-11-15T09:00:00+0000 info "run failed" run=ab12 agent=ada`.

    A traceback follows below the line, indented.
    """

    def __init__(self) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record, self.datefmt)} {record.levelname.lower()}"
        try:
            return f"{head} {self._format_rest(record)}"
        except Exception as error:  # noqa: BLE001 - no value may break logging
            return f'{head} "log line not formatted" logger={_quote(record.name)} error={type(error).__name__}'

    def _format_rest(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
        line = _quote(redact(record.getMessage()))
        line += "".join(f" {key}={_quote(_format_field(key, value))}" for key, value in fields.items())
        if record.exc_info:
            line += _indent(self.formatException(record.exc_info))
        if record.stack_info:
            line += _indent(record.stack_info)
        return line


def _format_field(key: str, value: object) -> str:
    if isinstance(value, int | float):  # even if its name looks secret, like `token_count`
        return str(value)
    return REDACTED if _SECRET_NAME.fullmatch(key) else redact(str(value))


def _quote(value: str) -> str:
    return value if _UNQUOTED.fullmatch(value) else f'"{_escape(value, extra=chr(34))}"'


def _indent(text: str) -> str:
    """Indent text, so that none of its lines looks like a log line."""
    return "".join(f"\n    {_escape(line)}" for line in redact(text).splitlines())


def _escape(text: str, *, extra: str = "") -> str:
    """Escape control characters, so that a terminal does not interpret them."""
    if text.isprintable() and "\\" not in text and (not extra or extra not in text):
        return text
    return "".join(_escape_char(char, extra) for char in text)


def _escape_char(char: str, extra: str) -> str:
    if extra and char in ("\\", extra):
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


class _SilentHandler(logging.Handler):
    """A log handler that drops lines that cannot be written. The base class would print them without redaction."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


class TerminalHandler(_SilentHandler, logging.StreamHandler[TextIO]):
    """Logs to a terminal."""


class LogFileHandler(_SilentHandler, RotatingFileHandler):
    """A log file with mode 0600, rotated by size and at each start."""

    def __init__(self, path: Path, *, bytes_max: int, files_kept: int) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(path.parent, 0o700)
        super().__init__(path, maxBytes=bytes_max, backupCount=files_kept, encoding="utf-8", errors="backslashreplace")
        if path.stat().st_size:
            self.doRollover()

    def _open(self) -> TextIOWrapper:
        # Never follow a link: a planted one would make us overwrite its target.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def doRollover(self) -> None:
        if self.backupCount:
            super().doRollover()
            return
        if self.stream is not None:
            self.stream.close()
        Path(self.baseFilename).unlink(missing_ok=True)
        self.stream = self._open()


def log_file_path(data_dir: Path) -> Path:
    return data_dir / LOGS_FOLDER / LOG_FILE


def set_up_logs(stream: TextIO | None, *, data_dir: Path | None = None, logs: LogSettings | None = None) -> None:
    """Log to a stream, to the file in the data directory, or to both. A later call replaces these outputs.

    If the file cannot be written, a warning is logged to the stream, or to stderr if there is none, and logging
    continues there. A server with a full disk therefore still logs.
    """
    wanted = logs or LogSettings()
    handlers: list[logging.Handler] = []
    trouble: OSError | None = None
    if stream is not None:
        handlers.append(TerminalHandler(stream))
    if data_dir is not None and wanted.file:
        try:
            handlers.append(
                LogFileHandler(log_file_path(data_dir), bytes_max=wanted.bytes_max, files_kept=wanted.files_kept),
            )
        except OSError as error:
            trouble = error
            handlers = handlers or [TerminalHandler(sys.stderr)]
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), handlers
    for handler in handlers:
        handler.setFormatter(LogFormatter())
    for handler in before:
        if isinstance(handler, LogFileHandler):
            handler.close()
    set_level(wanted.level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if trouble is not None:
        logging.getLogger(__name__).warning("log file not writable", extra={"because": trouble.strerror or "unknown"})


def set_level(level: str) -> None:
    """Set the log level at once, without reopening files."""
    logging.getLogger().setLevel(_LEVELS[level])
