"""Authenticates requests by a bearer token, or by a cookie that a browser got for a single-use code.

A secret is hashed and looked up by its hash, and never compared directly. The duration of a lookup therefore
reveals nothing about stored secrets, and no constant-time comparison is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.api.errors import AddressLockedOut, CookieHeaderMissing, SignInCodeInvalid
from retinue.api.host_check import HttpSettings, RequestSource
from retinue.api.rate_limits import Lockout
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.ids import TokenId
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import NotSignedIn
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind, hash_token
from retinue.operations.base import Services, parse_request
from retinue.operations.person.people import accept_invitation
from retinue.store.people import principals, tokens

COOKIE_NAME = "retinue"
COOKIE_TTL_S = 30 * 24 * 3600
SECRET_LENGTH_MAX = 256
CACHE_TTL_S = 1.0
CACHE_ENTRIES_MAX = 1024
SAFE_METHODS = frozenset({"GET", "HEAD"})

RequestHeaders = Mapping[bytes, bytes]


class SignInRequest(msgspec.Struct, forbid_unknown_fields=True):
    code: str


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True):
    invitation: str


class Caller(Struct, frozen=True):
    """The principal that makes a request, and the hash of its token. With the hash, the token can be checked again."""

    principal: Principal
    token_hash: str
    is_by_cookie: bool


class Authenticator:
    """Authenticates requests, and signs browsers in and out."""

    def __init__(
        self, services: Services, settings: HttpSettings, now: Callable[[], float], count_refusal: Callable[[str], None]
    ) -> None:
        self._services = services
        self._lockout = Lockout(now, attempts_max=settings.sign_in_attempts_max, lockout_s=settings.lockout_s)
        self._count_refusal = count_refusal
        self._now = now
        self._principal_cache: dict[str, tuple[float, Principal, TokenKind]] = {}
        self._commit_count = 0
        services.store.on_commit(self._clear_cache, *principals.SOURCE_TABLES)

    def apply_settings(self, settings: HttpSettings) -> None:
        self._lockout.attempts_max, self._lockout.lockout_s = settings.sign_in_attempts_max, settings.lockout_s

    async def authenticate(self, source: RequestSource, headers: RequestHeaders, *, method: str) -> Caller:
        """Return the caller of a request.

        A browser sends its cookies even with requests from pages of other sites. A request that is authenticated by
        a cookie and may change something therefore needs the header `x-retinue`, which such pages cannot send.
        """
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme:
            kind, secret = TokenKind.TOKEN, bearer.strip() if scheme.lower() == b"bearer" else b""
        else:
            kind, secret = TokenKind.WEB, _read_cookie(headers)
        if not secret:
            raise NotSignedIn
        token_hash = hash_token(secret[: SECRET_LENGTH_MAX + 1])
        if not source.is_local:
            self._lockout.check(source.remote_address, token_hash)
        principal = await self._find_principal(token_hash, kind)
        if principal is None:
            await self._record_failure(source, token_hash)
            raise NotSignedIn
        if not source.is_local:
            self._lockout.record_success(source.remote_address, token_hash)
        if kind is TokenKind.WEB and method not in SAFE_METHODS and headers.get(b"x-retinue") != b"1":
            raise CookieHeaderMissing
        return Caller(principal, token_hash, is_by_cookie=kind is TokenKind.WEB)

    def build_recheck(self, caller: Caller) -> Callable[[], Awaitable[Principal | None]]:
        """Return a function that checks the caller's token again, for long-lived connections."""
        return partial(
            self._find_principal, caller.token_hash, TokenKind.WEB if caller.is_by_cookie else TokenKind.TOKEN
        )

    async def _find_principal(self, token_hash: str, kind: TokenKind) -> Principal | None:
        """Return the principal that a token belongs to.

        The result is cached for a second at most, or until this process commits a relevant change. The time limit is
        needed because other processes can change tokens too, and because tokens expire.
        """
        remembered = self._principal_cache.get(token_hash)
        if remembered is not None and self._now() - remembered[0] < CACHE_TTL_S:
            return remembered[1] if remembered[2] is kind else None
        commits, at = self._commit_count, self._now()
        look = partial(principals.find_principal, token_hash=token_hash, now_ms=to_ms(self._services.clock.now()))
        known = await self._services.store.read(look)
        if known is None:
            return None
        if commits == self._commit_count:  # a commit during the lookup may have revoked it
            if len(self._principal_cache) >= CACHE_ENTRIES_MAX:
                self._principal_cache.clear()
            self._principal_cache[token_hash] = (at, *known)
        return known[0] if known[1] is kind else None

    def _clear_cache(self) -> None:
        self._commit_count += 1
        if self._principal_cache:
            self._principal_cache.clear()

    async def _record_failure(self, source: RequestSource, token_hash: str) -> None:
        """Count a failed attempt, unless the token was valid earlier.

        Otherwise an expired cookie in a browser would lock out the address of the browser.
        """
        if source.is_local or await self._services.store.read(partial(tokens.is_known, token_hash=token_hash)):
            return
        if self._lockout.record_failure(source.remote_address):
            self._count_refusal(AddressLockedOut.code)

    async def sign_in(self, source: RequestSource, body: bytes) -> tuple[Principal, bytes]:
        """Exchange a single-use code for a cookie. The code is revoked in the same transaction."""
        request: SignInRequest = parse_request(body, SignInRequest)
        code_hash = hash_token(request.code[: SECRET_LENGTH_MAX + 1].encode(errors="replace"))
        if not source.is_local:
            self._lockout.check(source.remote_address, code_hash)
        now = self._services.clock.now()
        expires_at = now + timedelta(seconds=COOKIE_TTL_S)
        secret, id_ = self._services.new_secret(), TokenId(self._services.ids.new())

        def exchange(conn: sa.Connection) -> Principal | None:
            code = tokens.find_by_hash(conn, code_hash, now_ms=to_ms(now))
            if code is None or code.kind is not TokenKind.CODE:
                return None
            if not tokens.revoke(conn, code.id, at_ms=to_ms(now)):
                return None  # another request used the same code first
            web = Token(
                id=id_,
                kind=TokenKind.WEB,
                principal=code.principal,
                label="browser",
                created_at=now,
                expires_at=expires_at,
            )
            tokens.add(conn, web, hash_token(secret))
            known = principals.find_principal(conn, hash_token(secret), now_ms=to_ms(now))
            return known[0] if known else None

        principal = await self._services.store.write(exchange, point="sign-in")
        if principal is None:
            await self._record_failure(source, code_hash)
            raise SignInCodeInvalid
        return principal, self._build_cookie(source, secret, COOKIE_TTL_S)

    async def accept_invitation(self, source: RequestSource, body: bytes) -> dict[str, Any]:
        """Accept an invitation. An invalid invitation counts as a failed attempt, like an invalid token."""
        request: JoinRequest = parse_request(body, JoinRequest)
        secret = request.invitation[: SECRET_LENGTH_MAX + 1].encode(errors="replace").decode()
        if not source.is_local:
            self._lockout.check(source.remote_address, hash_token(secret))
        try:
            return await accept_invitation(self._services, secret)
        except (NotAllowed, NotFound, NotSignedIn, Invalid):
            await self._record_failure(source, hash_token(secret))
            raise

    async def sign_out(self, source: RequestSource, caller: Caller) -> bytes:
        """Revoke the token in the cookie, so that copies of the cookie stop working too."""
        now_ms = to_ms(self._services.clock.now())
        if caller.is_by_cookie:
            revoke = partial(tokens.revoke_by_hash, token_hash=caller.token_hash, at_ms=now_ms)
            await self._services.store.write(revoke, point="sign-out")
        return self._build_cookie(source, "", 0)

    def _build_cookie(self, source: RequestSource, secret: str, max_age_s: int) -> bytes:
        # An https origin was checked against public_url: the browser uses TLS, at least up to our proxy.
        secure = "; Secure" if source.is_secure or source.origin.startswith("https:") else ""
        return f"{COOKIE_NAME}={secret}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}".encode()


def _read_cookie(headers: RequestHeaders) -> bytes:
    for pair in headers.get(b"cookie", b"").split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE_NAME.encode():
            return value
    return b""
