"""The audit log: entries in hash chains, for tool calls, approvals and administrative changes.

There is one chain per session and one for the server. An entry has the hash of its content, never the content, so
content can be erased without breaking the chain. To change, drop or move an entry unnoticed, an attacker must also
change every later entry and anchor. Otherwise `check_chains` finds the first entry that does not match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

SERVER_CHAIN = ""
SERVER_CHAIN_NAME = "server"  # the displayed name of the server's chain
GENESIS_HASH = ""  # the hash before the first entry of a chain
BECAUSE_CHARS_MAX = 1_000
NAME_CHARS_MAX = 200


class AuditKind(StrEnum):
    """What an audit entry records."""

    CALL_ALLOWED = "call-allowed"
    CALL_ENDED = "call-ended"
    CALL_REFUSED = "call-refused"
    APPROVAL_ASKED = "approval-asked"
    APPROVAL_DECIDED = "approval-decided"
    APPROVAL_EXPIRED = "approval-expired"
    APPROVAL_REFUSED = "approval-refused"  # the answer came from someone without the right to decide
    GRANT_GIVEN = "grant-given"
    GRANT_REVOKED = "grant-revoked"
    SETTINGS_CHANGED = "settings-changed"
    AGENT_CHANGED = "agent-changed"
    PERSON_CHANGED = "person-changed"
    TOKEN_MADE = "token-made"
    TOKEN_REVOKED = "token-revoked"
    CREDENTIAL_CHANGED = "credential-changed"
    PURGED = "purged"
    FORGOTTEN = "forgotten"
    SKILL_APPROVED = "skill-approved"
    MCP_APPROVED = "mcp-approved"
    SANDBOX_OFF = "sandbox-off"
    CHAIN_BEGUN = "chain-begun"
    ANCHORED = "anchored"


class AuditEntry(Struct, frozen=True, kw_only=True):
    """A new audit entry that is not yet part of a chain.

    `subject` names a tool, an approval or a setting. `content` is the hash of the content.
    """

    kind: AuditKind
    who: str
    agent: str = ""
    run: str | None = None
    subject: str = ""
    verdict: str = ""
    because: str = ""
    content: str = ""


class AuditLink(Struct, frozen=True):
    """One entry of an audit chain. All fields are strings and numbers, as read from a database or an export file."""

    chain: str
    position: int  # 1-based, without gaps
    at_ms: int
    kind: str
    who: str
    agent: str
    run: str | None
    subject: str
    verdict: str
    because: str
    content: str
    hash: str


class AuditAnchor(Struct, frozen=True):
    """The position and hash of the last entry of an audit chain at a point in time.

    A copy of the anchor outside the database reveals if the chain is truncated or rewritten later.
    """

    at_ms: int
    chain: str
    position: int
    hash: str

    def __str__(self) -> str:
        return f"{self.chain or SERVER_CHAIN_NAME}:{self.position}:{self.hash}"


class AuditChainFlaw(Struct, frozen=True):
    """An inconsistency found in an audit chain."""

    chain: str
    position: int
    sentence: str


_HASHED_FIELDS = tuple(field.name for field in structs.fields(AuditLink) if field.name != "hash")
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical_json(value: Any) -> str:
    """Encode a value as canonical JSON: ASCII, sorted keys, no spaces."""
    return _encode(value)


def hash_content(value: Any) -> str:
    """Return the SHA-256 hash of a value. A string is hashed directly, any other value as canonical JSON."""
    text = value if isinstance(value, str) else _encode(value)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def hash_link(previous_hash: str, link_fields: Mapping[str, Any]) -> str:
    """Return the hash of an entry. It covers the fields of the entry, except `hash`, and the previous entry's hash."""
    return hashlib.sha256(_encode({**link_fields, "before": previous_hash}).encode()).hexdigest()


def hashed_fields(link: AuditLink) -> dict[str, Any]:
    """Return the fields of an audit entry that are hashed and exported: all fields except `hash`."""
    return {name: getattr(link, name) for name in _HASHED_FIELDS}


class AuditChainChecker:
    """Checks audit chains entry by entry, in order, one chain after another.

    An inconsistency is reported once, not again for every later entry.
    """

    def __init__(self) -> None:
        self.link_count = 0
        self.chain_count = 0
        self.announced_chains: set[str] = set()  # chains whose start the server's chain records
        self.seen_chains: set[str] = set()
        self._chain: str | None = None
        self._position = 0
        self._previous_hash = GENESIS_HASH
        self._at_ms = 0

    def check_link(self, link: AuditLink) -> Iterator[AuditChainFlaw]:
        """Check the next entry of a chain, and yield each inconsistency that it reveals."""
        self.link_count += 1
        if link.chain != self._chain:
            self.chain_count += 1
            self.seen_chains.add(link.chain)
            self._chain, self._position, self._previous_hash, self._at_ms = link.chain, 0, GENESIS_HASH, 0
        missing = link.position - self._position - 1
        if missing:
            what = f"entries before it are missing: {missing:,}" if missing > 0 else "it is out of order"
            yield AuditChainFlaw(link.chain, link.position, what)
        elif link.at_ms < self._at_ms:
            yield AuditChainFlaw(link.chain, link.position, "it is older than the entry before it")
        if not missing and hash_link(self._previous_hash, hashed_fields(link)) != link.hash:
            yield AuditChainFlaw(
                link.chain, link.position, "it was changed after it was written, or the entry before it was"
            )
        if link.chain == SERVER_CHAIN and link.kind == AuditKind.CHAIN_BEGUN:
            self.announced_chains.add(link.subject)
        self._position, self._previous_hash, self._at_ms = link.position, link.hash, max(link.at_ms, self._at_ms)

    def finish(self) -> Iterator[AuditChainFlaw]:
        """Yield the inconsistencies that can be found only after the last entry.

        The server's chain records the start of every other chain. A chain is therefore missing if its
        start is recorded but it has no entries, and unexpected if it has entries but no recorded start.
        """
        for chain in sorted(self.announced_chains - self.seen_chains):
            yield AuditChainFlaw(chain, 1, "the whole chain is missing")
        for chain in sorted(self.seen_chains - self.announced_chains - {SERVER_CHAIN}):
            yield AuditChainFlaw(chain, 1, "the server's chain does not record its start")


