"""Test that session keys have the documented form and can be parsed back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain import session_keys
from retinue.domain.errors import Invalid
from retinue.domain.session_keys import DmScope, KeyKind, SessionKey

LINKS = {"Maria": ("Telegram:42", "signal:7")}


@pytest.mark.spec("C8.main", "C8.per_peer", "C8.per_channel_peer", "C8.per_account_channel_peer")
@pytest.mark.parametrize(
    ("scope", "peer", "key"),
    [
        (DmScope.MAIN, "42", "agent:ada:main"),
        (DmScope.PER_PEER, "99", "agent:ada:direct:99"),
        (DmScope.PER_CHANNEL_PEER, "99", "agent:ada:telegram:direct:99"),
        (DmScope.PER_ACCOUNT_CHANNEL_PEER, "99", "agent:ada:telegram:work:direct:99"),
        (DmScope.PER_PEER, "42", "agent:ada:direct:maria"),
        (DmScope.PER_CHANNEL_PEER, "42", "agent:ada:telegram:direct:maria"),
        (DmScope.PER_ACCOUNT_CHANNEL_PEER, "42", "agent:ada:telegram:work:direct:maria"),
    ],
)
def test_each_dm_scope_has_its_documented_session_key(scope: DmScope, peer: str, key: str) -> None:
    made = session_keys.direct_key("Ada", scope=scope, platform="Telegram", account="Work", peer=peer, links=LINKS)
    assert str(made) == key
    assert session_keys.parse_session_key(key) == made


def test_a_linked_person_shares_a_session_key_across_platforms_only_in_per_peer_scope() -> None:
    def key(scope: DmScope, channel: str, peer: str) -> str:
        return str(session_keys.direct_key("ada", scope=scope, platform=channel, account="a", peer=peer, links=LINKS))

    assert key(DmScope.PER_PEER, "telegram", "42") == key(DmScope.PER_PEER, "signal", "7")
    assert key(DmScope.PER_PEER, "telegram", "7") != key(DmScope.PER_PEER, "signal", "7")
    assert key(DmScope.PER_CHANNEL_PEER, "telegram", "42") != key(DmScope.PER_CHANNEL_PEER, "signal", "7")


@pytest.mark.spec("C10.group", "C10.topic", "C10.thread", "C10.cron", "C10.hook", "C10.subagent")
@pytest.mark.parametrize(
    ("made", "key"),
    [
        (session_keys.group_key("Ada", platform="telegram", id="-100"), "agent:ada:telegram:group:-100"),
        (
            session_keys.group_key("ada", platform="telegram", id="-100", topic="7"),
            "agent:ada:telegram:group:-100:topic:7",
        ),
        (
            session_keys.group_key("ada", platform="discord", id="C1", kind=KeyKind.CHANNEL, thread="T9"),
            "agent:ada:discord:channel:c1:thread:t9",
        ),
        (session_keys.cron_key("ada", "Nightly"), "agent:ada:cron:nightly"),
        (session_keys.cron_key("ada", "nightly", run="U-1"), "agent:ada:cron:nightly:run:u-1"),
        (session_keys.subagent_key("ada", "0F9A"), "agent:ada:subagent:0f9a"),
        (session_keys.hook_key("0F9A"), "hook:0f9a"),
        (session_keys.hook_key("msg-1", name="Gmail"), "hook:gmail:msg-1"),
        (session_keys.group_key("ada", platform="matrix", id="!r:host"), "agent:ada:matrix:group:!r%3ahost"),
    ],
)
def test_session_keys_of_groups_topics_threads_cron_hooks_and_subagents_have_the_documented_form(
    made: SessionKey, key: str
) -> None:
    assert str(made) == key
    assert session_keys.parse_session_key(key) == made
    assert session_keys.parse_session_key(key.upper()) == made, "mixed case created duplicate sessions"


def test_session_keys_in_an_older_form_are_parsed() -> None:
    assert str(session_keys.parse_session_key("agent:Ada:telegram:dm:42")) == "agent:ada:telegram:direct:42"
    assert session_keys.parse_session_key("hook:gmail:a:b") == session_keys.hook_key("a:b", name="gmail")


@pytest.mark.parametrize(
    "text",
    [
        *("", "main", "agent:", "agent:ada", "agent:ada:", "agent:ada:telegram", "agent:ada:telegram:group"),
        *("agent:ada:group:1", "agent:ada:a:b:group:1", "agent:ada:a:b:c:direct:1", "agent:ada:cron:j:run"),
        *("agent:ada:telegram:group:1:topic", "agent:ada:telegram:group:1:topic:2:thread:3", "hook", "hook:"),
    ],
)
def test_an_invalid_session_key_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        session_keys.parse_session_key(text)
    assert refused.value.code == "session_key.invalid"


def test_a_session_key_without_an_id_or_with_a_reserved_platform_name_is_refused() -> None:
    with pytest.raises(Invalid) as nobody:
        session_keys.direct_key("ada", scope=DmScope.PER_PEER, platform="telegram", account="a", peer=" ")
    assert nobody.value.code == "session_key.no_id"
    with pytest.raises(Invalid) as reserved:
        session_keys.group_key("ada", platform="Cron", id="1")
    assert reserved.value.code == "session_key.reserved"


_PART = st.text(min_size=1, max_size=20).filter(
    lambda text: text.strip() != "" and text.casefold().casefold() == text.casefold()
)


@settings(deadline=None)
@given(peer=_PART, account=_PART, scope=st.sampled_from(DmScope))
def test_a_direct_session_key_with_any_ids_round_trips(peer: str, account: str, scope: DmScope) -> None:
    made = session_keys.direct_key("ada", scope=scope, platform="telegram", account=account, peer=peer)
    assert session_keys.parse_session_key(str(made)) == made


@pytest.mark.parametrize("account", ["direct", "dm", "group", "channel", "topic", "main", "cron"])
def test_an_account_in_a_session_key_may_have_the_name_of_a_key_kind(account: str) -> None:
    scope = DmScope.PER_ACCOUNT_CHANNEL_PEER
    for peer in ("7", "topic", "direct", "thread"):
        made = session_keys.direct_key("ada", scope=scope, platform="telegram", account=account, peer=peer)
        assert session_keys.parse_session_key(str(made)) == made
