"""A thin client of the Bot API: each call returns one result or raises one typed error.

The URL of a call contains the token, so exceptions from aiohttp are never passed on. The text of our errors does not
contain the URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from retinue.connectors.telegram.api_types import ResponseParameters, TelegramFile
from retinue.domain.errors import RetinueError

if TYPE_CHECKING:
    import aiohttp

MIB = 1024 * 1024
DOWNLOAD_BYTES_MAX = 20 * MIB  # the limit of the Bot API
UPLOAD_BYTES_MAX = 50 * MIB  # the limit of the Bot API
UPLOAD_BYTES_PER_S = 64 * 1024  # a slower upload counts as a lost connection
ANSWER_BYTES_MAX = 32 * MIB
CHUNK_BYTES = 64 * 1024
CONNECT_S = 10.0
DESCRIPTION_LENGTH_MAX = 200  # characters
RETRY_AFTER_S_MAX = 3600.0

T = TypeVar("T")


class TelegramRefused(RetinueError):
    """Telegram understood an API call and refused it, so the call had no effect."""

    code = "telegram.refused"

    def __init__(self, method: str, status: int, description: str, parameters: ResponseParameters) -> None:
        super().__init__(
            f"Telegram refused {method}",
            because=f"it answered: {description}",
            try_this="test the connector: retinue connector test NAME",
        )
        self.status = status
        self.description = description
        self.retry_after_s = parameters.retry_after
        self.migrated_to = parameters.migrate_to_chat_id


class TelegramUnreachable(RetinueError):
    """Telegram could not be reached, so the API call certainly had no effect."""

    code = "telegram.unreachable"

    def __init__(self, method: str, *, because: str) -> None:
        super().__init__(
            f"cannot reach Telegram for {method}",
            because=because,
            try_this="check the network connection, and `api_base` of this connector",
        )


class TelegramNoAnswer(RetinueError):
    """The connection broke, or the response was invalid, so it is unknown whether the call had an effect."""

    code = "telegram.no_answer"

    def __init__(self, method: str, *, because: str) -> None:
        super().__init__(
            f"no valid answer from Telegram to {method}",
            because=because,
            try_this="wait for the automatic retry, or test the connector: retinue connector test NAME",
        )


class _ApiResponse(Struct, frozen=True, kw_only=True):
    ok: bool = False
    result: Raw = Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: ResponseParameters = ResponseParameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramUpload:
    """A file to upload with a call. The arguments of the call refer to the file by `field_name`."""

    field_name: str
    path: Path
    name: str
    media_type: str
    size_bytes: int


class BotApi:
    """A client of the Bot API for one bot. To share an HTTP session between several calls, keep `http_session` open."""

    def __init__(self, base: str, token: str, *, timeout_s: float) -> None:
        self._base = base.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._users = 0

    @asynccontextmanager
    async def http_session(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """Open the shared HTTP session, or use it if it is open. The last caller to leave the context closes it."""
        if self._session is None:
            self._session = self._open_session()
        session = self._session
        self._users += 1
        try:
            yield session
        finally:
            self._users -= 1
            if self._users == 0:
                self._session = None
                await session.close()

    async def call(
        self,
        method: str,
        arguments: Mapping[str, Any],
        *,
        result: type[T],
        uploads: tuple[TelegramUpload, ...] = (),
        wait_s: float = 0.0,
    ) -> T:
        """Make one Bot API call. `wait_s` is the long-polling timeout in the request."""
        allowed_s = self._timeout_s + wait_s + sum(each.size_bytes for each in uploads) / UPLOAD_BYTES_PER_S
        async with self.http_session() as session:
            status, body = await self._post(session, method, arguments, uploads, allowed_s)
        try:
            answer = msgspec.json.decode(body, type=_ApiResponse)
        except msgspec.MsgspecError:
            answer = None
        if answer is None or (not answer.ok and status >= 500):
            raise TelegramNoAnswer(method, because=f"the response has HTTP status {status} and is not valid JSON")
        if not answer.ok:
            raise TelegramRefused(
                method, answer.error_code or status, self._redact_description(answer.description), answer.parameters
            )
        try:
            return msgspec.json.decode(answer.result, type=result)
        except msgspec.MsgspecError:
            raise TelegramNoAnswer(method, because="the result has an unexpected form") from None

    async def download(self, file_id: str) -> AsyncIterator[bytes]:
        """Stream the bytes of a file on Telegram."""
        import aiohttp

        async with self.http_session() as session:
            found = await self.call("getFile", {"file_id": file_id}, result=TelegramFile)
            url = self._build_url(f"file/bot{self._token}/{quote(found.file_path, safe='/')}")
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s)
            try:
                async with session.get(url, timeout=timeout, allow_redirects=False) as response:
                    if response.status != 200:
                        raise TelegramNoAnswer("getFile", because=f"the response has HTTP status {response.status}")
                    taken = 0
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        taken += len(chunk)
                        if taken > DOWNLOAD_BYTES_MAX:
                            because = f"the file is larger than {DOWNLOAD_BYTES_MAX // MIB} MiB"
                            raise TelegramNoAnswer("getFile", because=because)
                        yield chunk
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise _build_api_error("getFile", error) from None

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            # A new connection for each call. On a reused one it would be unknown whether Telegram
            # closed the connection before reading the request.
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def _post(
        self,
        session: aiohttp.ClientSession,
        method: str,
        arguments: Mapping[str, Any],
        uploads: tuple[TelegramUpload, ...],
        allowed_s: float,
    ) -> tuple[int, bytes]:
        """Post a request, and return the status and body of the response."""
        import aiohttp

        url = self._build_url(f"bot{self._token}/{method}")
        timeout = aiohttp.ClientTimeout(total=allowed_s, sock_connect=min(CONNECT_S, allowed_s))
        headers = {} if uploads else {"Content-Type": "application/json"}
        with ExitStack() as files:
            opened = [files.enter_context(await asyncio.to_thread(each.path.open, "rb")) for each in uploads]
            data = _build_form(arguments, uploads, opened) if uploads else msgspec.json.encode(arguments)
            try:
                async with session.post(
                    url, data=data, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    return response.status, await _read_limited(response)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise _build_api_error(method, error) from None

    def _build_url(self, path: str) -> Any:
        from yarl import URL

        return URL(f"{self._base}/{path}", encoded=True)

    def _redact_description(self, description: str) -> str:
        """Make the description of an error safe to show: it may repeat the URL, which contains the token."""
        plain = "".join(each if each.isprintable() else " " for each in description.replace(self._token, "TOKEN"))
        return plain[:DESCRIPTION_LENGTH_MAX]


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            response.close()
            break
    return bytes(body)


def _build_form(arguments: Mapping[str, Any], uploads: Sequence[TelegramUpload], opened: Sequence[BinaryIO]) -> Any:
    import aiohttp

    form = aiohttp.FormData(quote_fields=False)  # else recipients see "n%C3%A4me.txt"
    for key, value in arguments.items():
        form.add_field(key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
    for each, file in zip(uploads, opened, strict=True):
        form.add_field(each.field_name, file, filename=each.name, content_type=each.media_type)
    return form


def _build_api_error(method: str, error: Exception) -> TelegramUnreachable | TelegramNoAnswer:
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            because = "its certificate is not trusted"
        case aiohttp.ConnectionTimeoutError():
            because = "the connection timed out"
        case aiohttp.ClientConnectorError():
            because = error.os_error.strerror or "no connection"
        case aiohttp.InvalidURL():
            because = "its URL is invalid"
        case TimeoutError():
            return TelegramNoAnswer(method, because="it timed out")
        case _:
            return TelegramNoAnswer(method, because="the connection broke")
    return TelegramUnreachable(method, because=because)
