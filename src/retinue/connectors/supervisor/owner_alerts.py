"""Notifies the owner that a connector needs them: one envelope per problem, however long it lasts."""

from __future__ import annotations

from retinue.connectors.base import LineLost
from retinue.domain import address
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import Conflict
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Ids, Post
from retinue.domain.trust import Trust


class Owner:
    """Sends alerts about connectors to the owner of the server."""

    def __init__(self, post: Post, ids: Ids, *, name: str = "owner") -> None:
        self._post = post
        self._ids = ids
        self._name = name

    async def tell(self, instance: str, lost: LineLost, began_ms: int) -> None:
        """Send an alert. Its idempotency key contains the start of the problem, so a repeat is the
        same envelope."""
        lines = [f"The connector '{instance}' needs you: {lost.sentence}."]
        lines += [f"because: {lost.because}"] if lost.because else []
        lines += [f"try: {lost.try_this}"] if lost.try_this else []
        draft = Draft(
            id=EnvelopeId(self._ids.new()),
            sender=address.HOUSE,
            recipient=address.person(self._name),
            text="\n".join(lines),
            source="house",
            key=f"connector/{instance}/{began_ms}",
            kind=Kind.NOTICE,
            trust=Trust.PRIVATE,
        )
        try:
            await self._post.post(draft)
        except Conflict as conflict:
            if conflict.code != "key.reused":
                raise  # a reused key means that the alert was sent already, with a different text
