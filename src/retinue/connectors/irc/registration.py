"""Registers an IRC connection: negotiates capabilities, logs in and chooses a nick.

Registration lasts until the end of the server's message of the day (MOTD). The code does no I/O: it
gets the server's messages, and returns the lines to send or raises `ConnectionLost`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from retinue.connectors.base import ConnectionLost
from retinue.connectors.irc.casemapping import IrcServerFeatures, apply_isupport
from retinue.connectors.irc.irc_formatting import strip_formatting
from retinue.connectors.irc.irc_message import IrcMessage, encode_message, parse_pairs

NICKS_TRIED_MAX = 5
SASL_CHUNK_BYTES = 400
SERVER_TEXT_CHARS_MAX = 200  # characters of a server's text that are shown to the owner

ACCOUNT_TAG = "account-tag"
ECHO_MESSAGE = "echo-message"
LABELED_RESPONSE = "labeled-response"
MESSAGE_TAGS = "message-tags"
SERVER_TIME = "server-time"
SASL = "sasl"
WANTED_CAPABILITIES = (MESSAGE_TAGS, ACCOUNT_TAG, SERVER_TIME, ECHO_MESSAGE, "batch", LABELED_RESPONSE)

_NICK_TAKEN = ("433", "436", "437")
_NICK_BAD = ("431", "432")
_SASL_REFUSED = ("902", "904", "905", "906", "908")
_REJECTIONS = {"464": "the IRC server refused the password", "465": "the IRC server has banned this address"}
# Some servers report a rejection only in their ERROR message, without a numeric.
_REJECTED_TEXT = re.compile(r"password|access denied|not authori[sz]ed|banned|\b[kgz]-?lined?\b", re.IGNORECASE)
_MOTD_ENDS = ("376", "422")


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcCredentials:
    nick: str
    username: str
    real_name: str
    password: str = field(default="", repr=False)
    account: str = ""
    account_password: str = field(default="", repr=False)


@dataclass(slots=True)
class IrcRegistration:
    """The state of one registration exchange.

    `start` returns the first lines to send, and `handle` returns the lines that answer a message. `is_done` is true
    once the server has accepted the connection.
    """

    credentials: IrcCredentials
    nick: str = ""
    prefix: str = ""  # our `nick!user@host` as others see it, if the server reported it
    granted: set[str] = field(default_factory=set[str])
    features: IrcServerFeatures = IrcServerFeatures()
    is_done: bool = False
    _offered: dict[str, str] = field(default_factory=dict[str, str])
    _pending_requests: int = 0  # capability requests that are not answered yet
    _nicks_tried: int = 1
    _is_welcomed: bool = False

    def start(self) -> list[bytes]:
        own = self.credentials
        self.nick = own.nick
        lines = [encode_message("CAP", "LS", "302")]
        if own.password:
            lines.append(encode_message("PASS", trailing=own.password))
        return [
            *lines,
            encode_message("NICK", own.nick),
            encode_message("USER", own.username, "0", "*", trailing=own.real_name),
        ]

    def handle(self, message: IrcMessage) -> list[bytes]:
        match message.command:
            case "PING":
                return [encode_message("PONG", trailing=message.last_param)]
            case "CAP":
                return self._handle_cap(message)
            case "AUTHENTICATE":
                return self._authenticate() if message.last_param == "+" else []
            case "903":
                return [encode_message("CAP", "END")]
            case "001":
                self._is_welcomed = True
                self.nick = message.get_param(0) or self.nick
                seen = message.last_param.rpartition(" ")[2]
                self.prefix = seen if seen.startswith(f"{self.nick}!") and "@" in seen else ""
            case "005":
                self.features = apply_isupport(self.features, message.params[1:-1])
            case "ERROR":
                if _REJECTED_TEXT.search(message.last_param):
                    raise build_connection_lost(
                        "the IRC server refused the connection", message, needs_owner=True, setting="password_env"
                    )
                raise build_connection_lost("the server closed the connection", message)
            case command if command in _MOTD_ENDS:
                self._finish()
            case command if command in _NICK_TAKEN and not self._is_welcomed:
                return self._try_another_nick(message)
            case command if command in _NICK_BAD and not self._is_welcomed:
                raise build_connection_lost(
                    f"the IRC server refused the nick {self.nick!r}", message, needs_owner=True, setting="nick"
                )
            case command if command in _SASL_REFUSED:
                raise build_connection_lost(
                    "the IRC server refused the account", message, needs_owner=True, setting="account_password_env"
                )
            case command if command in _REJECTIONS:
                raise build_connection_lost(_REJECTIONS[command], message, needs_owner=True, setting="password_env")
            case _:
                pass
        return []

    def _finish(self) -> None:
        if self.credentials.account and SASL not in self.granted:
            raise build_connection_lost(
                "the IRC server does not support accounts", None, needs_owner=True, setting="account"
            )
        self.is_done = True

    def _try_another_nick(self, message: IrcMessage) -> list[bytes]:
        if self._nicks_tried >= NICKS_TRIED_MAX:
            raise build_connection_lost(
                f"the nick {self.credentials.nick!r} and similar ones are taken", message, setting="nick"
            )
        self.nick = self.credentials.nick + "_" * self._nicks_tried
        self._nicks_tried += 1
        return [encode_message("NICK", self.nick)]

    def _handle_cap(self, message: IrcMessage) -> list[bytes]:
        match message.get_param(1).upper():
            case "LS":
                self._offered |= parse_pairs(message.last_param.split())
                return [] if message.get_param(2) == "*" else self._request_capabilities()
            case "ACK":
                names = {name.lstrip("-~=") for name in message.last_param.split()}
                self.granted |= names
                return self._on_capability_answer(message)
            case "NAK":
                return self._on_capability_answer(message)
            case _:
                return []

    def _request_capabilities(self) -> list[bytes]:
        wanted = [name for name in WANTED_CAPABILITIES if name in self._offered]
        if self.credentials.account and _offers_plain(self._offered):
            wanted.append(SASL)
        self._pending_requests = len(wanted)
        # One request for each capability: a server that does not grant one of them refuses the whole request.
        return [encode_message("CAP", "REQ", trailing=name) for name in wanted] or [encode_message("CAP", "END")]

    def _on_capability_answer(self, message: IrcMessage) -> list[bytes]:
        self._pending_requests -= 1
        if self._pending_requests > 0:
            return []
        return [encode_message("AUTHENTICATE", "PLAIN")] if SASL in self.granted else [encode_message("CAP", "END")]

    def _authenticate(self) -> list[bytes]:
        own = self.credentials
        proof = base64.b64encode(f"{own.account}\0{own.account}\0{own.account_password}".encode()).decode()
        chunks = [proof[i : i + SASL_CHUNK_BYTES] for i in range(0, len(proof), SASL_CHUNK_BYTES)]
        if len(chunks[-1]) == SASL_CHUNK_BYTES:
            chunks.append("+")  # a last chunk of full length would mean that more follows
        return [encode_message("AUTHENTICATE", chunk) for chunk in chunks]


def _offers_plain(offered: dict[str, str]) -> bool:
    mechanisms = offered.get(SASL)
    return mechanisms is not None and (not mechanisms or "PLAIN" in mechanisms.upper().split(","))


def build_connection_lost(
    sentence: str, message: IrcMessage | None, *, needs_owner: bool = False, setting: str = ""
) -> ConnectionLost:
    """Build the error for a lost connection, with the server's text if there is one."""
    answer = strip_formatting(message.last_param)[:SERVER_TEXT_CHARS_MAX] if message is not None else ""
    return ConnectionLost(
        sentence,
        because=f"it answered: {answer}" if answer else "",
        try_this=f"change `{setting}` of this connector" if setting else "",
        needs_owner=needs_owner,
    )
