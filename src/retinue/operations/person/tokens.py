"""Operations on tokens. The secret of a token is shown only in the response to the request that created it."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import TokenId, parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.times import format_time, to_ms
from retinue.domain.token import Token, TokenKind, hash_token
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.person.errors import (
    PrincipalNotFound,
    SignInNotForAgents,
    TokenExpiryInvalid,
    TokenNotFound,
    TooManyTokens,
)
from retinue.store.agents import agents
from retinue.store.people import people, tokens

LABEL_CHARS_MAX = 80
TOKENS_MAX = 100  # per principal
EXPIRY_DAYS_MAX = 3_650
CODE_TTL_S = 300


class TokenCreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Create a token for yourself. Only the owner may name another `principal`."""

    label: str = ""
    principal: str = ""
    expires_in_days: int | None = None


class TokenListRequest(msgspec.Struct, forbid_unknown_fields=True):
    principal: str = ""


class TokenIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    principal: str = ""


class TokenRow(msgspec.Struct, frozen=True):
    id: str
    kind: TokenKind
    principal: str
    label: str
    created_at: str
    expires_at: str | None


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenRow]


class TokenCreated(TokenRow, frozen=True):
    """The new token.

    If the request is repeated with the same idempotency key, the response has no `token`, and
    `shown_once` lists this field.
    """

    token: str | msgspec.UnsetType = msgspec.UNSET
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenRevoked(TokenRow, frozen=True):
    revoked: bool


class SignInCode(msgspec.Struct, frozen=True, kw_only=True):
    code: str | msgspec.UnsetType = msgspec.UNSET
    expires_at: str
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


TokenResponse = TypeVar("TokenResponse", bound=TokenRow)


def build_token(
    services: Services,
    principal: Address,
    kind: TokenKind,
    *,
    label: str,
    now: datetime,
    expires_at: datetime | None = None,
    body: str = "",
) -> tuple[Token, str, str]:
    """Return a new token, its secret, and the hash to store."""
    secret = services.new_secret()
    token = Token(
        id=TokenId(services.ids.new()),
        kind=kind,
        principal=principal,
        label=label[:LABEL_CHARS_MAX],
        created_at=now,
        expires_at=expires_at,
        body=body,
    )
    return token, secret, hash_token(secret)


async def create_token(services: Services, caller: Principal, request: TokenCreateRequest) -> TokenCreated:
    now = services.clock.now()
    if request.expires_in_days is not None and not 1 <= request.expires_in_days <= EXPIRY_DAYS_MAX:
        raise TokenExpiryInvalid(request.expires_in_days, days_max=EXPIRY_DAYS_MAX)
    expires_at = now + timedelta(days=request.expires_in_days) if request.expires_in_days else None
    whose = await services.store.read(partial(_resolve_principal, caller=caller, text=request.principal))
    token, secret, token_hash = build_token(
        services, whose, TokenKind.TOKEN, label=request.label, now=now, expires_at=expires_at
    )

    def body(conn: sa.Connection) -> None:
        if len(tokens.list_of_principal(conn, str(whose), now_ms=to_ms(now))) >= TOKENS_MAX:
            raise TooManyTokens(str(whose), count_max=TOKENS_MAX)
        tokens.add(conn, token, token_hash)

    await services.store.write(body, point="token")
    return _to_response(services, token, TokenCreated, token=secret)


async def list_tokens(services: Services, caller: Principal, request: TokenListRequest) -> TokenList:
    def body(conn: sa.Connection) -> list[Token]:
        whose = _resolve_principal(conn, caller=caller, text=request.principal)
        return tokens.list_of_principal(conn, str(whose), now_ms=to_ms(services.clock.now()))

    return TokenList([_to_response(services, token, TokenRow) for token in await services.store.scan(body)])


async def revoke_token(services: Services, caller: Principal, request: TokenIdRequest) -> TokenRevoked:
    now_ms = to_ms(services.clock.now())

    def body(conn: sa.Connection) -> Token:
        token = _require_token(conn, caller, request, now_ms=now_ms)
        tokens.revoke(conn, token.id, at_ms=now_ms)
        return token

    token = await services.store.write(body, point="token")
    return _to_response(services, token, TokenRevoked, revoked=True)


