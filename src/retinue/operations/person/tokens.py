"""Operations on tokens. A secret is shown once, in the response that created it."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.ids import TokenId, prefix, short
from retinue.domain.principal import Principal
from retinue.domain.times import show, to_ms
from retinue.domain.token import Token, TokenKind, hash_of
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.agents import agents
from retinue.store.people import people, tokens

LABEL_LENGTH_MAX = 80
TOKENS_MAX = 100  # per principal
CODE_EXPIRES_AFTER_S = 300


class Create(msgspec.Struct, forbid_unknown_fields=True):
    """Create a token for yourself. Only the owner may name another `principal`."""

    label: str = ""
    principal: str = ""
    expires_in_days: int | None = None


class OfPrincipal(msgspec.Struct, forbid_unknown_fields=True):
    principal: str = ""


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    principal: str = ""


class TokenListed(msgspec.Struct, frozen=True, rename="kebab"):
    id: str
    kind: TokenKind
    principal: str
    label: str
    created_at: str
    expires_at: str | None


class TokensListed(msgspec.Struct, frozen=True):
    tokens: list[TokenListed]


class TokenMade(TokenListed, frozen=True, rename="kebab"):
    """If the request is repeated with the same key, `shown-once` lists `token` instead."""

    token: str | msgspec.UnsetType = msgspec.UNSET
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenRevoked(TokenListed, frozen=True, rename="kebab"):
    revoked: bool


class CodeMade(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    code: str | msgspec.UnsetType = msgspec.UNSET
    expires_at: str
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


Form = TypeVar("Form", bound=TokenListed)


def new_token(
    desk: Desk,
    principal: Address,
    kind: TokenKind,
    *,
    label: str,
    now: datetime,
    expires_at: datetime | None = None,
    body: str = "",
) -> tuple[Token, str, str]:
    """Return a new token, its secret, and the hash to store."""
    secret = desk.secrets()
    token = Token(
        id=TokenId(desk.ids.new()),
        kind=kind,
        principal=principal,
        label=label[:LABEL_LENGTH_MAX],
        created_at=now,
        expires_at=expires_at,
        body=body,
    )
    return token, secret, hash_of(secret)


async def create(desk: Desk, caller: Principal, asked: Create) -> TokenMade:
    now = desk.clock.now()
    if asked.expires_in_days is not None and not 1 <= asked.expires_in_days <= 3650:
        raise Invalid(
            "a token cannot expire then",
            because="expires_in_days is 1 to 3650",
            try_this="leave it out for a token that stays until it is revoked",
            code="token.expiry-invalid",
        )
    expires_at = now + timedelta(days=asked.expires_in_days) if asked.expires_in_days else None
    whose = await desk.store.read(partial(_whose, caller=caller, text=asked.principal))
    token, secret, token_hash = new_token(
        desk, whose, TokenKind.TOKEN, label=asked.label, now=now, expires_at=expires_at
    )

    def body(conn: sa.Connection) -> None:
        if len(tokens.of(conn, str(whose), now_ms=to_ms(now))) >= TOKENS_MAX:
            raise Invalid(
                f"{whose} has {TOKENS_MAX} tokens",
                because="that is the most one can have",
                try_this="revoke those that are no longer used",
                code="token.too-many",
            )
        tokens.add(conn, token, token_hash)

    await desk.store.write(body, point="token")
    return _form(desk, token, TokenMade, token=secret)


async def listed(desk: Desk, caller: Principal, asked: OfPrincipal) -> TokensListed:
    def body(conn: sa.Connection) -> list[Token]:
        whose = _whose(conn, caller=caller, text=asked.principal)
        return tokens.of(conn, str(whose), now_ms=to_ms(desk.clock.now()))

    return TokensListed([_form(desk, token, TokenListed) for token in await desk.store.scan(body)])


async def revoke(desk: Desk, caller: Principal, asked: ById) -> TokenRevoked:
    now_ms = to_ms(desk.clock.now())

    def body(conn: sa.Connection) -> Token:
        token = _find(conn, caller, asked, now_ms=now_ms)
        tokens.revoke(conn, token.id, at_ms=now_ms)
        return token

    token = await desk.store.write(body, point="token")
    return _form(desk, token, TokenRevoked, revoked=True)


async def rotate(desk: Desk, caller: Principal, asked: ById) -> TokenMade:
    """Replace a token's secret, in one commit: exactly one of the two is valid at any time."""
    now = desk.clock.now()
    old = await desk.store.read(lambda conn: _find(conn, caller, asked, now_ms=to_ms(now)))
    token, secret, token_hash = new_token(
        desk, old.principal, old.kind, label=old.label, now=now, expires_at=old.expires_at
    )

    def body(conn: sa.Connection) -> None:
        if not tokens.revoke(conn, old.id, at_ms=to_ms(now)):
            raise _not_found(asked.id)
        tokens.add(conn, token, token_hash)

    await desk.store.write(body, point="token")
    return _form(desk, token, TokenMade, token=secret)


