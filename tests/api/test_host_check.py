"""Who is let in, judged by Host, Origin and forwarded headers; and how guessing and flooding are bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import desk_house

from retinue.api.app import build_app
from retinue.api.errors import AddressLockedOut, MisdirectedRequest, TooManyRequests
from retinue.api.host_check import HttpSettings, RequestSource, check_source
from retinue.api.request_limits import ADDRESSES_MAX, Lockout, PrincipalRateLimit
from retinue.domain.errors import Invalid, NotAllowed
from retinue.testing.local_instance import LocalInstance

PROXIED = HttpSettings(public_url="https://house.example", trusted_proxies=("10.0.0.0/8", "::1"))


def knock(door: HttpSettings, *, client: str = "127.0.0.1", path: str = "/api/health", **headers: str) -> RequestSource:
    named = {"host": "127.0.0.1:7717", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items() if value]
    scope: dict[str, Any] = {"server": ("127.0.0.1", 7717), "client": (client, 999), "path": path, "headers": raw}
    return check_source(door, scope, dict(raw))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7717", "localhost", "LOCALHOST:1", "[::1]:7717", "house.example", "den.lan:80"]
)
def test_the_names_of_this_machine_of_the_public_url_and_allowed_ones_are_ours(host: str) -> None:
    door = HttpSettings(public_url="https://house.example", allowed_hosts=("den.lan",))
    assert knock(door, host=host).remote_address == "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7717", "house.example.", "[::2]", "x@localhost"],
)
def test_a_name_that_only_points_at_this_machine_is_misdirected(host: str) -> None:
    with pytest.raises(MisdirectedRequest):
        knock(HttpSettings(public_url="https://house.example"), host=host)


def test_a_request_names_exactly_one_host() -> None:
    raw = [(b"host", b"localhost"), (b"host", b"evil.example")]
    scope: dict[str, Any] = {"server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "path": "/", "headers": raw}
    with pytest.raises(Invalid):
        check_source(HttpSettings(), scope, dict(raw))
    with pytest.raises(Invalid):
        check_source(HttpSettings(), {**scope, "headers": []}, {})


def test_only_our_own_page_and_the_public_one_are_our_origin() -> None:
    assert knock(HttpSettings(), origin="http://127.0.0.1:7717").origin
    assert knock(PROXIED, origin="https://house.example").origin
    for origin in (
        "http://127.0.0.1:3000",
        "http://localhost:7717",
        "https://127.0.0.1:7717",
        "null",
        "http://evil.example",
    ):
        with pytest.raises(NotAllowed):
            knock(PROXIED, origin=origin)


def test_what_a_browser_sends_for_a_page_of_another_site_is_refused_though_it_has_no_origin() -> None:
    for site in ("cross-site", "same-site"):
        with pytest.raises(NotAllowed):
            knock(HttpSettings(), sec_fetch_site=site)
    assert knock(HttpSettings(), sec_fetch_site="same-origin")
    assert knock(HttpSettings(), sec_fetch_site="cross-site", path="/")  # a link to the page itself


@pytest.mark.spec("C90.proxy")
def test_forwarded_headers_are_believed_from_trusted_proxies_alone() -> None:
    stranger = knock(PROXIED, client="127.0.0.1", x_forwarded_for="1.2.3.4", x_forwarded_proto="https")
    assert (stranger.remote_address, stranger.is_secure) == ("127.0.0.1", False)
    through = knock(PROXIED, client="10.1.1.1", x_forwarded_for="6.6.6.6, 1.2.3.4, 10.0.0.9", x_forwarded_proto="https")
    assert (through.remote_address, through.is_secure) == ("1.2.3.4", True)
    assert knock(PROXIED, client="10.1.1.1", x_forwarded_for="nonsense").remote_address == "10.1.1.1"
    with pytest.raises(MisdirectedRequest):
        knock(PROXIED, client="10.1.1.1", x_forwarded_host="evil.example")


@pytest.mark.spec("C90.bind")
def test_the_house_listens_beyond_this_machine_only_behind_a_proxy_with_tls() -> None:
    for bad in (
        HttpSettings(host="0.0.0.0"),
        HttpSettings(host="0.0.0.0", public_url="http://house.example", trusted_proxies=("10.0.0.1",)),
        HttpSettings(host="192.168.1.5", public_url="https://house.example"),
    ):
        with pytest.raises(Invalid, match="does not listen"):
            bad.check_exposure()
    exposed = HttpSettings(host="0.0.0.0", public_url="https://house.example", trusted_proxies=("10.0.0.1",))
    exposed.check_exposure()
    HttpSettings(host="::1").check_exposure()
    with pytest.raises(NotAllowed):  # somebody on the same network who goes round the proxy
        knock(exposed, client="10.0.0.7")
    assert knock(exposed, client="10.0.0.1", x_forwarded_for="1.2.3.4").remote_address == "1.2.3.4"


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_address_is_locked_out_after_so_many_wrong_secrets_and_let_in_again_in_time() -> None:
    time = Time()
    lockout = Lockout(time, attempts_max=3, lockout_s=60)
    lockout.record_success("1.2.3.4", "good")
    assert [lockout.record_failure("1.2.3.4") for _ in range(3)] == [False, False, True]
    with pytest.raises(AddressLockedOut) as refused:
        lockout.check("1.2.3.4", "another")
    assert 0 < refused.value.retry_after_s <= 60
    lockout.check("1.2.3.4", "good")  # who was signed in there before is not thrown out by a guesser
    lockout.check("1.2.3.5", "another")
    time.now += 61
    lockout.check("1.2.3.4", "another")


def test_all_addresses_of_one_ipv6_household_are_locked_out_together() -> None:
    lockout = Lockout(Time(), attempts_max=2, lockout_s=60)
    lockout.record_failure("2001:db8::1")
    lockout.record_failure("2001:db8::2")
    with pytest.raises(AddressLockedOut):
        lockout.check("2001:db8::3", "another")


def test_the_table_of_guessers_is_bounded() -> None:
    lockout = Lockout(Time(), attempts_max=2, lockout_s=60)
    for number in range(ADDRESSES_MAX + 100):
        lockout.record_failure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(lockout._failures) == ADDRESSES_MAX  # pyright: ignore[reportPrivateUsage]


def test_a_rate_says_when_to_ask_again_and_refills_with_time() -> None:
    time = Time()
    rate = PrincipalRateLimit(time, 60, "requests")
    for _ in range(60):
        rate.use("person:maria")
    with pytest.raises(TooManyRequests) as refused:
        rate.use("person:maria")
    assert 0 < refused.value.retry_after_s <= 1
    rate.use("person:noor")
    time.now += refused.value.retry_after_s
    rate.use("person:maria")


async def test_a_house_takes_other_names_and_bounds_without_closing(tmp_path: Path) -> None:
    async with desk_house(LocalInstance(tmp_path)) as house:
        app = build_app(house.desk, HttpSettings())

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
