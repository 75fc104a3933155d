"""The audit: every decision and effect as one line of a chain, in which each line's hash covers the line before it.

One chain for each session and one for the house. A line holds the hash of what it is about, never the thing itself, so
that a text can be forgotten and its chain stays whole. Whoever changes, drops or moves a line has to change every line
after it, and the anchors that were taken since; `check` sees whatever they did not change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

HOUSE_CHAIN = ""
BEGINNING = ""  # what stands before the first line of a chain
BECAUSE_CHARS_MAX = 1_000
NAME_CHARS_MAX = 200


class AuditKind(StrEnum):
    """What a line tells of."""

    CALL_ALLOWED = "call-allowed"
    CALL_ENDED = "call-ended"
    CALL_REFUSED = "call-refused"
    APPROVAL_ASKED = "approval-asked"
    APPROVAL_DECIDED = "approval-decided"
    APPROVAL_EXPIRED = "approval-expired"
    APPROVAL_REFUSED = "approval-refused"  # somebody answered it who may not
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


class Entry(Struct, frozen=True, kw_only=True):
    """What is to be written down. `subject` is a tool, an approval, a setting; `content` the hash of what is meant."""

    kind: AuditKind
    who: str
    agent: str = ""
    run: str | None = None
    subject: str = ""
    verdict: str = ""
    because: str = ""
    content: str = ""


class Link(Struct, frozen=True):
    """One line, as it stands in its chain. All of it is text and numbers, as they came from a store or a file."""

    chain: str
    position: int  # from 1 on, without a gap
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


class Anchor(Struct, frozen=True):
    """Where a chain stood once. Kept elsewhere, it shows that a chain was cut short or written anew since."""

    at_ms: int
    chain: str
    position: int
    hash: str

    def __str__(self) -> str:
        return f"{self.chain or 'house'}:{self.position}:{self.hash}"


class Flaw(Struct, frozen=True):
    """Something that is not as it was written."""

    chain: str
    position: int
    sentence: str


_HASHED = tuple(field.name for field in structs.fields(Link) if field.name != "hash")
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: Any) -> str:
    """The one way to write a value: ASCII JSON with its keys in order and no blanks, the same wherever it is made."""
    return _encode(value)


def hash_of(value: Any) -> str:
    """The hash of a content. A text is hashed as it is, all else as `canonical` writes it."""
    text = value if isinstance(value, str) else _encode(value)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def link_hash(before: str, line: Mapping[str, Any]) -> str:
    """Of a line, which has every field of a link but `hash`, and of the hash before it."""
    return hashlib.sha256(_encode({**line, "before": before}).encode()).hexdigest()


def as_line(link: Link) -> dict[str, Any]:
    """A link as it is hashed and given out: all of it but its hash."""
    return {name: getattr(link, name) for name in _HASHED}


class Checker:
    """Goes along chains, line by line, each chain in its order. What was found wrong is told once, and not of every
    line after it."""

    def __init__(self) -> None:
        self.lines = 0
        self.chains = 0
        self.begun: set[str] = set()  # chains that the house's own tells of
        self.seen: set[str] = set()
        self._chain: str | None = None
        self._position = 0
        self._before = BEGINNING
        self._at_ms = 0

    def follow(self, link: Link) -> Iterator[Flaw]:
        self.lines += 1
        if link.chain != self._chain:
            self.chains += 1
            self.seen.add(link.chain)
            self._chain, self._position, self._before, self._at_ms = link.chain, 0, BEGINNING, 0
        missing = link.position - self._position - 1
        if missing:
            what = f"{missing} lines before it are missing" if missing > 0 else "it stands out of its order"
            yield Flaw(link.chain, link.position, what)
        elif link.at_ms < self._at_ms:
            yield Flaw(link.chain, link.position, "it is older than the line before it")
        if not missing and link_hash(self._before, as_line(link)) != link.hash:
            yield Flaw(link.chain, link.position, "it is not as it was written, or the line before it is not")
        if link.chain == HOUSE_CHAIN and link.kind == AuditKind.CHAIN_BEGUN:
            self.begun.add(link.subject)
        self._position, self._before, self._at_ms = link.position, link.hash, max(link.at_ms, self._at_ms)

    def end(self) -> Iterator[Flaw]:
        """What only the whole of it shows: chains that are gone, and such as the house knows nothing of."""
        for chain in sorted(self.begun - self.seen):
            yield Flaw(chain, 1, "the whole chain is missing")
        for chain in sorted(self.seen - self.begun - {HOUSE_CHAIN}):
            yield Flaw(chain, 1, "the house's own chain does not know of it")


def check(links: Iterable[Link], anchors: Iterable[Anchor] = ()) -> list[Flaw]:
    """Everything wrong with whole chains, each in its order, and with where they once stood."""
    checker = Checker()
    wanted: dict[tuple[str, int], set[str]] = {}
    for anchor in anchors:
        wanted.setdefault((anchor.chain, anchor.position), set()).add(anchor.hash)
    flaws: list[Flaw] = []
    for link in links:
        flaws += checker.follow(link)
        hashes = wanted.pop((link.chain, link.position), None)
        if hashes is not None and hashes != {link.hash}:
            flaws.append(Flaw(link.chain, link.position, NOT_ANCHORED))
    flaws += [Flaw(chain, position, CUT_SHORT) for chain, position in sorted(wanted)]
    return [*flaws, *checker.end()]


NOT_ANCHORED = "an anchor says that another line stood here"
CUT_SHORT = "an anchor says that there was a line here"


def anchors_hash(anchors: Iterable[Anchor]) -> str:
    """What the house's chain keeps of the anchors of one hour."""
    return hash_of(sorted([each.chain, each.position, each.hash] for each in anchors))


