"""Errors of the settings operations and of the gateway tool."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Invalid
from retinue.domain.shared_errors import shorten_name
from retinue.tools.base import ToolFailed


class SettingsTextTooLarge(Invalid):
    """The given text exceeds the size limit of a settings file."""

    code = "config.text_too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "the text is too large for a settings file",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="move a part into separate files, and `include` them",
        )


class RunnerUnknown(Invalid):
    """The settings name a runner that this server does not have."""

    code = "agent.runner_unknown"

    def __init__(self, agent: str, runner: str, *, known: Sequence[str]) -> None:
        super().__init__(
            f"invalid value for agents.{agent}.runner: '{shorten_name(runner)}'",
            because=f"the available runners are {', '.join(known)}",
            try_this="use one of these, or install the plugin that provides the runner; see: retinue plugin list",
        )


class PreviewInputTwice(Invalid):
    """A preview of settings was requested for `changes` and for `text` at once."""

    code = "config.preview_input_twice"

    def __init__(self) -> None:
        super().__init__(
            "both `changes` and `text` are given",
            because="a preview shows either some changes or a complete new file",
            try_this="send `changes` or `text`, not both",
        )


class SettingsFileHasSecret(Invalid):
    """The settings file contains a secret, which would be lost if the whole text were replaced."""

    code = "config.file_has_secret"

    def __init__(self) -> None:
        super().__init__(
            "the settings file cannot be replaced as a whole",
            because="it contains a secret, which is redacted in the text that you edit, and would be lost",
            try_this="change the file in an editor, then run: retinue config reload",
        )


class SettingsFileNotToml(Invalid):
    """The current settings file is not valid TOML, so changes cannot be computed."""

    code = "config.file_not_toml"

    def __init__(self) -> None:
        super().__init__(
            "the changes to the settings file cannot be computed",
            because="the current file is not valid TOML",
            try_this="change the file in an editor, then run: retinue config reload",
        )


class SettingsChangeNotPatchable(Invalid):
    """The server writes settings key by key, and the new text cannot be written this way."""

    code = "config.change_not_patchable"

    def __init__(self) -> None:
        super().__init__(
            "the server cannot make this change in the settings file",
            because="the change removes an item from a list of tables, and the server only writes single keys",
            try_this="change the file in an editor, then run: retinue config reload",
        )


class GatewayOwnerOnly(ToolFailed):
    """The gateway tool was called in a run that is not on behalf of the owner."""

    code = "gateway.owner_only"

    def __init__(self, sender: str) -> None:
        super().__init__(
            "you can use the tool gateway only in runs on behalf of the owner",
            because=f"this run is on behalf of {sender}",
            try_this="ask the owner to send you this request",
        )
