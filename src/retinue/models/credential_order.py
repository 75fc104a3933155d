"""Collects the credentials of an agent, orders them, and makes a session reuse the credential that last worked.

There are three sources. First, environment variables that a provider is known to use
(`anthropic:env`). Second, the `key` of a provider's settings (`anthropic:settings`), which replaces
those variables. Third, credentials that people have added to the store. A key is read when it is
needed, and goes only into the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from retinue.config.secret import SecretReference
from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.errors import RetinueError
from retinue.domain.session import SessionOptions
from retinue.domain.shared_errors import CredentialKeyInvalid
from retinue.models.errors import ModelKeyUnreadable
from retinue.policy.limits.cooldowns import CredentialCooldowns

ENVIRONMENT, SETTINGS = "env", "settings"
_NEVER = datetime.min.replace(tzinfo=UTC)
_RANK = {kind: rank for rank, kind in enumerate(CredentialKind)}


def collect_credentials(
    stored: Iterable[Credential],
    *,
    variables: Mapping[str, Sequence[str]],
    keys: Mapping[str, SecretReference],
    environment: Mapping[str, str],
) -> tuple[Credential, ...]:
    """Return every credential of the server and its agents.

    Credentials are discovered in the environment and the settings, or come from the store. A
    discovered credential keeps the position and the last use that were stored for it.
    """
    rows = {credential.row_key: credential for credential in stored}
    found: dict[tuple[str, str], Credential] = {}
    for credential in _discover_credentials(variables=variables, keys=keys, environment=environment):
        row = rows.pop(credential.row_key, None)
        found[credential.row_key] = (
            replace(credential, position=row.position, used_at=row.used_at) if row is not None else credential
        )
    # A row whose credential was not discovered again only remembers its status.
    kept = {key: row for key, row in rows.items() if not is_discovered(row.id)}
    return tuple(sorted((found | kept).values(), key=lambda each: (each.provider, each.row_key)))


def is_discovered(id_: str) -> bool:
    """Whether a credential with this id is from the environment or the settings. No added credential has such an id."""
    _, _, name = id_.partition(":")
    return name in (SETTINGS, ENVIRONMENT) or name.startswith(f"{ENVIRONMENT}-")


def _discover_credentials(
    *, variables: Mapping[str, Sequence[str]], keys: Mapping[str, SecretReference], environment: Mapping[str, str]
) -> Iterable[Credential]:
    for provider, secret in keys.items():
        source = f"file:{secret.file}" if secret.file else f"env:{secret.env}"
        yield Credential(id=f"{provider}:{SETTINGS}", provider=provider, source=source)
    for provider, names in variables.items():
        if provider in keys:
            continue
        for number, name in enumerate(names, start=1):
            if environment.get(name):
                # Numbered by position in the list, not by what is set, so that ids stay stable.
                short = ENVIRONMENT if number == 1 else f"{ENVIRONMENT}-{number}"
                yield Credential(id=f"{provider}:{short}", provider=provider, source=f"env:{name}")


def get_secret(credential: Credential) -> SecretReference:
    where, _, what = credential.source.partition(":")
    return SecretReference(file=Path(what)) if where == "file" else SecretReference(env=what)


def read_key(credential: Credential, environment: Mapping[str, str]) -> str:
    """Return the API key of a credential.

    If the key cannot be read, raises `ModelKeyUnreadable`, which counts as a rejected key.
    """
    try:
        return _read_valid_key(credential, environment)
    except RetinueError as error:
        raise ModelKeyUnreadable(
            credential.id, because=f"{error.sentence}: {error.because}", try_this=error.try_this
        ) from None


def _read_valid_key(credential: Credential, environment: Mapping[str, str]) -> str:
    """Return the key without surrounding whitespace. Raise an error if it cannot be sent in an HTTP header."""
    key = get_secret(credential).read(environment).strip()
    if key and key.isascii() and key.isprintable():
        return key
    raise CredentialKeyInvalid(credential.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCredentials:
    """The credentials that an agent may use: first its own, then those of the server."""

    agent: str
    credentials: Sequence[Credential]
    variables: Mapping[str, Sequence[str]]
    environment: Mapping[str, str] = field(repr=False)  # contains keys

    def list_usable(self, provider: str) -> tuple[Credential, ...]:
        """Return the credentials whose key can be read."""
        return tuple(each for each in self._list_all(provider) if not self._find_fault(each))

    def explain_none(self, provider: str) -> str:
        """Explain why the agent has no usable credential for a provider, and what to do about it."""
        faults = [f"{each.id}: {fault}" for each in self._list_all(provider) if (fault := self._find_fault(each))]
        if faults:
            return "; ".join(faults)
        names = self.variables.get(provider, ())
        return f"no API key: set {' or '.join(names)}" if names else "no API key"

    def _list_all(self, provider: str) -> list[Credential]:
        mine = [each for each in self.credentials if each.provider == provider and each.agent in ("", self.agent)]
        return sorted(mine, key=lambda each: not each.agent)

    def _find_fault(self, credential: Credential) -> str:
        try:
            _read_valid_key(credential, self.environment)
        except RetinueError as error:
            return error.because
        return ""


def order_credentials(
    credentials: Sequence[Credential],
    cooldowns: CredentialCooldowns,
    *,
    model: str,
    session_options: SessionOptions,
    now: datetime,
) -> tuple[Credential, ...]:
    """Return the credentials in the order to try them, or only the one that a person chose for the session.

    The credential that last worked for this session comes first. The others are ordered by owner
    (the agent's before the server's), then by the configured order, then tokens before keys, then
    least recently used first. Credentials in cooldown come last, the soonest available first.
    """
    if credentials and is_pinned(session_options, credentials[0].provider):
        return tuple(each for each in credentials if each.id == session_options.credential)[:1]
    if len(credentials) == 1:
        return tuple(credentials)

    def rank(credential: Credential) -> tuple[bool, bool, int, int, datetime, str]:
        return (
            not credential.agent,
            credential.position is None,
            credential.position or 0,
            _RANK[credential.kind],
            credential.used_at or _NEVER,
            credential.id,
        )

    held = {each.row_key: cooling for each in credentials if (cooling := cooldowns.find_active(each, model, now))}
    fresh = sorted((each for each in credentials if each.row_key not in held), key=rank)
    sticky = next(
        (each for each in credentials if each.id == session_options.credential and each.row_key not in held), None
    )
    if sticky is not None:
        fresh = [sticky, *(each for each in fresh if each.row_key != sticky.row_key)]
    cooling = sorted((each for each in credentials if each.row_key in held), key=lambda each: held[each.row_key].until)
    return (*fresh, *cooling)


def is_pinned(session_options: SessionOptions, provider: str) -> bool:
    """Whether a person has chosen one of this provider's credentials for the session."""
    return (
        session_options.pinned
        and session_options.credential is not None
        and session_options.credential.partition(":")[0] == provider
    )


def keep_credential(session_options: SessionOptions, credential: Credential | None) -> SessionOptions:
    """Return the session's options with this credential as the one to use for the next calls.

    The provider's prompt cache belongs to a credential. If a person chose a credential for the
    session, the options stay unchanged.
    """
    if session_options.pinned or credential is None or session_options.credential == credential.id:
        return session_options
    return replace(session_options, credential=credential.id)


def release_credential(session_options: SessionOptions) -> SessionOptions:
    """Return the session's options without the credential that was last used, so that the next call chooses one.

    Called after a reset or compaction, because the provider then has nothing cached for the
    session. If a person chose the credential, the options stay unchanged.
    """
    return (
        session_options
        if session_options.pinned or session_options.credential is None
        else replace(session_options, credential=None)
    )