def check_chains(links: Iterable[AuditLink], anchors: Iterable[AuditAnchor] = ()) -> list[AuditChainFlaw]:
    """Return all inconsistencies in complete audit chains, and between the chains and their anchors.

    `links` must contain the entries of each chain in order.
    """
    checker = AuditChainChecker()
    wanted: dict[tuple[str, int], set[str]] = {}
    for anchor in anchors:
        wanted.setdefault((anchor.chain, anchor.position), set()).add(anchor.hash)
    flaws: list[AuditChainFlaw] = []
    for link in links:
        flaws += checker.check_link(link)
        hashes = wanted.pop((link.chain, link.position), None)
        if hashes is not None and hashes != {link.hash}:
            flaws.append(AuditChainFlaw(link.chain, link.position, ANCHOR_MISMATCH))
    flaws += [AuditChainFlaw(chain, position, CHAIN_TRUNCATED) for chain, position in sorted(wanted)]
    return [*flaws, *checker.finish()]


ANCHOR_MISMATCH = "an anchor has a different hash for this position"
CHAIN_TRUNCATED = "an anchor has a hash for this position, but the entry is missing"


def hash_anchors(anchors: Iterable[AuditAnchor]) -> str:
    """Return one hash for all anchors of one hour. This hash is stored in an entry of the server's chain."""
    return hash_content(sorted([each.chain, each.position, each.hash] for each in anchors))


# --- one function for each kind of entry ---


def call_allowed(tool: str, call_hash: str, *, agent: str, run: str, because: str = "") -> AuditEntry:
    """Build the audit entry for an allowed tool call.

    The entry is written in the same commit as the call's intent, before the call is performed.
    """
    return AuditEntry(
        kind=AuditKind.CALL_ALLOWED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict="allow",
        because=because,
        content=call_hash,
    )


def call_ended(tool: str, output: str, *, agent: str, run: str, verdict: str) -> AuditEntry:
    """Build the audit entry for a finished tool call.

    The entry is written in the same commit as the call's result. `verdict` is done, failed or
    interrupted.
    """
    return AuditEntry(
        kind=AuditKind.CALL_ENDED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict=verdict,
        content=hash_content(output),
    )


def call_refused(tool: str, output: str, *, agent: str, run: str, because: str = "") -> AuditEntry:
    """Build the audit entry for a refused tool call.

    The entry is written in the same commit as `output`, which the model reads in place of a result.
    Entries are kept forever, so `because` must be the text of a rule, never text from a person or
    a web page.
    """
    return AuditEntry(
        kind=AuditKind.CALL_REFUSED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict="deny",
        because=because,
        content=hash_content(output),
    )


def approval_asked(approval: str, question: Any, *, agent: str, run: str) -> AuditEntry:
    """Build the audit entry for an approval that was requested from a person.

    `question` contains the calls, the permissions and the reasons. Only its hash is kept.
    """
    return AuditEntry(
        kind=AuditKind.APPROVAL_ASKED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=approval,
        verdict="ask",
        content=hash_content(question),
    )


def approval_decided(
    approval: str, *, by: str, agent: str, run: str, state: str, scope: str = "", comment: str = ""
) -> AuditEntry:
    """Build the audit entry for an approval that was decided or closed.

    `state` is allowed, denied or closed; `scope` is how long the decision applies.
    """
    return AuditEntry(
        kind=AuditKind.APPROVAL_DECIDED,
        who=by,
        agent=agent,
        run=run,
        subject=approval,
        verdict=state,
        because=scope,
        content=hash_content(comment) if comment else "",
    )


def approval_expired(approval: str, *, agent: str, run: str) -> AuditEntry:
    return AuditEntry(
        kind=AuditKind.APPROVAL_EXPIRED, who="server", agent=agent, run=run, subject=approval, verdict="expired"
    )


def approval_refused(approval: str, *, by: str, agent: str, run: str, because: str) -> AuditEntry:
    return AuditEntry(
        kind=AuditKind.APPROVAL_REFUSED,
        who=by,
        agent=agent,
        run=run,
        subject=approval,
        verdict="refused",
        because=because,
    )


def grant_given(permission: str, *, by: str, agent: str, grant: str, run: str | None = None) -> AuditEntry:
    """Build the audit entry for a granted permission. `grant` is the id of the grant."""
    return AuditEntry(
        kind=AuditKind.GRANT_GIVEN,
        who=by,
        agent=agent,
        run=run,
        subject=permission,
        verdict="given",
        content=hash_content(grant),
    )


def grant_revoked(permission: str, *, by: str, agent: str, grant: str) -> AuditEntry:
    return AuditEntry(
        kind=AuditKind.GRANT_REVOKED,
        who=by,
        agent=agent,
        subject=permission,
        verdict="revoked",
        content=hash_content(grant),
    )


def operation_performed(kind: AuditKind, operation: str, *, by: str, agent: str = "") -> AuditEntry:
    """Build the audit entry for an administrative operation, such as a change of a setting or an agent.

    The entry contains the name of the operation and its caller. The parameters may contain secrets,
    so neither they nor their hash are kept. `agent` is the agent that was changed, if any.
    """
    return AuditEntry(kind=kind, who=by, agent=agent, subject=operation, verdict="done")
