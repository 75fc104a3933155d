"""IRC connection registration, from the first line that we send to the end of the MOTD.

Pure: messages in, lines out, or `ConnectionLost` with advice for the owner.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from retinue.connectors.base import LineLost
from retinue.connectors.irc.casemapping import Manners, manners_after
from retinue.connectors.irc.irc_formatting import plain
from retinue.connectors.irc.irc_message import Line, encoded, pairs

NICKS_TRIED_MAX = 5
SASL_CHUNK_BYTES = 400
SERVER_WORDS_MAX = 200  # characters of a server's text that are shown to the owner

ACCOUNT_TAG = "account-tag"
ECHO = "echo-message"
LABELS = "labeled-response"
TAGS = "message-tags"
TIME = "server-time"
SASL = "sasl"
WANTED = (TAGS, ACCOUNT_TAG, TIME, ECHO, "batch", LABELS)

_NICK_TAKEN = ("433", "436", "437")
_NICK_BAD = ("431", "432")
_SASL_REFUSED = ("902", "904", "905", "906", "908")
_NOT_LET_IN = {"464": "the server refused our password", "465": "the server has banned us"}
# Some servers have no numeric for it and only say it in their ERROR message.
_UNWANTED = re.compile(r"password|access denied|not authori[sz]ed|banned|\b[kgz]-?lined?\b", re.IGNORECASE)
_MOTD_ENDS = ("376", "422")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    nick: str
    username: str
    real_name: str
    password: str = field(default="", repr=False)
    account: str = ""
    account_password: str = field(default="", repr=False)


@dataclass(slots=True)
class Arrival:
    """The registration dialog. `start` returns the first lines, `handle` the answer to each
    message. `is_done` is true once registered."""

    credentials: Credentials
    nick: str = ""
    prefix: str = ""  # how others see us, if the server said so
    granted: set[str] = field(default_factory=set[str])
    manners: Manners = Manners()
    done: bool = False
    _offered: dict[str, str] = field(default_factory=dict[str, str])
    _asked: int = 0  # capability requests that are not answered yet
    _nicks_tried: int = 1
    _welcome: bool = False

    def begin(self) -> list[bytes]:
        own = self.credentials
        self.nick = own.nick
        lines = [encoded("CAP", "LS", "302")]
        if own.password:
            lines.append(encoded("PASS", last=own.password))
        return [*lines, encoded("NICK", own.nick), encoded("USER", own.username, "0", "*", last=own.real_name)]

    def read(self, line: Line) -> list[bytes]:
        match line.command:
            case "PING":
                return [encoded("PONG", last=line.last)]
            case "CAP":
                return self._abilities(line)
            case "AUTHENTICATE":
                return self._prove() if line.last == "+" else []
            case "903":
                return [encoded("CAP", "END")]
            case "001":
                self._welcome = True
                self.nick = line.word(0) or self.nick
                seen = line.last.rpartition(" ")[2]
                self.prefix = seen if seen.startswith(f"{self.nick}!") and "@" in seen else ""
            case "005":
                self.manners = manners_after(self.manners, line.words[1:-1])
            case "ERROR":
                if _UNWANTED.search(line.last):
                    raise lost("the server does not let us in", line, needs_owner=True, set_="password_env")
                raise lost("the server closed the line", line)
            case command if command in _MOTD_ENDS:
                self._let_in()
            case command if command in _NICK_TAKEN and not self._welcome:
                return self._another_nick(line)
            case command if command in _NICK_BAD and not self._welcome:
                raise lost(f"the server does not take the nick {self.nick!r}", line, needs_owner=True, set_="nick")
            case command if command in _SASL_REFUSED:
                raise lost("the server refused our account", line, needs_owner=True, set_="account_password_env")
            case command if command in _NOT_LET_IN:
                raise lost(_NOT_LET_IN[command], line, needs_owner=True, set_="password_env")
            case _:
                pass
        return []

    def _let_in(self) -> None:
        if self.credentials.account and SASL not in self.granted:
            raise lost("the server has no accounts", None, needs_owner=True, set_="account")
        self.done = True

    def _another_nick(self, line: Line) -> list[bytes]:
        if self._nicks_tried >= NICKS_TRIED_MAX:
            raise lost(f"the nick {self.credentials.nick!r} is taken, and those like it", line, set_="nick")
        self.nick = self.credentials.nick + "_" * self._nicks_tried
        self._nicks_tried += 1
        return [encoded("NICK", self.nick)]

    def _abilities(self, line: Line) -> list[bytes]:
        match line.word(1).upper():
            case "LS":
                self._offered |= pairs(line.last.split())
                return [] if line.word(2) == "*" else self._ask()
            case "ACK":
                names = {name.lstrip("-~=") for name in line.last.split()}
                self.granted |= names
                return self._answered(line)
            case "NAK":
                return self._answered(line)
            case _:
                return []

    def _ask(self) -> list[bytes]:
        wanted = [name for name in WANTED if name in self._offered]
        if self.credentials.account and _has_plain(self._offered):
            wanted.append(SASL)
        self._asked = len(wanted)
        # One at a time: a server that does not grant one of them refuses all in the same request.
        return [encoded("CAP", "REQ", last=name) for name in wanted] or [encoded("CAP", "END")]

    def _answered(self, line: Line) -> list[bytes]:
        self._asked -= 1
        if self._asked > 0:
            return []
        return [encoded("AUTHENTICATE", "PLAIN")] if SASL in self.granted else [encoded("CAP", "END")]

    def _prove(self) -> list[bytes]:
        own = self.credentials
        proof = base64.b64encode(f"{own.account}\0{own.account}\0{own.account_password}".encode()).decode()
        chunks = [proof[i : i + SASL_CHUNK_BYTES] for i in range(0, len(proof), SASL_CHUNK_BYTES)]
        if len(chunks[-1]) == SASL_CHUNK_BYTES:
            chunks.append("+")  # a last chunk of full length would mean that more follows
        return [encoded("AUTHENTICATE", chunk) for chunk in chunks]


def _has_plain(offered: dict[str, str]) -> bool:
    mechanisms = offered.get(SASL)
    return mechanisms is not None and (not mechanisms or "PLAIN" in mechanisms.upper().split(","))


def lost(sentence: str, line: Line | None, *, needs_owner: bool = False, set_: str = "") -> LineLost:
    """The lost connection, with the server's text if it can be shown."""
    said = plain(line.last)[:SERVER_WORDS_MAX] if line is not None else ""
    return LineLost(
        sentence,
        because=f"it said: {said}" if said else "",
        try_this=f"set `{set_}` of this connector" if set_ else "",
        needs_owner=needs_owner,
    )
