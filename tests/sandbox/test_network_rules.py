"""Which hosts a rule means."""

from __future__ import annotations

import pytest

from retinue.config.sandbox import check_allowed_host
from retinue.sandbox.base import NetworkAccess
from retinue.sandbox.network_rules import HostRules, filter_allowed


@pytest.mark.parametrize(
    ("rule", "host", "port", "reached"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 22, False),
        ("example.com", "a.example.com", 443, False),
        ("example.com", "evilexample.com", 443, False),
        ("Example.COM", "example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evil-example.com", 443, False),
        ("example.com:22", "example.com", 22, True),
        ("example.com:22", "example.com", 443, False),
        ("*", "example.com", 443, False),
        ("*.com", "example.com", 443, False),
        ("", "example.com", 443, False),
        ("example.com:x", "example.com", 443, False),
        ("example.com:0", "example.com", 443, False),
    ],
)
def test_a_rule_means_just_what_it_says(rule: str, host: str, port: int, reached: bool) -> None:
    assert (HostRules.from_network(NetworkAccess(hosts=(rule,))).find_host_refusal(host, port) == "") is reached


def test_asking_never_widens_what_is_allowed() -> None:
    allowed = ("*.example.com", "pypi.org", "git.example.org:22")
    assert filter_allowed(allowed, allowed) == allowed
    assert filter_allowed(("a.example.com", "*.a.example.com", "pypi.org:80"), allowed) == (
        "a.example.com",
        "*.a.example.com",
        "pypi.org:80",
    )
    assert (
        filter_allowed(("*.com", "example.com", "*.pypi.org", "pypi.org:8080", "git.example.org", "*"), allowed) == ()
    )


def test_a_private_host_may_have_an_address_at_home_and_never_one_of_the_machines_makers() -> None:
    reach = HostRules.from_network(NetworkAccess(hosts=("nas.lan",), private_hosts=("nas.lan",)))
    assert reach.find_address_refusal("nas.lan", "192.168.1.5") == ""
    assert reach.find_address_refusal("nas.lan", "169.254.169.254")
    assert reach.find_address_refusal("other.lan", "192.168.1.5")


@pytest.mark.parametrize("text", ["example.com", "*.example.com", "example.com:8443", "10.0.0.1:80", "[::1]:80", "::1"])
def test_a_rule_that_can_be_written_is_taken(text: str) -> None:
    assert check_allowed_host(text) is None


@pytest.mark.spec("D50.wildcard")
@pytest.mark.parametrize(
    "text", ["*", "*.com", "https://example.com", "example.com:0", "example.com:99999", "a b", "a:b:c", "", "x/y"]
)
def test_a_rule_that_means_nothing_or_everything_is_not(text: str) -> None:
    assert check_allowed_host(text)