async def rotate_token(services: Services, caller: Principal, request: TokenIdRequest) -> TokenCreated:
    """Replace a token's secret in one commit, so that exactly one of the two secrets is valid at any time."""
    now = services.clock.now()
    old = await services.store.read(lambda conn: _require_token(conn, caller, request, now_ms=to_ms(now)))
    token, secret, token_hash = build_token(
        services, old.principal, old.kind, label=old.label, now=now, expires_at=old.expires_at
    )

    def body(conn: sa.Connection) -> None:
        if not tokens.revoke(conn, old.id, at_ms=to_ms(now)):
            raise TokenNotFound(request.id)
        tokens.add(conn, token, token_hash)

    await services.store.write(body, point="token")
    return _to_response(services, token, TokenCreated, token=secret)


async def create_sign_in_code(services: Services, caller: Principal, request: EmptyRequest) -> SignInCode:
    """Create a code with which a browser can sign in as the caller. It works once, within five minutes."""
    now = services.clock.now()
    expires_at = now + timedelta(seconds=CODE_TTL_S)
    if caller.address.kind is not AddressKind.PERSON:
        raise SignInNotForAgents(str(caller.address))
    token, secret, token_hash = build_token(
        services, caller.address, TokenKind.CODE, label="browser", now=now, expires_at=expires_at
    )
    await services.store.write(lambda conn: tokens.add(conn, token, token_hash), point="token")
    return SignInCode(code=secret, expires_at=format_time(expires_at, services.zone))


def _to_response(services: Services, token: Token, response_type: type[TokenResponse], /, **more: Any) -> TokenResponse:
    return response_type(
        id=short_id(token.id),
        kind=token.kind,
        principal=str(token.principal),
        label=token.label,
        created_at=format_time(token.created_at, services.zone),
        expires_at=format_time(token.expires_at, services.zone) if token.expires_at else None,
        **more,
    )


def _resolve_principal(conn: sa.Connection, *, caller: Principal, text: str) -> Address:
    """Return the principal whose tokens a request concerns. The default is the caller.

    Only the owner can name another person or agent. If any other caller does, the principal is reported as
    not found.
    """
    if not text or text == str(caller.address):
        return caller.address
    named = address.parse_address(text)
    if caller.sees_everything:
        if named.kind is AddressKind.PERSON and (person := people.find(conn, named.name)) is not None:
            return address.person_address(person.name)
        if named.kind is AddressKind.AGENT and (agent := agents.find(conn, named.name)) is not None:
            return address.agent_address(agent.name)
    raise PrincipalNotFound(text)


def _require_token(conn: sa.Connection, caller: Principal, request: TokenIdRequest, *, now_ms: int) -> Token:
    digits = parse_id_prefix(request.id)
    whose = _resolve_principal(conn, caller=caller, text=request.principal)
    found = [
        token for token in tokens.list_of_principal(conn, str(whose), now_ms=now_ms) if token.id.startswith(digits)
    ]
    if len(found) != 1:
        raise TokenNotFound(digits)
    return found[0]


OPERATIONS = (
    Operation(
        name="token.create",
        summary="Create a token. Its secret is shown only once.",
        parameters=TokenCreateRequest,
        handler=create_token,
        result=TokenCreated,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        secret_fields=frozenset({"token"}),
    ),
    Operation(
        name="token.list",
        summary="List tokens, without their secrets.",
        parameters=TokenListRequest,
        handler=list_tokens,
        result=TokenList,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="token.revoke",
        summary="Revoke a token.",
        parameters=TokenIdRequest,
        handler=revoke_token,
        result=TokenRevoked,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
    ),
    Operation(
        name="token.rotate",
        summary="Replace the secret of a token. The new secret is shown only once.",
        parameters=TokenIdRequest,
        handler=rotate_token,
        result=TokenCreated,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        secret_fields=frozenset({"token"}),
    ),
    Operation(
        name="token.code",
        summary="Create a code with which a browser can sign in once.",
        parameters=EmptyRequest,
        handler=create_sign_in_code,
        result=SignInCode,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        secret_fields=frozenset({"code"}),
    ),
)
