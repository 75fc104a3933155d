"""Validates single strings in the settings. Each function returns what is wrong, or None if the string is valid."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from retinue.domain.address import BACKGROUND, validate_name
from retinue.domain.errors import Invalid
from retinue.domain.model import EFFORTS
from retinue.domain.reset_rules import NEVER, parse_time_of_day

PORT_MAX = 65_535
HOST_LENGTH_MAX = 253
MODEL_LENGTH_MAX = 200
ALIAS_LENGTH_MAX = 60
DISPLAY_NAME_LENGTH_MAX = 64  # characters
PATH_LENGTH_MAX = 1000
ICON_LENGTH_MAX = 16  # a family emoji has eleven characters
TOOL_PROFILES = ("minimal", "coding", "messaging", "full")
DEFAULT_VALUE = "default"  # a model or effort with this value counts as not set

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_OPERATION = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
_ALIAS = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._:-]*")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,199}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
LOOPBACK_NAMES = frozenset({"localhost"})
_JOINER = "\u200d"  # joins several emoji into one
_INVISIBLE_CATEGORIES = frozenset(
    {"Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"}
)  # not Cn: emoji may be newer than our Unicode tables


def check_host(text: str) -> str | None:
    """Check a host name or IP address, without scheme and port."""
    if _is_ip(text) or (len(text) <= HOST_LENGTH_MAX and _HOST.fullmatch(text) and not _looks_like_ipv4(text)):
        return None
    return "must be a host name or an IP address, without scheme, port or path"


def is_loopback(text: str) -> bool:
    """Whether a host is this machine's loopback interface, which other machines cannot reach."""
    return ipaddress.ip_address(text).is_loopback if _is_ip(text) else text.lower() in LOOPBACK_NAMES


