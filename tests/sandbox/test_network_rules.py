"""Which hosts a network rule matches."""

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
def test_a_network_rule_allows_only_the_hosts_and_ports_it_names(
    rule: str, host: str, port: int, reached: bool
) -> None:
    assert (HostRules.from_network(NetworkAccess(hosts=(rule,))).find_host_refusal(host, port) == "") is reached


def test_hosts_requested_by_a_command_never_widen_the_network_rules() -> None:
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


def test_network_rules_allow_a_private_host_a_private_address_but_no_cloud_metadata_address() -> None:
    reach = HostRules.from_network(NetworkAccess(hosts=("nas.lan",), private_hosts=("nas.lan",)))
    assert reach.find_address_refusal("nas.lan", "192.168.1.5") == ""
    assert reach.find_address_refusal("nas.lan", "169.254.169.254")
    assert reach.find_address_refusal("other.lan", "192.168.1.5")


@pytest.mark.parametrize("text", ["example.com", "*.example.com", "example.com:8443", "10.0.0.1:80", "[::1]:80", "::1"])
def test_a_valid_network_rule_is_accepted(text: str) -> None:
    assert check_allowed_host(text) is None


@pytest.mark.spec("D50.wildcard")
@pytest.mark.parametrize(
    "text", ["*", "*.com", "https://example.com", "example.com:0", "example.com:99999", "a b", "a:b:c", "", "x/y"]
)
def test_a_network_rule_that_matches_nothing_or_everything_is_refused(text: str) -> None:
    assert check_allowed_host(text)
