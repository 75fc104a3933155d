"""Test that the settings in the guides are valid, and that invalid ones are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.app.clock_and_ids import RealClock, new_random
from retinue.config import load_configuration
from retinue.config.speech import SpeechMode
from retinue.connectors.base import ConnectorContext
from retinue.connectors.webhook import PLATFORM
from retinue.connectors.webhook.settings import SignatureScheme, WebhookMapping, WebhookSettings
from retinue.domain.errors import Invalid, RetinueError

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def list_toml_blocks(guide: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)


@pytest.mark.parametrize("guide", ["webhooks.md", "hooks.md", "speech.md"])
def test_every_settings_example_in_the_webhook_hook_and_speech_guides_loads(tmp_path: Path, guide: str) -> None:
    assert list_toml_blocks(guide)
    for text in list_toml_blocks(guide):
        (tmp_path / "retinue.toml").write_text(text)
        load_configuration({"RETINUE_HOME": str(tmp_path)})


def test_webhook_settings_are_loaded_from_the_settings_file(tmp_path: Path) -> None:
    example = next(block for block in list_toml_blocks("webhooks.md") if "[connectors.code]" in block)
    (tmp_path / "retinue.toml").write_text(example)
    own = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.connectors["code"].platform_settings
    assert isinstance(own, WebhookSettings)
    assert own.signature_scheme is SignatureScheme.GITHUB
    assert own.mappings["opened"].match["payload.action"] == "opened"


@pytest.mark.parametrize(
    "text",
    [
        'signature_scheme = "unheard"',
        "requests_per_minute = 0",
        'unheard = "of"',
        'mappings.x.kind = "unheard"',
        'url = "ftp://x"',
    ],
)
def test_invalid_webhook_settings_are_refused_when_the_file_is_loaded(tmp_path: Path, text: str) -> None:
    (tmp_path / "retinue.toml").write_text(f'[connectors.ci]\nplatform = "webhook"\n{text}\n')
    with pytest.raises(RetinueError):
        load_configuration({"RETINUE_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "{{ payload", "{{ payload | unheard }}"])
def test_webhook_settings_with_an_invalid_mapping_template_create_no_connector(tmp_path: Path, text: str) -> None:
    class EmptyConnectorState:
        async def get(self, key: str) -> str | None:
            return None

        async def put(self, key: str, value: str) -> None:
            return None

    context = ConnectorContext(
        name="ci",
        clock=RealClock(),
        random=new_random(),
        state=EmptyConnectorState(),
        get_attachment_path=lambda _: tmp_path,
        read_secret=lambda _: "secret",
    )
    with pytest.raises(Invalid) as refused:
        PLATFORM.make_connector(WebhookSettings(mappings={"x": WebhookMapping(text=text)}), context)
    assert "connectors.ci.mappings.x.text" in refused.value.sentence


def test_speech_and_hooks_are_off_in_the_default_settings(tmp_path: Path) -> None:
    settings = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings
    assert settings.speech.mode is SpeechMode.OFF
    assert not settings.hooks.enabled