def check_network(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return "must be an IP address or a network without host bits"
    return None


def check_url(text: str) -> str | None:
    """Check an http or https URL without user name and password."""
    try:
        parts = urlsplit(text)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return "must be an http or https URL"
    if not well_formed or check_host(parts.hostname or "") or re.search(r"[\s\x00-\x1f\x7f]", text):
        return "must be an http or https URL"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user name or a password"
    return None


def check_public_url(text: str) -> str | None:
    if wrong := check_url(text):
        return wrong
    return "must not contain ? or #" if "?" in text or "#" in text else None


def is_https(text: str | None) -> bool:
    return text is not None and urlsplit(text).scheme == "https"


def check_store(text: str) -> str | None:
    if text.startswith(("postgresql://", "postgresql+psycopg://")):
        return None
    return "must be a PostgreSQL URL"


def find_password(address: str) -> str:
    """Return the password in a database URL, before the @ or in its options.

    Returns an empty string if there is none. If the URL cannot be parsed, the whole URL is returned.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    option = re.search(r"(?:^|&)(?:ssl)?password=([^&]*)", parts.query, re.IGNORECASE)
    return parts.password or (option[1] if option else "")


def check_operation(text: str) -> str | None:
    return None if _OPERATION.fullmatch(text) else "is not the name of an operation"


def check_agent_name(text: str) -> str | None:
    try:
        validate_name(text, what="an agent")
    except Invalid as error:
        return f"cannot be the name of an agent: {error.because}"
    if text.casefold() == BACKGROUND:
        return "cannot be the name of an agent: agent:background is reserved"
    return None


def check_name(text: str) -> str | None:
    try:
        validate_name(text, what="anything")
    except Invalid as error:
        return f"cannot be a name: {error.because}"
    return None


def check_model_reference(text: str) -> str | None:
    """Check a model reference: PROVIDER/MODEL, an alias, or the name of a built-in model."""
    if not text or len(text) > MODEL_LENGTH_MAX or not text.isprintable() or re.search(r"\s", text):
        return f"must be the name of a model: 1 to {MODEL_LENGTH_MAX} characters, without spaces"
    provider, slash, model = text.partition("/")
    return "must have a name before and after the /" if slash and not (provider and model) else None


def check_model_alias(text: str) -> str | None:
    if text.casefold() == DEFAULT_VALUE or len(text) > ALIAS_LENGTH_MAX or not _ALIAS.fullmatch(text):
        return "must be a short name of letters, digits, dots and hyphens, and not a number"
    return None


def check_effort(text: str) -> str | None:
    return None if text in EFFORTS else f"must be one of {', '.join(EFFORTS)}"


def check_effort_or_default(text: str) -> str | None:
    return None if text == DEFAULT_VALUE else check_effort(text)


def check_daily_at(text: str) -> str | None:
    return None if text == NEVER or parse_time_of_day(text) else f"must be a time of day such as 04:00, or `{NEVER}`"


def check_tool_profile(text: str) -> str | None:
    return None if text in TOOL_PROFILES else f"must be one of {', '.join(TOOL_PROFILES)}"


def check_icon(text: str) -> str | None:
    """Check an icon: an emoji or a few letters, without invisible or bidirectional characters."""
    seen = all(sign == _JOINER or unicodedata.category(sign) not in _INVISIBLE_CATEGORIES for sign in text)
    if len(text) <= ICON_LENGTH_MAX and seen and text.strip(_JOINER) == text:
        return None
    return f"must be one emoji, or at most {ICON_LENGTH_MAX} visible characters without spaces"


def check_display_name(text: str) -> str | None:
    """Check a display name: one line of visible characters, without bidirectional characters."""
    seen = all(sign in (" ", _JOINER) or unicodedata.category(sign) not in _INVISIBLE_CATEGORIES for sign in text)
    if len(text) <= DISPLAY_NAME_LENGTH_MAX and seen and text.strip() == text:
        return None
    return f"must be one line of at most {DISPLAY_NAME_LENGTH_MAX} visible characters"


def check_folder(text: str) -> str | None:
    """Check the path of a folder: it starts with / or ~/, or is relative and does not leave its base folder."""
    path = PurePosixPath(text)
    if len(text) > PATH_LENGTH_MAX or not text.isprintable() or not text.strip() or ".." in path.parts:
        return f"must be a path of at most {PATH_LENGTH_MAX} characters, without .."
    return "must be a folder other than the root, home or current folder" if str(path) in ("/", "~", ".") else None


def check_context_file(text: str) -> str | None:
    """Check the path or pattern of a context file: it is relative and does not leave the workspace."""
    path = PurePosixPath(text)
    if len(text) > PATH_LENGTH_MAX or not text.isprintable() or not text.strip() or ".." in path.parts:
        return f"must be a path of at most {PATH_LENGTH_MAX} characters, without .."
    return (
        "must be a path below the workspace, such as docs/*.md" if path.is_absolute() or text.startswith("~") else None
    )


def check_glob(text: str) -> str | None:
    """Check a name or an `fnmatch` pattern. A [ without ] is refused, because `fnmatch` would match it literally."""
    if not text.strip() or not text.isprintable():
        return "must be a name or a pattern with `*`, and not empty"
    return "must close every [ with a ]" if "[" in re.sub(r"\[!?\]?[^\]]*\]", "", text) else None


def check_command_rule(text: str) -> str | None:
    """Check the form of a rule of the command allowlist. `policy/tools/exec_allowlist.py` explains the rules."""
    words = text.split()
    if not words:
        return "must name a program"
    if not text.isprintable():
        return "must not contain invisible characters"
    if any(char in text for char in "'\"\\$`;&|<>(){}"):
        return "must be plain words, without quotes, operators and expansions"
    if "/" in words[0] and not words[0].startswith("/"):
        return "must name the program by its name or by an absolute path"
    if any(char in words[0] for char in "*?[") and not words[0].startswith("/"):
        return "may use wildcards in the program only within an absolute path"
    if ".." in PurePosixPath(words[0]).parts:
        return "must name the program by a path without '..'"
    return None


def check_image(text: str) -> str | None:
    return None if _IMAGE.fullmatch(text) else "must be the name of an image, such as debian:stable-slim"


def check_secret_reference(text: str) -> str | None:
    """Check the location of a secret. The error does not show an invalid value, because it may be the secret itself."""
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]{0,99}", text) or (
        re.fullmatch(r"file:[/~].{1,1000}", text) and text.isprintable()
    ):
        return None
    return "must be the location of the secret, env:NAME or file:PATH, never its value"


def check_header(text: str) -> str | None:
    return None if _HEADER.fullmatch(text) else "is not a valid header name"


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _looks_like_ipv4(text: str) -> bool:
    return all(part.isdigit() for part in text.split("."))
