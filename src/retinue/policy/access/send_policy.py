"""Decides whether an agent's message may be sent to a platform.

The conversation's own setting (`/send`) comes first, then rules by connector, chat type and key.
Facts in, a decision with its reason out.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.domain.decision import Decision, Verdict
from retinue.domain.send_policy import SendAction, SendRule
from retinue.domain.session import Session

KEY = "sessions.send"
_ALLOWED = Decision(Verdict.ALLOW, "nothing says otherwise", KEY)
_ON = Decision(Verdict.ALLOW, "/send on was said in this conversation", "/send")
_OFF = Decision(Verdict.DENY, "/send off was said in this conversation", "/send")


def may_send(session: Session, connector: str, rules: Mapping[str, SendRule], default: SendAction) -> Decision:
    """Decide: the conversation's setting first, then any rule that denies, any that allows, and else the default."""
    if session.mind.send is not None:
        return _ON if session.mind.send else _OFF
    fitting = {name: rule for name, rule in rules.items() if _fits(rule, session, connector)}
    for action, verdict in ((SendAction.DENY, Verdict.DENY), (SendAction.ALLOW, Verdict.ALLOW)):
        for name, rule in fitting.items():
            if rule.action is action:
                return Decision(verdict, f"the rule {name} says so: {_words(rule)}", f"{KEY}.rules.{name}")
    if default is SendAction.DENY:
        return Decision(Verdict.DENY, "no rule allows it, and the default is deny", f"{KEY}.default")
    return _ALLOWED


def _fits(rule: SendRule, session: Session, connector: str) -> bool:
    return (
        (rule.channel is None or rule.channel.casefold() == connector.casefold())
        and (rule.chat_type is None or rule.chat_type is session.chat_type)
        and (rule.key_prefix is None or session.origin.key.casefold().startswith(rule.key_prefix.casefold()))
    )


def _words(rule: SendRule) -> str:
    named = {"channel": rule.channel, "chat_type": rule.chat_type, "key_prefix": rule.key_prefix}
    where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return f"{rule.action} for {where or 'everything'}"
