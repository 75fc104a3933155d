"""Errors of the operations on models, credentials and usage."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.shared_errors import shorten_name


class CredentialNameReserved(Invalid):
    """The name is reserved for keys that are found in the environment or in the settings."""

    code = "credential.name_reserved"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a credential cannot be named '{name}'",
            because="the name is reserved for keys found in the environment or in the settings",
            try_this="choose another name",
        )


class CredentialRegionInvalid(Invalid):
    """The region of a credential is too long or has characters that cannot be printed."""

    code = "credential.region_invalid"

    def __init__(self, region: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid region: {region[:chars_max]!r}",
            because=f"it must have at most {chars_max} printable characters",
            try_this="use a region such as eu-west-1",
        )


class CredentialKeySourceInvalid(Invalid):
    """A credential names no source for its key, or several sources."""

    code = "credential.key_source_invalid"

    def __init__(self, id_: str) -> None:
        super().__init__(
            "a credential needs one source for its key",
            because="exactly one of `key_env`, `key_file` and `key` must be given",
            try_this=f"give a file: retinue credential add {id_.replace(':', ' ')} --key-file FILE",
        )


class CredentialVariableInvalid(Invalid):
    """`key_env` is not a variable name. The error does not show its value, which may be the key itself."""

    code = "credential.key_env_invalid"

    def __init__(self) -> None:
        super().__init__(
            "`key_env` is not the name of an environment variable",
            because="it must consist of capital letters, digits and underscores, and must not start with a digit",
            try_this="give the name of the variable here, or the key itself as `key`",
        )


class CredentialKeyFileInvalid(Invalid):
    """`key_file` is not an absolute path, is too long, or has characters that cannot be printed."""

    code = "credential.key_file_invalid"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "invalid value for `key_file`",
            because=f"it must be an absolute path of at most {chars_max:,} printable characters",
            try_this="give the full path, starting with /",
        )


class CredentialKeyFromAgent(Invalid):
    """An agent gave the text of a key, which would be stored in the agent's history."""

    code = "credential.key_by_agent"

    def __init__(self) -> None:
        super().__init__(
            "an agent cannot give the text of a key",
            because="an agent's calls are stored in its history, which must not contain keys",
            try_this="write the key to a file, and give its path as `key_file`",
        )


class CredentialNotFound(NotFound):
    """The agent, or the server, has no credential with this id."""

    code = "credential.not_found"

    def __init__(self, id_: str, *, agent: str = "") -> None:
        super().__init__(
            f"{f'agent {agent}' if agent else 'the server'} has no credential '{id_[:130]}'",
            because="with --agent, only credentials of that agent are found; leave it out for credentials of the server"
            if agent
            else "credentials of an agent are found only with --agent NAME",
            try_this="list the credentials: retinue credential list",
        )


class CredentialNotRemovable(Conflict):
    """The key was found in the environment or in the settings, so there is nothing to remove."""

    code = "credential.not_removable"

    def __init__(self, id_: str, *, source: str) -> None:
        super().__init__(
            f"{id_} cannot be removed",
            because=f"it was not added with `retinue credential add`: the server found its key in {source}",
            try_this=f"remove the key from {source}, then restart the server or run: retinue config reload",
        )


class TooManyCredentials(Conflict):
    """The server has the maximum number of credentials."""

    code = "credential.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many credentials",
            because=f"the limit is {count_max:,}",
            try_this="remove one that you no longer use: retinue credential remove ID",
        )


class CredentialExists(Conflict):
    """A credential with this id already exists for the same agent, or for the server."""

    code = "credential.exists"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"the credential {id_} already exists",
            because="an agent, or the server, cannot have two credentials with the same id",
            try_this=f"choose another name, or remove it first: retinue credential remove {id_}",
        )


class CredentialOrderInvalid(Invalid):
    """The given order lists a credential twice, or lists a credential of another provider."""

    code = "credential.order_invalid"

    def __init__(self, provider: str, *, of_other_providers: Sequence[str]) -> None:
        super().__init__(
            f"invalid order of the credentials of {provider}",
            because=f"these belong to other providers: {', '.join(of_other_providers)}"
            if of_other_providers
            else "a credential is listed twice",
            try_this=f"list each credential of {provider} at most once, or none to use the least recently used first",
        )


class ModelCatalogUnavailable(NotFound):
    """This server has no model catalog."""

    code = "model.no_catalog"

    def __init__(self) -> None:
        super().__init__(
            "this server has no model catalog",
            because="its models were passed to it directly",
            try_this="start it with: retinue run",
        )


class ModelAgentMismatch(Conflict):
    """The request names a session and an agent, but the session belongs to another agent."""

    code = "model.agent_mismatch"

    def __init__(self, agent: str, *, named: str) -> None:
        super().__init__(
            f"this session belongs to {agent}, not to {shorten_name(named)}",
            because="a session belongs to one agent",
            try_this=f"leave out the agent, or name {agent}",
        )


class TooManyUsageDays(Invalid):
    """A daily report was requested for too many days."""

    code = "usage.too_many_days"

    def __init__(self, days: int, *, days_max: int) -> None:
        super().__init__(
            f"too many days: {days}",
            because=f"the limit is {days_max}",
            try_this="request fewer days, or the totals: retinue usage show",
        )


class DateInvalid(Invalid):
    """A date has an invalid format, or its year is too early."""

    code = "date.invalid"

    def __init__(self, text: str, *, year_min: int) -> None:
        super().__init__(
            f"invalid date: {text[:64]!r}",
            because=f"it must be YYYY-MM-DD, in {year_min} or later, or relative to now",
            try_this="use a date such as 2026-11-15, or -7D",
        )
