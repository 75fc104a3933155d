"""Errors of the web tools: one class for each error code."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.tools.base import ToolFailed

URL_SHOWN_MAX = 200  # characters


class WebRefused(ToolFailed):
    """Agents may not reach this address. The request was not sent."""


class WebFailed(ToolFailed):
    """The server could not be reached, or did not answer correctly."""


# --- refused ---


class UrlInvalid(WebRefused):
    """The text is not a URL that can be fetched."""

    code = "web.url_invalid"

    def __init__(self, url: str, *, because: str) -> None:
        super().__init__(
            f"invalid URL: {url[:URL_SHOWN_MAX]!r}",
            because=because,
            try_this="use a complete URL, such as https://example.com/page",
        )


class PortRefused(WebRefused):
    """The port is not one of the allowed ports."""

    code = "web.port_refused"

    def __init__(self, host: str, port: int, *, ports: Iterable[int]) -> None:
        super().__init__(
            f"you cannot reach port {port} of '{host[:URL_SHOWN_MAX]}'",
            because=f"the allowed ports are: {', '.join(map(str, sorted(ports))) or 'none'}",
            try_this="ask the owner to add it to `ports` of [web], or HOST:PORT to `private_hosts` of [web]",
        )


class HostRefused(WebRefused):
    """The host is not on the public internet, and is not among the private hosts that the owner allowed."""

    code = "web.refused"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(
            f"you cannot reach '{host[:URL_SHOWN_MAX]}'",
            because=because,
            try_this="ask the owner to add it to `private_hosts` of [web]",
        )


class RedirectRefused(WebRefused):
    """A page redirects to an address that agents may not reach. The error names only the requested host."""

    code = "web.redirect_refused"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(
            f"'{host}' redirects to an address that you cannot reach", because=because, try_this="try another page"
        )


class PageRefused(WebRefused):
    """The proxy of the browser refused a page. The error names only the requested host."""

    code = "web.page_refused"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(f"cannot open '{host}'", because=because, try_this="try another page")


class WebPermissionMissing(ToolFailed):
    """The agent lacks the permission `web`."""

    code = "permission.missing"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"{agent} cannot access the web",
            because="it does not have the permission `web`",
            try_this="request it with request_permission",
        )


# --- failed ---


class HostNotResolved(WebFailed):
    """The host name has no address."""

    code = "web.host_not_found"

    def __init__(self, host: str, *, because: str = "") -> None:
        super().__init__(
            f"no host named '{host}'", because=because or "the name has no address", try_this="check the spelling"
        )


class WebRequestFailed(WebFailed):
    """The connection failed, or the response is not valid HTTP."""

    code = "web.failed"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(f"cannot read '{host}'", because=because, try_this="try again later, or try another page")


class WebTimeout(WebFailed):
    """The complete response did not arrive in time."""

    code = "web.timeout"

    def __init__(self, host: str, *, timeout_s: float) -> None:
        super().__init__(
            f"'{host}' did not answer in time",
            because=f"the response was not complete after {timeout_s:g} seconds",
            try_this="try again later, or try another page",
        )


class RedirectFailed(WebFailed):
    """The target of a redirect could not be read. The error names only the requested host."""

    code = "web.redirect_failed"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(
            f"'{host}' redirects to a page that cannot be read", because=because, try_this="try another page"
        )


class TooManyRedirects(WebFailed):
    """The page redirects more often than the limit allows."""

    code = "web.too_many_redirects"

    def __init__(self, host: str, *, redirects_max: int) -> None:
        super().__init__(
            f"'{host}' redirects too many times",
            because=f"the limit is {redirects_max} redirects",
            try_this="fetch the page to which the redirects lead",
        )


class PageNotOpened(WebFailed):
    """The browser could not load a page."""

    code = "web.page_failed"

    def __init__(self, host: str, *, because: str) -> None:
        super().__init__(f"cannot open '{host}'", because=because, try_this="try another page")
        self.host = host


# --- search ---


class SearchFailed(WebFailed):
    """The search engine did not return results."""

    code = "web.search_failed"

    def __init__(self, engine: str, *, status: int, because: str, try_this: str) -> None:
        super().__init__(
            f"{engine} returned no results", because=f"{because} (it answered with status {status})", try_this=try_this
        )


class SearchArgumentInvalid(ToolFailed):
    """An argument of `web_search` is invalid. `example` is a value that works."""

    code = "web.search_invalid"

    def __init__(self, argument: str, *, because: str, example: str) -> None:
        super().__init__(f"invalid value for {argument}", because=because, try_this=f"use a value such as {example}")


class SearchDatesUnsupported(ToolFailed):
    """The search engine cannot search between two dates."""

    code = "web.search_dates_unsupported"

    def __init__(self, engine: str) -> None:
        super().__init__(
            f"{engine} cannot search between two dates",
            because="it supports only the past day, week, month or year",
            try_this="set `freshness` to pd, pw, pm or py",
        )


# --- browser ---


class BrowserFailed(ToolFailed):
    """The browser did not perform a command."""


class BrowserCommandFailed(BrowserFailed):
    """The browser answered a command with an error."""

    code = "browser.failed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the browser could not perform this action",
            because=because,
            try_this="take a snapshot with `browser`, and try again",
        )


class BrowserReplyTooLarge(BrowserFailed):
    """The response from the browser exceeds the size limit."""

    code = "browser.reply_too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "this page is too large",
            because=f"the response from the browser is larger than {bytes_max:,} bytes",
            try_this="try another page",
        )


class BrowserTimeout(BrowserFailed):
    """The browser did not answer a command in time."""

    code = "browser.timeout"

    def __init__(self, method: str, *, timeout_s: float) -> None:
        super().__init__(
            "the browser does not answer",
            because=f"{method} took more than {timeout_s:g} seconds",
            try_this="close the browser and open the page again",
        )


class BrowserActionTimeout(BrowserFailed):
    """A browser action took too long, including the loading of a page that it opened."""

    code = "browser.action_timeout"

    def __init__(self, *, timeout_s: float) -> None:
        super().__init__(
            "the page took too long to load",
            because=f"the limit is {timeout_s:g} seconds for an action and the page that it opens",
            try_this="try another page",
        )


class BrowserGone(BrowserFailed):
    """The process of the browser has ended."""

    code = "browser.gone"

    def __init__(self, *, because: str = "") -> None:
        super().__init__(
            "the browser was closed", because=because or "its process has ended", try_this="open the page again"
        )


class NoPageOpen(BrowserFailed):
    """No page is open in the browser of this session."""

    code = "browser.no_page"

    def __init__(self) -> None:
        super().__init__(
            "no page is open",
            because="no page was opened in this session, or the browser has been closed since",
            try_this="open a page: use `browser` with the action `open`",
        )


class NoPreviousPage(BrowserFailed):
    """The current page is the first one, so `back` is not possible."""

    code = "browser.no_previous_page"

    def __init__(self) -> None:
        super().__init__(
            "you cannot go back", because="this is the first page", try_this="open a page with the action `open`"
        )


class PageSchemeRefused(BrowserFailed):
    """The URL is not that of a web page, but for example of a file or of an internal page of Chromium."""

    code = "browser.scheme_refused"

    def __init__(self) -> None:
        super().__init__(
            "this is not a web page",
            because="only http and https pages can be opened",
            try_this="open an http or https page",
        )


class RefNotFound(BrowserFailed):
    """The page has no element with this ref."""

    code = "browser.ref_not_found"

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"no element {ref[:20]!r} on the page",
            because="a ref is valid only for the page of its snapshot, and the page may have changed since",
            try_this="take a snapshot with `browser`, and use a ref from it",
        )


class ElementHidden(BrowserFailed):
    """The element has no visible area to click."""

    code = "browser.element_hidden"

    def __init__(self) -> None:
        super().__init__(
            "this element cannot be clicked",
            because="it is hidden, or no longer on the page",
            try_this="take a snapshot with `browser`, and choose an element from it",
        )


class OptionNotFound(BrowserFailed):
    """The element has no option with this label or value."""

    code = "browser.option_not_found"

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"the element {ref} does not have this option",
            because="none of its options has this label, or the element is not a list",
            try_this="take a snapshot with `browser`, and use the exact name of an option",
        )


class BrowserKeyUnknown(BrowserFailed):
    """No keyboard key has this name."""

    code = "browser.key_unknown"

    def __init__(self, key: str, *, names: Iterable[str], modifiers: Iterable[str]) -> None:
        super().__init__(
            f"no key named {key[:40]!r}",
            because=f"a key is one character or one of {', '.join(names)}; "
            f"a modifier ({', '.join(modifiers)}) goes before it, with +",
            try_this="use a key such as Enter or Control+a",
        )


class BrowserArgumentMissing(ToolFailed):
    """An action of `browser` or `browser_act` lacks an argument."""

    code = "browser.argument_missing"

    def __init__(self, action: str, argument: str) -> None:
        super().__init__(
            f"missing argument: {argument}",
            because=f"the action `{action}` needs `{argument}`; nothing was done",
            try_this=f"call it again with `{argument}`",
        )


class BrowserNotAvailable(ToolFailed):
    """This server has no browser: it is disabled, not installed, or cannot be confined."""

    code = "browser.not_available"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "this server has no browser",
            because=because,
            try_this="use web_fetch, which reads pages without a browser",
        )


class BrowserNotStarted(ToolFailed):
    """Chromium was started, but did not answer."""

    code = "browser.not_started"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the browser did not start",
            because=because or "it could not be confined",
            try_this="use web_fetch, which reads pages without a browser; the owner can run `retinue doctor`",
        )


class TooManyBrowsers(ToolFailed):
    """The server is running as many browsers as the limit allows, and all of them are in use."""

    code = "browser.too_many"

    def __init__(self, *, browsers_max: int) -> None:
        super().__init__(
            "too many browsers",
            because=f"the limit is {browsers_max}, and all of them are in use",
            try_this="try again in a minute",
        )
