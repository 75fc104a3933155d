"""Collects the credentials of an agent, orders them, and keeps a session on the one that served it.

There are three sources: environment variables known for a provider (`anthropic:env`), the `key` of
its settings (`anthropic:settings`, which replaces those variables), and credentials added by an
operation. A key is read when it is needed, and goes only into the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from retinue.config.secret import Secret
from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.model import Failure, ModelFailed
from retinue.domain.session import Mind
from retinue.policy.limits.cooldowns import States

ENVIRONMENT, SETTINGS = "env", "settings"
_NEVER = datetime.min.replace(tzinfo=UTC)
_RANK = {kind: rank for rank, kind in enumerate(CredentialKind)}


def gather(
    stored: Iterable[Credential],
    *,
    variables: Mapping[str, Sequence[str]],
    keys: Mapping[str, Secret],
    environment: Mapping[str, str],
) -> tuple[Credential, ...]:
    """Return every credential of the server and its agents. A discovered one keeps its stored position and last use."""
    rows = {credential.key: credential for credential in stored}
    found: dict[tuple[str, str], Credential] = {}
    for credential in _found(variables=variables, keys=keys, environment=environment):
        row = rows.pop(credential.key, None)
        found[credential.key] = (
            replace(credential, position=row.position, used_at=row.used_at) if row is not None else credential
        )
    # A row whose credential was not discovered again only remembers its status.
    kept = {key: row for key, row in rows.items() if not is_found(row.id)}
    return tuple(sorted((found | kept).values(), key=lambda each: (each.provider, each.key)))


def is_found(id_: str) -> bool:
    """Whether the id is one of a discovered credential, which cannot be added."""
    _, _, name = id_.partition(":")
    return name in (SETTINGS, ENVIRONMENT) or name.startswith(f"{ENVIRONMENT}-")


def _found(
    *, variables: Mapping[str, Sequence[str]], keys: Mapping[str, Secret], environment: Mapping[str, str]
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


def secret_of(credential: Credential) -> Secret:
    where, _, what = credential.source.partition(":")
    return Secret(file=Path(what)) if where == "file" else Secret(env=what)


def key_of(credential: Credential, environment: Mapping[str, str]) -> str:
    """Return the key itself, for a request. An unreadable key fails like a rejected one."""
    try:
        return _read(credential, environment)
    except RetinueError as error:
        raise ModelFailed(
            f"the key of {credential.id} cannot be read",
            because=f"{error.sentence}: {error.because}",
            try_this=error.try_this,
            code="model.key-unreadable",
            failure=Failure.AUTH,
        ) from None


def _read(credential: Credential, environment: Mapping[str, str]) -> str:
    """Return the key without surrounding whitespace. A value that cannot be in a header is not a key."""
    key = secret_of(credential).read(environment).strip()
    if key and key.isascii() and key.isprintable():
        return key
    raise Invalid(
        f"what is kept for {credential.id} is no key",
        because="a key is one line of letters, digits and signs of ASCII",
        try_this="copy it again, without what is around it",
        code="credential.key-invalid",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The credentials that one agent may use: its own first, then the server's."""

    agent: str
    credentials: Sequence[Credential]
    variables: Mapping[str, Sequence[str]]
    environment: Mapping[str, str] = field(repr=False)  # contains keys

    def of(self, provider: str) -> tuple[Credential, ...]:
        """Return the credentials whose key can be read."""
        return tuple(each for each in self._all(provider) if not self._fault(each))

    def none_because(self, provider: str) -> str:
        """Explain why there is no usable credential, and what to do."""
        faults = [f"{each.id}: {fault}" for each in self._all(provider) if (fault := self._fault(each))]
        if faults:
            return "; ".join(faults)
        names = self.variables.get(provider, ())
        return f"there is no key for it: set {' or '.join(names)}" if names else "there is no key for it"

    def _all(self, provider: str) -> list[Credential]:
        mine = [each for each in self.credentials if each.provider == provider and each.agent in ("", self.agent)]
        return sorted(mine, key=lambda each: not each.agent)

    def _fault(self, credential: Credential) -> str:
        try:
            _read(credential, self.environment)
        except RetinueError as error:
            return error.because
        return ""


def order(
    credentials: Sequence[Credential], states: States, *, model: str, mind: Mind, now: datetime
) -> tuple[Credential, ...]:
    """Return the credentials in the order to try them.

    If a person chose one for the session, only that one.

    Otherwise: the one that served this session, an agent's own before the server's, the configured
    order, tokens before keys, the least recently used. Those in cooldown come last, the soonest
    available first.
    """
    if credentials and is_pinned(mind, credentials[0].provider):
        return tuple(each for each in credentials if each.id == mind.credential)[:1]
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

    held = {each.key: cooling for each in credentials if (cooling := states.holding(each, model, now))}
    fresh = sorted((each for each in credentials if each.key not in held), key=rank)
    sticky = next((each for each in credentials if each.id == mind.credential and each.key not in held), None)
    if sticky is not None:
        fresh = [sticky, *(each for each in fresh if each.key != sticky.key)]
    cooling = sorted((each for each in credentials if each.key in held), key=lambda each: held[each.key].until)
    return (*fresh, *cooling)


def is_pinned(mind: Mind, provider: str) -> bool:
    """Whether a person has chosen one of this provider's credentials for the session."""
    return mind.pinned and mind.credential is not None and mind.credential.partition(":")[0] == provider


def served(mind: Mind, credential: Credential | None) -> Mind:
    """Keep a session on the credential that served it, for the provider's prompt cache. A person's choice stays."""
    if mind.pinned or credential is None or mind.credential == credential.id:
        return mind
    return replace(mind, credential=credential.id)


def let_go(mind: Mind) -> Mind:
    """Release a session's credential.

    After a reset or compaction nothing is cached, so the next call chooses again. A person's choice
    stays.
    """
    return mind if mind.pinned or mind.credential is None else replace(mind, credential=None)
