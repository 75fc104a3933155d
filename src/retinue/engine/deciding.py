"""/allow, /approve and /deny: a question answered in the conversation that it was put to."""

from __future__ import annotations

from retinue.domain.command import CommandName
from retinue.domain.envelope import Draft
from retinue.domain.errors import RetinueError
from retinue.domain.grant import GrantScope
from retinue.domain.ids import EnvelopeId, derived, short
from retinue.domain.principal import Principal
from retinue.domain.session import Session
from retinue.engine.approvals import decide_in
from retinue.mailroom.inbox import Wake
from retinue.store import approvals
from retinue.store.house import Page

ID_SHOWN_MAX = 40
DENY = "deny"

_SCOPES = {
    "allow": GrantScope.ONCE,
    **{scope.value: scope for scope in GrantScope},
    **{f"allow-{scope}": scope for scope in GrantScope},
}


def decide(
    page: Page, draft: Draft, name: CommandName, rest: str, session: Session, *, who: Principal
) -> tuple[str, tuple[Wake, ...]]:
    """ID, then for how long, then words: `/allow ID session because she asked`, `/approve ID allow-always`."""
    id_, _, more = rest.strip().partition(" ")
    first, _, words = more.strip().partition(" ")
    allow, scope = name is not CommandName.DENY, GrantScope.ONCE
    if name is CommandName.APPROVE and first.casefold() == DENY:
        allow = False
    elif first.casefold() in _SCOPES:
        scope = _SCOPES[first.casefold()]
    else:
        words = more
    try:
        approval = approvals.resolve(page.conn, id_)
        if approval.session != session.id and not (who.sees_all or who.address in approval.asked_of):
            return f"There is no open question {id_[:ID_SHOWN_MAX]} in this conversation.", ()
        decided, wakes = decide_in(
            page,
            approval,
            allow=allow,
            by=who,
            envelope_id=EnvelopeId(derived(draft.id, "decision")),
            scope=scope,
            words=words.strip(),
        )
    except RetinueError as error:
        because = f" ({error.because})" if error.because else ""
        return f"That could not be done: {error.sentence}.{because}", ()
    return f"{short(decided.id)} is {decided.state}.", wakes
