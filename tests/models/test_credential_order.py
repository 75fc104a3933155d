"""Where credentials come from and which is used. Text that shows them never contains a key."""

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
USED_AT = datetime(2026, 3, 1, tzinfo=UTC)


def collect_by_id(
    *stored: Credential, environment: dict[str, str], keys: dict[str, SecretReference] | None = None
) -> dict[str, Credential]:
    found = collect_credentials(stored, variables=VARIABLES, keys=keys or {}, environment=environment)
    return {each.id: each for each in found}


def make_agent_credentials(
    agent: str, *credentials: Credential, environment: dict[str, str] | None = None
) -> AgentCredentials:
    return AgentCredentials(agent=agent, credentials=credentials, variables=VARIABLES, environment=environment or {})


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_provider_credentials_are_found_in_the_environment_by_variable_name() -> None:
    found = collect_by_id(environment={"ACME_API_KEY": KEY, "OTHER_RIVAL_KEY": KEY, "NOBODY_KEY": ""})
    assert {id_: each.source for id_, each in found.items()} == {
        "acme:env": "env:ACME_API_KEY",
        "rival:env-2": "env:OTHER_RIVAL_KEY",  # the second variable, whether or not the first is set
    }


def test_a_key_in_the_provider_settings_replaces_the_credentials_from_the_environment() -> None:
    found = collect_by_id(environment={"ACME_API_KEY": KEY, "MINE": KEY}, keys={"acme": SecretReference(env="MINE")})
    assert {id_: each.source for id_, each in found.items()} == {"acme:settings": "env:MINE"}


def test_a_found_credential_keeps_its_stored_position_and_last_use() -> None:
    row = Credential(id="acme:env", provider="acme", source="env:OLD_NAME", position=3, used_at=USED_AT)
    added = Credential(id="acme:work", provider="acme", source="env:WORK")
    found = collect_by_id(row, added, environment={"ACME_API_KEY": KEY})
    assert (found["acme:env"].source, found["acme:env"].position) == ("env:ACME_API_KEY", 3)
    assert found["acme:env"].used_at == USED_AT
    assert set(collect_by_id(row, added, environment={})) == {"acme:work"}


@pytest.mark.spec("C106")
def test_an_agent_uses_its_own_and_shared_credentials_but_not_those_of_another_agent() -> None:
    server, adas, bos = (
        Credential(id="acme:x", provider="acme", source="env:K", agent=agent) for agent in ("", "ada", "bo")
    )
    assert make_agent_credentials("ada", server, bos, adas, environment={"K": KEY}).list_usable("acme") == (
        adas,
        server,
    )
    assert make_agent_credentials("cy", server, bos, adas, environment={"K": KEY}).list_usable("acme") == (server,)


def test_a_credential_whose_key_cannot_be_read_is_skipped_with_a_reason(tmp_path: Path) -> None:
    exposed = private(tmp_path / "exposed", KEY)
    exposed.chmod(0o644)
    missing = Credential(id="acme:gone", provider="acme", source=f"file:{tmp_path}/gone")
    open_to_all = Credential(id="acme:open", provider="acme", source=f"file:{exposed}")
    good = Credential(id="acme:good", provider="acme", source=f"file:{private(tmp_path / 'good', KEY)}")
    assert make_agent_credentials("ada", missing, open_to_all, good).list_usable("acme") == (good,)
    because = make_agent_credentials("ada", missing, open_to_all).explain_none("acme")
    assert "acme:gone: " in because and "acme:open: " in because and KEY not in because
    assert make_agent_credentials("ada").explain_none("acme") == "no API key: set ACME_API_KEY"
    assert make_agent_credentials("ada").explain_none("unknown") == "no API key"


def test_the_key_of_a_credential_is_read_when_needed_and_never_shown_in_repr(tmp_path: Path) -> None:
    file = private(tmp_path / "key", KEY + "\n")
    credential = Credential(id="acme:work", provider="acme", source=f"file:{file}")
    assert read_key(credential, {}) == KEY
    assert KEY not in repr(credential) and KEY not in repr(
        make_agent_credentials("ada", credential, environment={"K": KEY})
    )
    private(file, "another")
    assert read_key(credential, {}) == "another"
    file.unlink()
    with pytest.raises(ModelFailed) as failed:
        read_key(credential, {})
    assert failed.value.failure is ModelFailureKind.AUTH and failed.value.code == "model.key_unreadable"
    assert failed.value.because and failed.value.try_this


def test_whitespace_around_the_key_of_a_credential_is_removed(tmp_path: Path) -> None:
    """A variable filled from a file often ends with a newline, and a header cannot contain one."""
    credential = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")
    assert read_key(credential, {"ACME_API_KEY": f" {KEY}\r\n"}) == KEY


@pytest.mark.parametrize("kept", [f"{KEY}\nexport OTHER=1", "sk-“smart”", "\n", f"{KEY}\x00"])
def test_a_credential_key_with_characters_invalid_in_a_header_is_treated_as_missing(kept: str) -> None:
    credential = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")
    agent_credentials = make_agent_credentials("ada", credential, environment={"ACME_API_KEY": kept})
    assert agent_credentials.list_usable("acme") == ()
    assert "ASCII letters, digits and punctuation characters, without spaces" in agent_credentials.explain_none("acme")
    with pytest.raises(ModelFailed) as failed:
        read_key(credential, {"ACME_API_KEY": kept})
    assert failed.value.failure is ModelFailureKind.AUTH
    assert KEY not in str(failed.value) + failed.value.because
