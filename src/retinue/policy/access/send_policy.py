"""Decides whether an agent's message may be sent to a platform.

The setting of the conversation (`/send`) comes first, then the rules for connectors, chat types and
session keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.send_policy import SendAction, SendRule
from retinue.domain.session import Session

SEND_KEY = "sessions.send"
_ALLOWED_BY_DEFAULT = Decision(DecisionKind.ALLOW, "sending is allowed by default", SEND_KEY)
_ALLOWED_BY_COMMAND = Decision(DecisionKind.ALLOW, "/send on was set in this conversation", "/send")
_DENIED_BY_COMMAND = Decision(DecisionKind.DENY, "/send off was set in this conversation", "/send")


def may_send(session: Session, connector: str, rules: Mapping[str, SendRule], default: SendAction) -> Decision:
    """Decide whether an agent's message is sent.

    If `/send` was set in the conversation, this setting decides. Otherwise the first matching rule
    that denies decides, then the first matching rule that allows, then the default.
    """
    if session.options.send is not None:
        return _ALLOWED_BY_COMMAND if session.options.send else _DENIED_BY_COMMAND
    fitting = {name: rule for name, rule in rules.items() if _matches_rule(rule, session, connector)}
    for action, verdict in ((SendAction.DENY, DecisionKind.DENY), (SendAction.ALLOW, DecisionKind.ALLOW)):
        for name, rule in fitting.items():
            if rule.action is action:
                return Decision(verdict, f"the rule {name} matches: {_describe_rule(rule)}", f"{SEND_KEY}.rules.{name}")
    if default is SendAction.DENY:
        return Decision(DecisionKind.DENY, "no rule allows it, and the default is deny", f"{SEND_KEY}.default")
    return _ALLOWED_BY_DEFAULT


def _matches_rule(rule: SendRule, session: Session, connector: str) -> bool:
    return (
        (rule.channel is None or rule.channel.casefold() == connector.casefold())
        and (rule.chat_type is None or rule.chat_type is session.chat_type)
        and (rule.key_prefix is None or session.origin.key.casefold().startswith(rule.key_prefix.casefold()))
    )


def _describe_rule(rule: SendRule) -> str:
    named = {"channel": rule.channel, "chat_type": rule.chat_type, "key_prefix": rule.key_prefix}
    where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return f"{rule.action} for {where or 'everything'}"
