"""Requests are checked by Host, Origin and forwarded headers, and sign-in attempts are limited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import open_operations_server

from retinue.api.app import build_app
from retinue.api.errors import AddressLockedOut, MisdirectedRequest, TooManyRequests
from retinue.api.host_check import HttpSettings, RequestSource, check_source
from retinue.api.rate_limits import ADDRESSES_MAX, Lockout, PrincipalRateLimit
from retinue.domain.errors import Invalid, NotAllowed
from retinue.testing.local_instance import LocalInstance

PROXIED = HttpSettings(public_url="https://chat.example", trusted_proxies=("10.0.0.0/8", "::1"))


def check_request(
    http_settings: HttpSettings, *, client: str = "127.0.0.1", path: str = "/api/health", **headers: str
) -> RequestSource:
    named = {"host": "127.0.0.1:7717", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items() if value]
    scope: dict[str, Any] = {"server": ("127.0.0.1", 7717), "client": (client, 999), "path": path, "headers": raw}
    return check_source(http_settings, scope, dict(raw))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7717", "localhost", "LOCALHOST:1", "[::1]:7717", "chat.example", "den.lan:80"]
)
def test_local_public_and_allowed_host_names_are_accepted(host: str) -> None:
    http_settings = HttpSettings(public_url="https://chat.example", allowed_hosts=("den.lan",))
    assert check_request(http_settings, host=host).remote_address == "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7717", "chat.example.", "[::2]", "x@localhost"],
)
def test_an_unknown_host_name_is_refused(host: str) -> None:
    with pytest.raises(MisdirectedRequest):
        check_request(HttpSettings(public_url="https://chat.example"), host=host)


def test_a_request_must_name_exactly_one_host() -> None:
    raw = [(b"host", b"localhost"), (b"host", b"evil.example")]
    scope: dict[str, Any] = {"server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "path": "/", "headers": raw}
    with pytest.raises(Invalid):
        check_source(HttpSettings(), scope, dict(raw))
    with pytest.raises(Invalid):
        check_source(HttpSettings(), {**scope, "headers": []}, {})


def test_only_the_local_and_the_public_url_are_accepted_as_origin() -> None:
    assert check_request(HttpSettings(), origin="http://127.0.0.1:7717").origin
    assert check_request(PROXIED, origin="https://chat.example").origin
    for origin in (
        "http://127.0.0.1:3000",
        "http://localhost:7717",
        "https://127.0.0.1:7717",
        "null",
        "http://evil.example",
    ):
        with pytest.raises(NotAllowed):
            check_request(PROXIED, origin=origin)


def test_a_cross_site_request_without_an_origin_header_is_refused() -> None:
    for site in ("cross-site", "same-site"):
        with pytest.raises(NotAllowed):
            check_request(HttpSettings(), sec_fetch_site=site)
    assert check_request(HttpSettings(), sec_fetch_site="same-origin")
    assert check_request(HttpSettings(), sec_fetch_site="cross-site", path="/")  # a link to the web app itself


@pytest.mark.spec("C90.proxy")
def test_forwarded_headers_are_trusted_only_from_trusted_proxies() -> None:
    stranger = check_request(PROXIED, client="127.0.0.1", x_forwarded_for="1.2.3.4", x_forwarded_proto="https")
    assert (stranger.remote_address, stranger.is_secure) == ("127.0.0.1", False)
    through = check_request(
        PROXIED, client="10.1.1.1", x_forwarded_for="6.6.6.6, 1.2.3.4, 10.0.0.9", x_forwarded_proto="https"
    )
    assert (through.remote_address, through.is_secure) == ("1.2.3.4", True)
    assert check_request(PROXIED, client="10.1.1.1", x_forwarded_for="nonsense").remote_address == "10.1.1.1"
    with pytest.raises(MisdirectedRequest):
        check_request(PROXIED, client="10.1.1.1", x_forwarded_host="evil.example")


@pytest.mark.spec("C90.bind")
def test_the_server_listens_publicly_only_behind_a_tls_proxy() -> None:
    for bad in (
        HttpSettings(host="0.0.0.0"),
        HttpSettings(host="0.0.0.0", public_url="http://chat.example", trusted_proxies=("10.0.0.1",)),
        HttpSettings(host="192.168.1.5", public_url="https://chat.example"),
    ):
        with pytest.raises(Invalid, match="does not listen"):
            bad.check_exposure()
    exposed = HttpSettings(host="0.0.0.0", public_url="https://chat.example", trusted_proxies=("10.0.0.1",))
    exposed.check_exposure()
    HttpSettings(host="::1").check_exposure()
    with pytest.raises(NotAllowed):  # a client on the same network that bypasses the proxy
        check_request(exposed, client="10.0.0.7")
    assert check_request(exposed, client="10.0.0.1", x_forwarded_for="1.2.3.4").remote_address == "1.2.3.4"


class ManualTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_ip_address_is_locked_out_after_too_many_failed_sign_ins_and_released_in_time() -> None:
    time = ManualTime()
    lockout = Lockout(time, attempts_max=3, lockout_s=60)
    lockout.record_success("1.2.3.4", "good")
    assert [lockout.record_failure("1.2.3.4") for _ in range(3)] == [False, False, True]
    with pytest.raises(AddressLockedOut) as refused:
        lockout.check("1.2.3.4", "another")
    assert 0 < refused.value.retry_after_s <= 60
    lockout.check("1.2.3.4", "good")  # a client that signed in before is not locked out by another
    lockout.check("1.2.3.5", "another")
    time.now += 61
    lockout.check("1.2.3.4", "another")


def test_all_ip_addresses_of_one_ipv6_network_are_locked_out_together() -> None:
    lockout = Lockout(ManualTime(), attempts_max=2, lockout_s=60)
    lockout.record_failure("2001:db8::1")
    lockout.record_failure("2001:db8::2")
    with pytest.raises(AddressLockedOut):
        lockout.check("2001:db8::3", "another")


def test_the_number_of_remembered_ip_addresses_with_failed_sign_ins_is_limited() -> None:
    lockout = Lockout(ManualTime(), attempts_max=2, lockout_s=60)
    for number in range(ADDRESSES_MAX + 100):
        lockout.record_failure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(lockout._failures) == ADDRESSES_MAX  # pyright: ignore[reportPrivateUsage]


def test_the_request_rate_limit_reports_when_to_retry_and_refills_with_time() -> None:
    time = ManualTime()
    rate = PrincipalRateLimit(time, 60, "requests")
    for _ in range(60):
        rate.use("person:maria")
    with pytest.raises(TooManyRequests) as refused:
        rate.use("person:maria")
    assert 0 < refused.value.retry_after_s <= 1
    rate.use("person:noor")
    time.now += refused.value.retry_after_s
    rate.use("person:maria")


async def test_allowed_host_names_and_request_limits_change_without_a_restart(tmp_path: Path) -> None:
    async with open_operations_server(LocalInstance(tmp_path)) as server:
        app = build_app(server.services, HttpSettings())

        async def status(**headers: str) -> int:
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            sent: list[Any] = []

            async def receive() -> Any:
                return {"type": "http.request", "body": b"x" * 100, "more_body": False}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": "/api/sign-in", "query_string": b"", "headers": raw}
            await app({**scope, "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2)}, receive, send)
            return sent[0]["status"]

        assert await status(host="den.lan") == 421
        assert await status(host="localhost") == 400
        app.apply_settings(HttpSettings(allowed_hosts=("den.lan",), body_bytes_max=10))
        assert await status(host="den.lan") == 413
