"""Errors of the HTTP API: one class for each code."""

from __future__ import annotations

from retinue.domain.errors import Invalid, NotAllowed, NotFound, RetinueError, TooLarge
from retinue.text.quantity import format_quantity

PATH_SHOWN_CHARS = 200

# --- routes ---


class RouteNotFound(NotFound):
    """No route has this path. `form` shows the form of similar paths, and `use` is an existing path."""

    code = "route.not_found"

    def __init__(
        self,
        path: str,
        *,
        method: str = "POST",
        form: str = "/api/NOUN/VERB",
        use: str = "a path such as /api/server/status",
    ) -> None:
        super().__init__(
            f"no route for {method[:20]} {path[:PATH_SHOWN_CHARS]}",
            because=f"the path of a request must have the form {form}",
            try_this=f"use {use}",
        )


class RouteRenamed(NotFound):
    """The path of the request was renamed."""

    code = "route.renamed"

    def __init__(self, old: str, new: str) -> None:
        super().__init__(
            f"`{old}` is now `{new}`",
            because="names of the HTTP API changed once, before version 1.0",
            try_this=f"use {new}; docs/reference/renamed.md lists all changes",
        )


class OperationRenamed(NotFound):
    """The path names an operation that was renamed."""

    code = "operation.renamed"

    def __init__(self, old: str, *, new: str) -> None:
        super().__init__(
            f"`{old}` is now `{new}`",
            because="the operation was renamed, and its old name is not accepted",
            try_this=f"send POST to /api/{new.replace('.', '/')}",
        )


class WrongMethod(RetinueError):
    """The path of the request exists, but does not support the HTTP method of the request."""

    code = "route.method_not_allowed"

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(
            f"no route for {method[:20]} {path[:PATH_SHOWN_CHARS]}",
            because=f"this path supports only {allowed}",
            try_this=f"use {allowed}",
        )
        self.allowed = allowed


class InternalError(RetinueError):
    """An unexpected exception ended a request. The log has the details."""

    code = "server.internal_error"

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"internal error in `{operation}`",
            because="an unexpected exception ended the request; the log of the server has the details",
            try_this="try again, and report it if it happens again",
        )


# --- where a request comes from ---


class ListenAddressExposed(Invalid):
    """Other machines can reach the listen address, and no proxy with TLS is in front of it."""

    code = "listen.exposed"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the server does not listen on {host} without TLS",
            because="other machines can reach this address, and the traffic could be read on the network",
            try_this="put a TLS proxy in front, set public_url (https) and trusted_proxies; or listen on 127.0.0.1",
        )


class MisdirectedRequest(RetinueError):
    """The Host header of the request does not name this server."""

    code = "request.host_unknown"

    def __init__(self) -> None:
        super().__init__(
            "this server does not serve the requested host",
            because="the Host header does not name this machine, and is not in public_url or allowed_hosts",
            try_this="add the name to allowed_hosts if it is yours",
        )


class HostHeaderInvalid(Invalid):
    """The request has no Host header, or several."""

    code = "request.host_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid Host header",
            because="the request has no Host header, or several",
            try_this="send exactly one Host header",
        )


class PeerAddressMissing(Invalid):
    """The server cannot tell from which address a request came."""

    code = "request.peer_missing"

    def __init__(self) -> None:
        super().__init__(
            "the address of the client is unknown",
            because="the connection is neither TCP nor the server's Unix socket",
            try_this="connect over TCP or to the Unix socket",
        )


class ProxyBypassed(NotAllowed):
    """Another machine connected directly to a server that is behind a proxy."""

    code = "request.proxy_bypassed"

    def __init__(self, public_url: str | None) -> None:
        super().__init__(
            "direct connections from other machines are not allowed",
            because="other machines must connect through the proxy",
            try_this=f"use {public_url}",
        )


class ForeignOrigin(NotAllowed):
    """A page of another site sent the request."""

    code = "request.foreign_origin"

    def __init__(self, *, is_mcp: bool = False) -> None:
        super().__init__(
            "requests from pages of other sites are not allowed",
            because="the Origin or Sec-Fetch-Site header names another site",
            try_this="use an MCP client outside of a browser"
            if is_mcp
            else "open the web app at its own address; behind a proxy, set public_url to the address that people use",
        )


# --- signing in ---


class SignInCodeInvalid(RetinueError):
    """The single-use code is unknown or has expired, or was already used."""

    code = "auth.code_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid sign-in code",
            because="it is unknown, has expired, or was used before: a code works once, for a few minutes",
            try_this="create a new one: retinue token code",
        )


class CookieHeaderMissing(NotAllowed):
    """A request that is authenticated by a cookie lacks the header `x-retinue`, which pages of other sites cannot send.

    GET requests do not need the header.
    """

    code = "auth.header_missing"

    def __init__(self) -> None:
        super().__init__(
            "the header `x-retinue: 1` is missing",
            because="a page of any site can send a request with a cookie, but not with this header",
            try_this="send `x-retinue: 1` with every request other than GET",
        )


class CookieOriginMissing(NotAllowed):
    """A WebSocket request that is authenticated by a cookie has no Origin header."""

    code = "auth.origin_missing"

    def __init__(self) -> None:
        super().__init__(
            "the Origin header is missing",
            because="a page of any site can send a request with a cookie; its Origin shows which site sent it",
            try_this="connect from a browser, or use a token instead of the cookie",
        )


# --- limits ---


