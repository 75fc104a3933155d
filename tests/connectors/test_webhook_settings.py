"""What the guides show can be written into the file as it stands."""

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


def blocks(guide: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)


@pytest.mark.parametrize("guide", ["webhooks.md", "hooks.md", "speech.md"])
def test_each_example_of_a_guide_is_read(tmp_path: Path, guide: str) -> None:
    assert blocks(guide)
    for text in blocks(guide):
        (tmp_path / "retinue.toml").write_text(text)
        load_configuration({"RETINUE_HOME": str(tmp_path)})


def test_the_settings_of_a_webhook_are_read_with_the_file(tmp_path: Path) -> None:
    example = next(block for block in blocks("webhooks.md") if "[connectors.code]" in block)
    (tmp_path / "retinue.toml").write_text(example)
    own = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.connectors["code"].own
    assert isinstance(own, WebhookSettings)
    assert own.proof is SignatureScheme.GITHUB
    assert own.mappings["opened"].match["payload.action"] == "opened"


@pytest.mark.parametrize(
    "text",
    [
        'proof = "unheard"',
        "requests_per_minute = 0",
        'unheard = "of"',
        'mappings.x.kind = "unheard"',
        'url = "ftp://x"',
    ],
)
def test_what_a_webhook_does_not_know_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "retinue.toml").write_text(f'[connectors.ci]\nkind = "webhook"\n{text}\n')
    with pytest.raises(RetinueError):
        load_configuration({"RETINUE_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "{{ payload", "{{ payload | unheard }}"])
def test_a_mapping_that_cannot_be_filled_keeps_its_connector_from_being_made(tmp_path: Path, text: str) -> None:
    class Shelf:
        async def get(self, key: str) -> str | None:
            return None

        async def put(self, key: str, value: str) -> None:
            return None

    surroundings = ConnectorContext(
        name="ci",
        clock=RealClock(),
        random=new_random(),
        state=Shelf(),
        get_attachment_path=lambda _: tmp_path,
        read_secret=lambda _: "secret",
    )
    with pytest.raises(Invalid) as refused:
        PLATFORM.make_connector(WebhookSettings(mappings={"x": WebhookMapping(text=text)}), surroundings)
    assert "connectors.ci.mappings.x.text" in refused.value.sentence


def test_speech_and_hooks_are_off_until_they_are_set(tmp_path: Path) -> None:
    settings = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings
    assert settings.speech.mode is SpeechMode.OFF
    assert not settings.hooks.enabled
