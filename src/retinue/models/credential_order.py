"""Which credentials there are, in which order they are asked, and which one a session stays with.

They come from three places: variables of the environment that a provider is known by (`anthropic:env`), the `key` of
its settings (`anthropic:settings`, which stands in for those variables), and what was added by an operation. A key is
read when it is needed, and goes nowhere but into the request.
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
    """Every credential of the house and its agents. What is found keeps the place and the last use that are stored."""
    rows = {credential.key: credential for credential in stored}
    found: dict[tuple[str, str], Credential] = {}
    for credential in _found(variables=variables, keys=keys, environment=environment):
        row = rows.pop(credential.key, None)
        found[credential.key] = (
            replace(credential, position=row.position, used_at=row.used_at) if row is not None else credential
        )
    # A row of one that is not found any more only remembers how it fared.
    kept = {key: row for key, row in rows.items() if not is_found(row.id)}
    return tuple(sorted((found | kept).values(), key=lambda each: (each.provider, each.key)))


def is_found(id_: str) -> bool:
    """Whether an id is of those that nobody adds, because they are found."""
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
                # Numbered by its place, not by what is set: a second variable does not become the first one.
                short = ENVIRONMENT if number == 1 else f"{ENVIRONMENT}-{number}"
                yield Credential(id=f"{provider}:{short}", provider=provider, source=f"env:{name}")


def secret_of(credential: Credential) -> Secret:
    where, _, what = credential.source.partition(":")
    return Secret(file=Path(what)) if where == "file" else Secret(env=what)


def key_of(credential: Credential, environment: Mapping[str, str]) -> str:
    """The key itself, for a request. Where it cannot be had, that is a failure like a refused one."""
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
    """Without the blanks around it, which are there for whoever wrote it down. What no header can hold is no key."""
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
    """The credentials one agent may use: its own, and the house's after them."""

    agent: str
    credentials: Sequence[Credential]
    variables: Mapping[str, Sequence[str]]
    environment: Mapping[str, str] = field(repr=False)  # keys are in it

    def of(self, provider: str) -> tuple[Credential, ...]:
        """Those whose key can be read."""
        return tuple(each for each in self._all(provider) if not self._fault(each))

    def none_because(self, provider: str) -> str:
        """Why there is none of them to use, and what would change that."""
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
    """Which to ask first. One that a person has chosen is asked alone.

    Then: the one that served this session; an agent's own before the house's; by the order someone has set; tokens
    before keys; the longest unused. Those that cool down come last, the soonest free first.
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
    """A session stays with the credential that served it, for its provider's cache. What a person chose stays."""
    if mind.pinned or credential is None or mind.credential == credential.id:
        return mind
    return replace(mind, credential=credential.id)


def let_go(mind: Mind) -> Mind:
    """After a reset or a compaction nothing is cached: the next call chooses anew. What a person chose stays."""
    return mind if mind.pinned or mind.credential is None else replace(mind, credential=None)
