"""Posts a signed request to an external URL, and converts the response to a delivery result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retinue.connectors.base import Delivery, DeliveryFailed, FailureKind
from retinue.tools.web.guarded_request import GuardedHttpClient, WebResponse
from retinue.tools.web.url_guard import WebFailed, WebRefused

RESPONSE_BYTES_MAX = 2_000  # size of an error response to read: enough to see the cause
RETRY_AFTER_DIGITS_MAX = 6
QUOTED_CHARS_MAX = 200

RETRYABLE_STATUSES = frozenset({408, 425, 429})  # a retry may succeed

MakeHttp = Callable[[], GuardedHttpClient]
"""Returns an HTTP client with the current settings."""


async def post_signed(
    http: GuardedHttpClient, url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float, is_last: bool
) -> Delivery:
    """Post the signed content to the URL. Raises `DeliveryFailed`, or `ConnectionError` if the result is unknown.

    `is_last` means that no further attempt follows, so every failure is permanent.
    """
    try:
        answer = await http.post(url, content, headers=headers, timeout_s=timeout_s, bytes_max=RESPONSE_BYTES_MAX)
    except WebRefused as error:
        sentence = f"{error.sentence}: {error.because}"
        raise DeliveryFailed(sentence, kind=FailureKind.INVALID_ADDRESS, permanent=True) from None
    except WebFailed as error:
        sentence = f"{error.sentence}: {error.because}"
        if is_last:
            raise DeliveryFailed(sentence, permanent=True) from None
        raise ConnectionError(sentence) from None
    if 200 <= answer.status < 300:
        return Delivery(f"HTTP {answer.status}")
    raise _build_failure(answer, is_last=is_last)


def _build_failure(answer: WebResponse, *, is_last: bool) -> DeliveryFailed:
    sentence = f"the receiver answered with HTTP {answer.status}"
    if 300 <= answer.status < 400:
        sentence += ", a redirect; redirects are not followed"
    if quoted := " ".join(answer.body.decode(errors="replace").split())[:QUOTED_CHARS_MAX]:
        sentence += f": {quoted!r}"
    throttled = answer.status == 429
    return DeliveryFailed(
        sentence,
        kind=FailureKind.THROTTLED if throttled else FailureKind.SEND_FAILED,
        permanent=is_last or (answer.status < 500 and answer.status not in RETRYABLE_STATUSES),
        retry_after_s=_parse_retry_after(answer),
    )


def _parse_retry_after(answer: WebResponse) -> float | None:
    asked = answer.headers.get("retry-after", "").strip()
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) <= RETRY_AFTER_DIGITS_MAX else None
