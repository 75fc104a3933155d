"""Errors of connectors and their settings: one class for each code.

Errors of deliveries and connections are in `base`.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.access import PoisonMessageState
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError


class ConnectorNameMismatch(Invalid):
    """The factory of a platform returned a connector with a different name than the one requested."""

    code = "connector.name_mismatch"

    def __init__(self, platform: str, *, name: str, requested: str) -> None:
        super().__init__(
            f"the platform '{platform}' created the connector '{name[:64]}' instead of '{requested}'",
            because="connectors of one platform are distinguished by their names",
            try_this="correct the plugin that provides this platform",
        )


class ConnectorSecretAmbiguous(Invalid):
    """A secret of a connector is set in two ways."""

    code = "connector.secret_ambiguous"

    def __init__(self, connector: str, secret: str) -> None:
        super().__init__(
            f"connectors.{connector} has two settings for its {secret}",
            because=f"both `{secret}_env` and `{secret}_file` are set",
            try_this="remove one of them",
        )


class ConnectorSecretMissing(Invalid):
    """A secret that a connector needs is not set."""

    code = "connector.secret_missing"

    def __init__(self, connector: str, secret: str) -> None:
        super().__init__(
            f"connectors.{connector} has no {secret}",
            because=f"neither `{secret}_env` nor `{secret}_file` is set",
            try_this=f'set {secret}_file = "PATH" to a file that contains only the secret and that only you can read',
        )


class PlatformImportFailed(RetinueError):
    """The code of a built-in platform cannot be imported. The server continues without the platform."""

    code = "connector.platform_broken"

    def __init__(self, platform: str, *, because: str) -> None:
        super().__init__(f"cannot import the platform '{platform}'", because=because, try_this="install retinue again")


class PlatformNotSupported(NotFound):
    """Retinue does not support this well-known platform."""

    code = "connector.platform_not_supported"

    def __init__(self, platform: str, *, because: str, supported: Sequence[str]) -> None:
        super().__init__(f"{platform} is not supported", because=because, try_this=f"use one of {', '.join(supported)}")


class PlatformNotFound(NotFound):
    """No platform has this name."""

    code = "connector.platform_unknown"

    def __init__(self, platform: str, *, supported: Sequence[str]) -> None:
        super().__init__(
            f"no platform named '{platform[:64]}'",
            because=f"the platforms are {', '.join(supported)}",
            try_this="use one of them, or install the plugin that provides this platform",
        )


class FileNotFetched(RetinueError):
    """A file that a person sent cannot be downloaded from the platform."""

    code = "connector.file_not_fetched"

    def __init__(self, *, because: str, is_too_large: bool = False) -> None:
        super().__init__(
            "the file cannot be downloaded from the platform",
            because=because,
            try_this="send a smaller file, or a link to it" if is_too_large else "send it again",
        )


class PoisonMessageNotFound(NotFound):
    """No poison message (unprocessed message) has this id."""

    code = "poison_message.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no unprocessed message '{id_[:64]}'",
            because="the id is wrong, or the message was closed",
            try_this="list the unprocessed messages: retinue poison-message list",
        )


class PoisonMessageClosed(Conflict):
    """The poison message (unprocessed message) is already closed."""

    code = "poison_message.closed"

    def __init__(self, state: PoisonMessageState) -> None:
        super().__init__(
            "the unprocessed message is already closed",
            because=f"its state is {state}",
            try_this="list the unprocessed messages: retinue poison-message list",
        )


class PoisonMessageDamaged(Invalid):
    """The stored body of a poison message (unprocessed message) cannot be decoded."""

    code = "poison_message.damaged"

    def __init__(self, id_: str, *, because: str) -> None:
        super().__init__(
            "the unprocessed message cannot be read",
            because=f"its stored copy is damaged: {because}",
            try_this=f"delete it: retinue poison-message drop {id_[:8]}",
        )
