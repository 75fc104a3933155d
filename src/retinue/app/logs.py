"""Log lines: a fixed phrase and fields, to be searched and counted. Texts, tokens and prompts stay out.

What should have stayed out and did not is masked on its way to the page, in messages, fields and the texts of
exceptions: what the house knows to be secret (`set_masks`), and whatever looks like it, more strictly than elsewhere.
A line that cannot be made is replaced by one that says so: logging never stops the house.
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

from retinue.config.settings import Logs
from retinue.text.redaction import Masks

FOLDER = "logs"
FILE = "retinue.log"
MASK = "***"
TEXT_CHARS_MAX = 32 * 1024
OWN_SECRET_CHARS = 43  # 256 bits, as `secrets.token_urlsafe` writes them

_PLAIN = re.compile(r"[A-Za-z0-9._:@/+*-]+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# A name that says: my value is secret. Counts of tokens are not, nor is a bare `key`, unless it looks like one.
_NAME = (
    r"[\w-]{0,60}(?:token(?!s)|secret|password|passwd|passphrase|pwd|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|authorization|cookie)[\w-]{0,40}"
)
_SECRET_NAME = re.compile(_NAME, re.I)
# In quotes up to the closing one, or where a text stands within another, up to that escaped one.
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
    # A private key, on however many lines, also where its end was cut off.
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"), MASK),
    # The password in an address.
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:'\"]{0,200}:)[^\s/@'\"]{1,200}(?=@)", re.I),
        rf"\1{MASK}",
    ),
    # A whole header: everything up to the end of its line or of the quotes it stands in.
    (
        re.compile(
            r"((?<![\w-])(?:proxy-)?(?:authorization|set-cookie|cookie)\\?[\"']?\s{0,3}[:=,]\s{0,3}b?)"
            rf"""(?:{_QUOTED}|[^\n"']+)""",
            re.I,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(rf"\b((?:bearer|basic)\s{{1,3}}){_WORD}[\w.~+/=-]{{5,}}", re.I), rf"\1{MASK}"),
    # name=value, name: value, 'name': 'value', ('name', b'value'), and what an f"{name=}" leaves.
    (
        re.compile(rf"((?<![\w-]){_NAME}\\?[\"']?\s{{0,3}}(?:=>|[=:]|(?<=[\"']),)\s{{0,3}}b?){_VALUE}", re.I),
        rf"\1{MASK}",
    ),
    (
        re.compile(r"((?<![\w])[\w-]{0,40}key\\?[\"']?\s{0,3}[=:]\s{0,3}b?[\"']?)[\w+/=-]{20,}", re.I),
        rf"\1{MASK}",
    ),
    (re.compile(rf"(?<![\w-])(?:{_LIKE_A_KEY})"), MASK),
    # One of ours, wherever it stands. Words of the same length are rarely in both cases.
    (
        re.compile(
            rf"(?<!{_WORD})(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z]){_WORD}{{{OWN_SECRET_CHARS}}}(?!{_WORD})",
        ),
        MASK,
    ),
)


_known = [Masks()]  # logging is one for the whole process, and so is what it must not say


def set_masks(masks: Masks) -> None:
    """What is known to be secret is masked from now on, in every line of this process."""
    _known[0] = masks


def masked(text: str) -> str:
    """The text without what is, or looks like, a secret. One that is overlong is cut, visibly.

    What is known is looked for beyond the cut, so that no cut goes through it.
    """
    more = len(text) - TEXT_CHARS_MAX
    text = _known[0].mask_values(text[: 2 * TEXT_CHARS_MAX])
    if more > 0:
        text = f"{text[:TEXT_CHARS_MAX]} [and {more:,} more characters]"
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


class LogLine(logging.Formatter):
    """`2026-11-15T09:00:00+0000 info "run failed" run=ab12 agent=ada`; what belongs to a line follows it indented."""

    def __init__(self) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record, self.datefmt)} {record.levelname.lower()}"
        try:
            return f"{head} {self._rest(record)}"
        except Exception as error:  # noqa: BLE001 - whatever it was handed: a line about it, and the house goes on
            return f'{head} "log line could not be made" logger={_quoted(record.name)} error={type(error).__name__}'

    def _rest(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        line = _quoted(masked(record.getMessage()))
        line += "".join(f" {key}={_quoted(_field(key, value))}" for key, value in fields.items())
        if record.exc_info:
            line += _below(self.formatException(record.exc_info))
        if record.stack_info:
            line += _below(record.stack_info)
        return line


def _field(key: str, value: object) -> str:
    if isinstance(value, int | float):  # also where it is called `token_count`
        return str(value)
    return MASK if _SECRET_NAME.fullmatch(key) else masked(str(value))


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else f'"{_printable(value, extra=chr(34))}"'


def _below(text: str) -> str:
    """Indented, so that no text of anyone's can look like a line of ours."""
    return "".join(f"\n    {_printable(line)}" for line in masked(text).splitlines())


def _printable(text: str, *, extra: str = "") -> str:
    """A terminal shows it as it is, and obeys none of it."""
    if text.isprintable() and "\\" not in text and (not extra or extra not in text):
        return text
    return "".join(_shown(char, extra) for char in text)


def _shown(char: str, extra: str) -> str:
    if extra and char in ("\\", extra):
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


class _Quiet(logging.Handler):
    """Says nothing about lines it could not write: what logging would print instead holds the line unmasked."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


class Terminal(_Quiet, logging.StreamHandler[TextIO]):
    pass


class LogFile(_Quiet, RotatingFileHandler):
    """A file of ours alone, put away when it is large and at each start."""

    def __init__(self, path: Path, *, bytes_max: int, files_kept: int) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(path.parent, 0o700)
        super().__init__(path, maxBytes=bytes_max, backupCount=files_kept, encoding="utf-8", errors="backslashreplace")
        if path.stat().st_size:
            self.doRollover()

    def _open(self) -> TextIOWrapper:
        # Never through a link: whoever could put one here would have us write over what it points to.
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


def log_file(home: Path) -> Path:
    return home / FOLDER / FILE


def set_up_logs(stream: TextIO | None, *, home: Path | None = None, logs: Logs | None = None) -> None:
    """Log to a terminal, to the file of a home, or to both. Called again, it replaces what it had set up.

    A file that cannot be written is told of and done without: a house with a full disk still says so somewhere.
    """
    wanted = logs or Logs()
    handlers: list[logging.Handler] = []
    trouble: OSError | None = None
    if stream is not None:
        handlers.append(Terminal(stream))
    if home is not None and wanted.file:
        try:
            handlers.append(
                LogFile(log_file(home), bytes_max=wanted.bytes_max, files_kept=wanted.files_kept),
            )
        except OSError as error:
            trouble = error
            handlers = handlers or [Terminal(sys.stderr)]
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), handlers
    for handler in handlers:
        handler.setFormatter(LogLine())
    for handler in before:
        if isinstance(handler, LogFile):
            handler.close()
    set_level(wanted.level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if trouble is not None:
        logging.getLogger(__name__).warning("log file cannot be used", extra={"because": trouble.strerror or "unknown"})


def set_level(level: str) -> None:
    """At once, without touching the files."""
    logging.getLogger().setLevel(_LEVELS[level])
