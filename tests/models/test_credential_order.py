"""Where credentials come from, and whose they are. What is shown of them never holds a key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from retinue.config.secret import SecretReference
from retinue.domain.credential import Credential
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.models.credential_order import AgentCredentials, collect_credentials, read_key

KEY = "sk-very-secret-0123"
VARIABLES = {"acme": ("ACME_API_KEY",), "rival": ("RIVAL_API_KEY", "OTHER_RIVAL_KEY"), "nobody": ("NOBODY_KEY",)}
USED = datetime(2026, 3, 1, tzinfo=UTC)


def gathered(
    *stored: Credential, environment: dict[str, str], keys: dict[str, SecretReference] | None = None
) -> dict[str, Credential]:
    found = collect_credentials(stored, variables=VARIABLES, keys=keys or {}, environment=environment)
    return {each.id: each for each in found}


def ring(agent: str, *credentials: Credential, environment: dict[str, str] | None = None) -> AgentCredentials:
    return AgentCredentials(agent=agent, credentials=credentials, variables=VARIABLES, environment=environment or {})


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_keys_of_the_environment_are_found_by_their_names() -> None:
    found = gathered(environment={"ACME_API_KEY": KEY, "OTHER_RIVAL_KEY": KEY, "NOBODY_KEY": ""})
    assert {id_: each.source for id_, each in found.items()} == {
        "acme:env": "env:ACME_API_KEY",
        "rival:env-2": "env:OTHER_RIVAL_KEY",  # the second of its variables, whether or not the first is set
    }


def test_the_key_of_a_providers_settings_stands_in_for_its_variables() -> None:
    found = gathered(environment={"ACME_API_KEY": KEY, "MINE": KEY}, keys={"acme": SecretReference(env="MINE")})
    assert {id_: each.source for id_, each in found.items()} == {"acme:settings": "env:MINE"}


def test_a_found_one_remembers_its_place_and_last_use_and_a_lost_one_is_not_there() -> None:
    row = Credential(id="acme:env", provider="acme", source="env:OLD_NAME", position=3, used_at=USED)
    added = Credential(id="acme:work", provider="acme", source="env:WORK")
    found = gathered(row, added, environment={"ACME_API_KEY": KEY})
    assert (found["acme:env"].source, found["acme:env"].position) == ("env:ACME_API_KEY", 3)
    assert found["acme:env"].used_at == USED
    assert set(gathered(row, added, environment={})) == {"acme:work"}


@pytest.mark.spec("C106")
def test_an_agent_has_its_own_and_the_houses_and_never_anothers() -> None:
    house, adas, bos = (
        Credential(id="acme:x", provider="acme", source="env:K", agent=agent) for agent in ("", "ada", "bo")
    )
    assert ring("ada", house, bos, adas, environment={"K": KEY}).list_usable("acme") == (adas, house)
    assert ring("cy", house, bos, adas, environment={"K": KEY}).list_usable("acme") == (house,)


def test_one_whose_key_cannot_be_read_is_left_out_with_a_because(tmp_path: Path) -> None:
    exposed = private(tmp_path / "exposed", KEY)
    exposed.chmod(0o644)
    missing = Credential(id="acme:gone", provider="acme", source=f"file:{tmp_path}/gone")
    open_to_all = Credential(id="acme:open", provider="acme", source=f"file:{exposed}")
    good = Credential(id="acme:good", provider="acme", source=f"file:{private(tmp_path / 'good', KEY)}")
    assert ring("ada", missing, open_to_all, good).list_usable("acme") == (good,)
    because = ring("ada", missing, open_to_all).explain_none("acme")
    assert "acme:gone: " in because and "acme:open: " in because and KEY not in because
    assert ring("ada").explain_none("acme") == "no API key: set ACME_API_KEY"
    assert ring("ada").explain_none("unknown") == "no API key"


def test_a_key_is_read_when_it_is_needed_and_in_nothing_that_is_shown(tmp_path: Path) -> None:
    file = private(tmp_path / "key", KEY + "\n")
    credential = Credential(id="acme:work", provider="acme", source=f"file:{file}")
    assert read_key(credential, {}) == KEY
    assert KEY not in repr(credential) and KEY not in repr(ring("ada", credential, environment={"K": KEY}))
    private(file, "another")
    assert read_key(credential, {}) == "another"
    file.unlink()
    with pytest.raises(ModelFailed) as failed:
        read_key(credential, {})
    assert failed.value.failure is ModelFailureKind.AUTH and failed.value.code == "model.key_unreadable"
    assert failed.value.because and failed.value.try_this


def test_blanks_around_a_key_are_no_part_of_it(tmp_path: Path) -> None:
    """A variable that was filled from a file often ends with a line end, and no header can hold one."""
    credential = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")
    assert read_key(credential, {"ACME_API_KEY": f" {KEY}\r\n"}) == KEY


@pytest.mark.parametrize("kept", [f"{KEY}\nexport OTHER=1", "sk-“smart”", "\n", f"{KEY}\x00"])
def test_what_no_header_can_hold_is_left_out_like_a_key_that_is_not_there(kept: str) -> None:
    credential = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")
    held = ring("ada", credential, environment={"ACME_API_KEY": kept})
    assert held.list_usable("acme") == ()
    assert "ASCII letters, digits and signs, without spaces" in held.explain_none("acme")
    with pytest.raises(ModelFailed) as failed:
        read_key(credential, {"ACME_API_KEY": kept})
    assert failed.value.failure is ModelFailureKind.AUTH
    assert KEY not in str(failed.value) + failed.value.because