class RetryLater(RetinueError):
    """Base class of errors about a limit. The request can be repeated after `retry_after_s` seconds."""

    def __init__(self, sentence: str, *, because: str, try_this: str, retry_after_s: float) -> None:
        super().__init__(sentence, because=because, try_this=try_this)
        self.retry_after_s = retry_after_s


class TooManyRequests(RetryLater):
    """A rate limit was reached. `noun` names the things that are counted, and `sender` is the caller."""

    code = "rate.too_many"

    def __init__(self, noun: str, *, sender: str, per_minute: int, retry_after_s: float) -> None:
        wait_s = max(1, round(retry_after_s))
        super().__init__(
            f"too many {noun}",
            because=f"the limit for {sender} is {per_minute} per minute",
            try_this=f"try again in {format_quantity(wait_s, 'second')}",
            retry_after_s=retry_after_s,
        )


class AddressLockedOut(RetryLater):
    """Too many invalid tokens, codes or other secrets came from one address."""

    code = "auth.locked_out"

    def __init__(self, *, attempts_max: int, retry_after_s: float) -> None:
        wait_s = max(1, round(retry_after_s))
        super().__init__(
            "too many invalid tokens or codes came from your address",
            because=f"the server refuses an address for a while after {attempts_max} invalid tokens or codes",
            try_this=f"try again in {format_quantity(wait_s, 'second')}, "
            "or use the Unix socket on the machine of the server",
            retry_after_s=retry_after_s,
        )


class TooManyEventStreams(RetryLater):
    """A principal has too many open event streams and WebSockets."""

    code = "live.too_many"

    def __init__(self, principal: str, *, streams_max: int) -> None:
        super().__init__(
            "too many open event streams",
            because=f"the limit for {principal} is {streams_max}",
            try_this="close some of them, or follow several sessions over one connection",
            retry_after_s=5,
        )


class TooManyConnections(RetinueError):
    """The server has reached its limit on connections, and none of them can be closed."""

    code = "request.too_many_connections"

    def __init__(self) -> None:
        super().__init__(
            "too many open connections",
            because="the limit `server.limits.connections_max` is reached, and no connection is idle",
            try_this="try again in a moment",
        )


class RequestHeadTooLarge(TooLarge):
    """The head of an HTTP request exceeds the limit."""

    code = "request.head_too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "the request head is too large",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="send fewer or shorter headers",
        )


class RequestTooSlow(Invalid):
    """The request did not arrive in time."""

    code = "request.too_slow"

    def __init__(self) -> None:
        super().__init__(
            "the request took too long to arrive",
            because="a complete request must arrive within `server.limits.request_wait_s` seconds",
            try_this="send it again without pauses",
        )


class RequestNotHttp(Invalid):
    """A client sent bytes that are not an HTTP/1.1 request."""

    code = "request.not_http"

    def __init__(self) -> None:
        super().__init__(
            "the request is not HTTP/1.1",
            because="the first bytes are not an HTTP request; only a proxy in front of the server can accept TLS",
            try_this="use http:// for this address, or https:// for the address of the proxy",
        )


class QueryStringInvalid(Invalid):
    """The query string of the URL has too many fields."""

    code = "request.query_invalid"

    def __init__(self, because: str) -> None:
        super().__init__("invalid query string", because=because, try_this="send fewer fields in the query string")


class WebhookSecretInUrl(Invalid):
    """A webhook request has its secret in the URL."""

    code = "webhook.secret_in_url"

    def __init__(self) -> None:
        super().__init__(
            "the secret must not be in the URL",
            because="URLs are often written to logs",
            try_this="send it as a header: Authorization: Bearer SECRET",
        )


class AttachmentLocationMissing(Invalid):
    """The request for an attachment does not name the envelope or record that has it."""

    code = "attachment.location_missing"

    def __init__(self) -> None:
        super().__init__(
            "no envelope or record given for the attachment",
            because="you can download an attachment only if you can see the envelope or record that has it",
            try_this="add ?envelope=ID, or ?session=ID&record=SEQ",
        )


# --- event streams ---


class TooManyFollowedSessions(Invalid):
    """One connection follows too many sessions."""

    code = "live.too_many_sessions"

    def __init__(self, *, sessions_max: int) -> None:
        super().__init__(
            "this connection follows too many sessions",
            because=f"the limit is {sessions_max:,} sessions for each connection",
            try_this="follow all of them with `*`, or unsubscribe from some",
        )


class EventFilterInvalid(Invalid):
    """The filter of a subscription names an unknown type or phase."""

    code = "live.filter_invalid"

    def __init__(self, unknown: str, *, types: str, phases: str) -> None:
        super().__init__(
            f"invalid value in the event filter: {unknown}",
            because=f"the types are {types}; the phases are {phases}",
            try_this="leave out `types` to get all types, or `phases` to get all phases",
        )


class EventFilterTooLong(Invalid):
    """A list in the event filter of a subscription is too long."""

    code = "live.filter_too_long"

    def __init__(self, *, items_max: int) -> None:
        super().__init__(
            "a list in the event filter is too long",
            because=f"the limit is {items_max} entries",
            try_this="leave out that list, and ignore the events that you do not need",
        )


class WindowOwnerInvalid(Invalid):
    """A caller that is not a person reported open browser windows of the web app."""

    code = "window.not_a_person"

    def __init__(self) -> None:
        super().__init__(
            "you cannot report browser windows",
            because="only people have browser windows of the web app",
            try_this="send no frames of the type `panels`",
        )
