"""Authenticate requests by bearer token, or by a cookie obtained with a single-use code.

Secrets are hashed and looked up by hash, never compared directly. The lookup time reveals nothing
about stored secrets, so no constant-time comparison is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.api.host_check import Door, Visit
from retinue.api.request_limits import Lockout
from retinue.api.responses import NotSignedIn
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.ids import TokenId
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind, hash_of
from retinue.operations.base import Desk, parse
from retinue.operations.person.people import accept_invitation
from retinue.store.people import principals, tokens

COOKIE = "retinue"
WEB_EXPIRES_AFTER_S = 30 * 24 * 3600
SECRET_LENGTH_MAX = 256
REMEMBERED_S = 1.0
REMEMBERED_MAX = 1024
SAFE_METHODS = frozenset({"GET", "HEAD"})

Headers = Mapping[bytes, bytes]


class Code(msgspec.Struct, forbid_unknown_fields=True):
    code: str


class Joining(msgspec.Struct, forbid_unknown_fields=True):
    invitation: str


class Caller(Struct, frozen=True):
    """A principal, and the hash of its token, so that the token can be checked again later."""

    principal: Principal
    token_hash: str
    by_cookie: bool


class SignIn:
    """Authenticates requests, and signs browsers in and out."""

    def __init__(self, desk: Desk, door: Door, now: Callable[[], float], refused: Callable[[str], None]) -> None:
        self._desk = desk
        self._lockout = Lockout(now, attempts_max=door.sign_in_attempts_max, lockout_s=door.lockout_s)
        self._refused = refused
        self._now = now
        self._known: dict[str, tuple[float, Principal, TokenKind]] = {}
        self._commits = 0
        desk.store.on_commit(self._forget, *principals.READ)

    def refit(self, door: Door) -> None:
        self._lockout.attempts_max, self._lockout.lockout_s = door.sign_in_attempts_max, door.lockout_s

    async def caller(self, visit: Visit, headers: Headers, *, method: str) -> Caller:
        """Return the caller of a request.

        Browsers send cookies with requests of other sites, so a changing request by cookie also
        needs the header `x-retinue`.
        """
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme:
            kind, secret = TokenKind.TOKEN, bearer.strip() if scheme.lower() == b"bearer" else b""
        else:
            kind, secret = TokenKind.WEB, _cookie(headers)
        if not secret:
            raise _who_are_you()
        token_hash = hash_of(secret[: SECRET_LENGTH_MAX + 1])
        if not visit.local:
            self._lockout.check(visit.remote, token_hash)
        principal = await self._look_up(token_hash, kind)
        if principal is None:
            await self._failed(visit, token_hash)
            raise _who_are_you()
        if not visit.local:
            self._lockout.succeeded(visit.remote, token_hash)
        if kind is TokenKind.WEB and method not in SAFE_METHODS and headers.get(b"x-retinue") != b"1":
            raise NotAllowed(
                "this request could come from any page",
                because="it carries a cookie, but not the header `x-retinue: 1`",
                try_this="send the header with everything but GET",
                code="auth.header-missing",
            )
        return Caller(principal, token_hash, by_cookie=kind is TokenKind.WEB)

    def again(self, caller: Caller) -> Callable[[], Awaitable[Principal | None]]:
        """Return a function that checks the caller's token again, for long-lived connections."""
        return partial(self._look_up, caller.token_hash, TokenKind.WEB if caller.by_cookie else TokenKind.TOKEN)

    async def _look_up(self, token_hash: str, kind: TokenKind) -> Principal | None:
        """Find the principal of a token, cached until a relevant commit and for at most a second.

        The time limit is needed because other processes commit too, and tokens expire.
        """
        remembered = self._known.get(token_hash)
        if remembered is not None and self._now() - remembered[0] < REMEMBERED_S:
            return remembered[1] if remembered[2] is kind else None
        commits, at = self._commits, self._now()
        look = partial(principals.by_secret, token_hash=token_hash, now_ms=to_ms(self._desk.clock.now()))
        known = await self._desk.store.read(look)
        if known is None:
            return None
        if commits == self._commits:  # a commit during the lookup may have revoked it
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[token_hash] = (at, *known)
        return known[0] if known[1] is kind else None

    def _forget(self) -> None:
        self._commits += 1
        if self._known:
            self._known.clear()

    async def _failed(self, visit: Visit, token_hash: str) -> None:
        """Count a failed attempt, unless the token was valid once.

        A browser with an old cookie must not lock itself out.
        """
        if visit.local or await self._desk.store.read(partial(tokens.is_known, token_hash=token_hash)):
            return
        if self._lockout.failed(visit.remote):
            self._refused("auth.locked-out")

    async def sign_in(self, visit: Visit, body: bytes) -> tuple[Principal, bytes]:
        """Exchange a code for a cookie in one commit, which also revokes the code."""
        asked: Code = parse(body, Code)
        code_hash = hash_of(asked.code[: SECRET_LENGTH_MAX + 1].encode(errors="replace"))
        if not visit.local:
            self._lockout.check(visit.remote, code_hash)
        now = self._desk.clock.now()
        expires_at = now + timedelta(seconds=WEB_EXPIRES_AFTER_S)
        secret, id_ = self._desk.secrets(), TokenId(self._desk.ids.new())

        def exchange(conn: sa.Connection) -> Principal | None:
            code = tokens.by_hash(conn, code_hash, now_ms=to_ms(now))
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
            tokens.add(conn, web, hash_of(secret))
            known = principals.by_secret(conn, hash_of(secret), now_ms=to_ms(now))
            return known[0] if known else None

        principal = await self._desk.store.write(exchange, point="sign-in")
        if principal is None:
            await self._failed(visit, code_hash)
            raise NotSignedIn(
                "this code does not sign you in",
                because="it was used before, has expired, or was never made here: a code works once, for minutes",
                try_this="make a new one with `retinue token code`",
                code="auth.code-refused",
            )
        return principal, self._set_cookie(visit, secret, WEB_EXPIRES_AFTER_S)

    async def join(self, visit: Visit, body: bytes) -> dict[str, Any]:
        """Accept an invitation. A wrong one counts as a failed attempt, like a wrong token."""
        asked: Joining = parse(body, Joining)
        secret = asked.invitation[: SECRET_LENGTH_MAX + 1].encode(errors="replace").decode()
        if not visit.local:
            self._lockout.check(visit.remote, hash_of(secret))
        try:
            return await accept_invitation(self._desk, secret)
        except (NotAllowed, NotFound, NotSignedIn, Invalid):
            await self._failed(visit, hash_of(secret))
            raise

    async def sign_out(self, visit: Visit, caller: Caller) -> bytes:
        """Revoke the cookie's token, so that copies of it stop working too."""
        now_ms = to_ms(self._desk.clock.now())
        if caller.by_cookie:
            revoke = partial(tokens.revoke_hash, token_hash=caller.token_hash, at_ms=now_ms)
            await self._desk.store.write(revoke, point="sign-out")
        return self._set_cookie(visit, "", 0)

    def _set_cookie(self, visit: Visit, secret: str, max_age_s: int) -> bytes:
        # An https origin was checked against public_url: the browser uses TLS, at least up to our proxy.
        secure = "; Secure" if visit.secure or visit.origin.startswith("https:") else ""
        return f"{COOKIE}={secret}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}".encode()


def _cookie(headers: Headers) -> bytes:
    for pair in headers.get(b"cookie", b"").split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == COOKIE.encode():
            return value
    return b""


def _who_are_you() -> NotSignedIn:
    return NotSignedIn(
        "who are you?",
        because="the request carries no token that this house knows",
        try_this="use the token in RETINUE_HOME/owner-token",
    )