async def code(desk: Desk, caller: Principal, asked: Nothing) -> CodeMade:
    """Create a code that signs a browser in as the caller, once, within five minutes."""
    now = desk.clock.now()
    expires_at = now + timedelta(seconds=CODE_EXPIRES_AFTER_S)
    if caller.address.kind is not AddressKind.PERSON:
        raise Invalid(
            "only people sign in with a browser",
            because=f"you are {caller.address}",
            try_this="use your token",
            code="token.not-a-person",
        )
    token, secret, token_hash = new_token(
        desk, caller.address, TokenKind.CODE, label="browser", now=now, expires_at=expires_at
    )
    await desk.store.write(lambda conn: tokens.add(conn, token, token_hash), point="token")
    return CodeMade(code=secret, expires_at=show(expires_at, desk.zone))


def _form(desk: Desk, token: Token, form: type[Form], /, **more: Any) -> Form:
    return form(
        id=short(token.id),
        kind=token.kind,
        principal=str(token.principal),
        label=token.label,
        created_at=show(token.created_at, desk.zone),
        expires_at=show(token.expires_at, desk.zone) if token.expires_at else None,
        **more,
    )


def _whose(conn: sa.Connection, *, caller: Principal, text: str) -> Address:
    """Return the principal: the caller, or for the owner any known person or agent. Others are not found."""
    if not text or text == str(caller.address):
        return caller.address
    named = address.parse(text)
    if caller.sees_all:
        if named.kind is AddressKind.PERSON and (person := people.find(conn, named.name)) is not None:
            return address.person(person.name)
        if named.kind is AddressKind.AGENT and (agent := agents.find(conn, named.name)) is not None:
            return address.agent(agent.name)
    raise NotFound(
        f"nobody here is called {text[:80]}",
        because="no person or agent of that name is known to you",
        try_this="leave the principal out for your own tokens",
        code="principal.not-found",
    )


def _find(conn: sa.Connection, caller: Principal, asked: ById, *, now_ms: int) -> Token:
    digits = prefix(asked.id)
    whose = _whose(conn, caller=caller, text=asked.principal)
    found = [token for token in tokens.of(conn, str(whose), now_ms=now_ms) if token.id.startswith(digits)]
    if len(found) != 1:
        raise _not_found(digits)
    return found[0]


def _not_found(digits: str) -> NotFound:
    return NotFound(
        f"no token {digits[:40]}",
        because="none of these tokens, or more than one, has an id that begins so",
        try_this="look at `retinue token list`",
        code="token.not-found",
    )


OPERATIONS = (
    Operation(
        name="token.create",
        summary="Make a token. Its secret is shown this once.",
        parameters=Create,
        handler=create,
        result=TokenMade,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        shown_once=frozenset({"token"}),
    ),
    Operation(
        name="token.list",
        summary="List tokens, without their secrets.",
        parameters=OfPrincipal,
        handler=listed,
        result=TokensListed,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="token.revoke",
        summary="Make a token worthless.",
        parameters=ById,
        handler=revoke,
        result=TokenRevoked,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
    ),
    Operation(
        name="token.rotate",
        summary="Put a new secret in a token's place. It is shown this once.",
        parameters=ById,
        handler=rotate,
        result=TokenMade,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        shown_once=frozenset({"token"}),
    ),
    Operation(
        name="token.code",
        summary="Make a code that signs a browser in, once.",
        parameters=Nothing,
        handler=code,
        result=CodeMade,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        shown_once=frozenset({"code"}),
    ),
)
