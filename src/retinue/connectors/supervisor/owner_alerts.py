"""Notifies the owner about connectors that need attention: one envelope per problem, however long the problem lasts."""

from __future__ import annotations

from retinue.connectors.base import ConnectionLost
from retinue.domain import address
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.errors import Conflict
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import EnvelopeAcceptor, IdSource
from retinue.domain.trust import Trust


class OwnerAlerts:
    """Sends alerts about connectors to the owner of the server."""

    def __init__(self, post: EnvelopeAcceptor, ids: IdSource, *, name: str = "owner") -> None:
        self._post = post
        self._ids = ids
        self._name = name

    async def send(self, connector_name: str, lost: ConnectionLost, began_ms: int) -> None:
        """Send an alert.

        The idempotency key contains the time when the problem began, so an alert is sent only once.
        """
        lines = [f"The connector '{connector_name}' needs your help: {lost.sentence}."]
        lines += [f"because: {lost.because}"] if lost.because else []
        lines += [f"try: {lost.try_this}"] if lost.try_this else []
        draft = EnvelopeDraft(
            id=EnvelopeId(self._ids.new()),
            sender=address.SERVER_ADDRESS,
            recipient=address.person_address(self._name),
            text="\n".join(lines),
            source="server",
            idempotency_key=f"connector/{connector_name}/{began_ms}",
            kind=EnvelopeKind.NOTICE,
            trust=Trust.PRIVATE,
        )
        try:
            await self._post.accept(draft)
        except Conflict as conflict:
            if conflict.code != "key.reused":
                raise  # a reused key means that the alert was sent already, with a different text