# --- what is written down, and where ---


def call_allowed(tool: str, call_hash: str, *, agent: str, run: str, because: str = "") -> Entry:
    """With the commit of the call's intent: before it is performed."""
    return Entry(
        kind=AuditKind.CALL_ALLOWED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict="allow",
        because=because,
        content=call_hash,
    )


def call_ended(tool: str, output: str, *, agent: str, run: str, verdict: str) -> Entry:
    """With the commit of its result. `verdict`: done, failed or interrupted."""
    return Entry(
        kind=AuditKind.CALL_ENDED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict=verdict,
        content=hash_of(output),
    )


def call_refused(tool: str, output: str, *, agent: str, run: str, because: str = "") -> Entry:
    """A call that was not performed, with the commit of what the model reads instead: `output`. `because` is a rule's
    words, never a person's or a page's: it stays for good."""
    return Entry(
        kind=AuditKind.CALL_REFUSED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=tool,
        verdict="deny",
        because=because,
        content=hash_of(output),
    )


def approval_asked(approval: str, question: Any, *, agent: str, run: str) -> Entry:
    """`question` is whatever says what exactly is asked about, and why: calls, permissions, reasons."""
    return Entry(
        kind=AuditKind.APPROVAL_ASKED,
        who=f"agent:{agent}",
        agent=agent,
        run=run,
        subject=approval,
        verdict="ask",
        content=hash_of(question),
    )


def approval_decided(
    approval: str, *, by: str, agent: str, run: str, state: str, scope: str = "", words: str = ""
) -> Entry:
    """`state` as the approval has it: allowed, denied, closed; `scope` of a yes."""
    return Entry(
        kind=AuditKind.APPROVAL_DECIDED,
        who=by,
        agent=agent,
        run=run,
        subject=approval,
        verdict=state,
        because=scope,
        content=hash_of(words) if words else "",
    )


def approval_expired(approval: str, *, agent: str, run: str) -> Entry:
    return Entry(
        kind=AuditKind.APPROVAL_EXPIRED, who="house", agent=agent, run=run, subject=approval, verdict="expired"
    )


def approval_refused(approval: str, *, by: str, agent: str, run: str, because: str) -> Entry:
    return Entry(
        kind=AuditKind.APPROVAL_REFUSED,
        who=by,
        agent=agent,
        run=run,
        subject=approval,
        verdict="refused",
        because=because,
    )


def grant_given(permission: str, *, by: str, agent: str, grant: str, run: str | None = None) -> Entry:
    """`grant` is its id."""
    return Entry(
        kind=AuditKind.GRANT_GIVEN,
        who=by,
        agent=agent,
        run=run,
        subject=permission,
        verdict="given",
        content=hash_of(grant),
    )


def grant_revoked(permission: str, *, by: str, agent: str, grant: str) -> Entry:
    return Entry(
        kind=AuditKind.GRANT_REVOKED,
        who=by,
        agent=agent,
        subject=permission,
        verdict="revoked",
        content=hash_of(grant),
    )


def changed(kind: AuditKind, operation: str, *, by: str, agent: str = "") -> Entry:
    """Anything of the house's own: a setting, an agent, a person, a token, a credential, a skill, an MCP server.

    That it was done, and by whom. What was said is not kept, nor its hash: there may be secrets in it. `agent` is whom
    it concerns, if any.
    """
    return Entry(kind=kind, who=by, agent=agent, subject=operation, verdict="done")
