"""Test the send policy: whether an agent may send messages from a session."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from policy.test_reset_policy import make_session

from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.send_policy import SendAction, SendRule
from retinue.domain.session import OriginKind, Session, SessionOptions
from retinue.domain.session_keys import ChatType
from retinue.policy.access.send_policy import may_send

GROUP = make_session(kind=OriginKind.CHAT, key="channel:telegram:-100", chat_type=ChatType.GROUP)
ALLOW, DENY = SendAction.ALLOW, SendAction.DENY


def decide(*rules: SendRule, session: Session = GROUP, default: SendAction = ALLOW) -> Decision:
    named = {f"r{number}": rule for number, rule in enumerate(rules)}
    return may_send(session, "telegram", named, default)


@pytest.mark.spec("C15")
@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (SendRule(), True),
        (SendRule(channel="Telegram"), True),
        (SendRule(channel="irc"), False),
        (SendRule(chat_type=ChatType.GROUP), True),
        (SendRule(chat_type=ChatType.DIRECT), False),
        (SendRule(key_prefix="CHANNEL:telegram:-1"), True),
        (SendRule(key_prefix="channel:telegram:7"), False),
        (SendRule(channel="telegram", chat_type=ChatType.GROUP, key_prefix="channel:"), True),
        (SendRule(channel="telegram", chat_type=ChatType.DIRECT), False),
    ],
)
def test_a_send_rule_matches_only_if_all_its_conditions_match(rule: SendRule, *, fits: bool) -> None:
    assert decide(rule).is_denied is fits


@pytest.mark.spec("C15")
def test_a_deny_send_rule_wins_and_an_allow_send_rule_overrides_the_default() -> None:
    deny, allow = SendRule(channel="telegram"), SendRule(action=ALLOW, chat_type=ChatType.GROUP)
    for rules in ((deny, allow), (allow, deny)):
        assert decide(*rules).is_denied
    assert decide(allow, default=DENY).is_allowed
    assert decide().is_allowed
    assert decide(default=DENY) == Decision(
        DecisionKind.DENY, "no rule allows it, and the default is deny", "sessions.send.default"
    )


@pytest.mark.spec("C15")
def test_the_send_option_of_a_session_overrides_all_send_rules() -> None:
    on, off = (replace(GROUP, options=SessionOptions(send=send)) for send in (True, False))
    assert decide(SendRule(), session=on).is_allowed and decide(session=on, default=DENY).is_allowed
    assert decide(SendRule(action=ALLOW), session=off) == Decision(
        DecisionKind.DENY, "/send off was set in this conversation", "/send"
    )


def test_a_denied_send_names_the_matching_rule() -> None:
    because = "the rule r0 matches: deny for channel telegram, chat_type group"
    assert decide(SendRule(channel="telegram", chat_type=ChatType.GROUP)) == Decision(
        DecisionKind.DENY, because, "sessions.send.rules.r0"
    )
