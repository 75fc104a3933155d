"""Test which IP addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.policy.access.ip_ranges import (
    explain_refused_address,
    explain_refused_host,
    is_ip_address,
    is_private_address,
    normalize_host,
)

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "192.169.0.1", "223.255.255.255"]
PUBLIC_V6 = ["2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2400:cb00::1"]
NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
NOT_PUBLIC_V6 = [
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",  # IPv4-compatible: obsolete, but a network stack may still unpack it
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "64:ff9b:1::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.spec("A75", "C66")
@pytest.mark.parametrize("address", NOT_PUBLIC + NOT_PUBLIC_V6)
def test_a_non_public_ip_address_is_refused(address: str) -> None:
    assert explain_refused_address(address)
    assert explain_refused_host(address)


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_V6)
def test_a_public_ip_address_is_allowed(address: str) -> None:
    assert explain_refused_address(address) == ""
    assert explain_refused_host(address) == ""


def embed_in_ipv6(inner: str) -> list[str]:
    """Return the IPv6 forms that embed an IPv4 address."""
    number = int(IPv4Address(inner))
    return [
        str(IPv6Address((0xFFFF << 32) | number)),
        f"::ffff:{inner}",
        str(IPv6Address((0x0064FF9B << 96) | number)),
        str(IPv6Address((0x2002 << 112) | (number << 80) | 1)),
        str(IPv6Address((0x20010000 << 96) | (int(IPv4Address("8.8.8.8")) << 64) | (number ^ 0xFFFFFFFF))),
        str(IPv6Address((0x20010000 << 96) | (number << 64) | (int(IPv4Address("8.8.8.8")) ^ 0xFFFFFFFF))),
        str(IPv6Address((0x26064700 << 96) | (0x00005EFE << 32) | number)),
        str(IPv6Address((0x26064700 << 96) | (0x02005EFE << 32) | number)),
    ]


@pytest.mark.spec("C66")
@pytest.mark.parametrize("inner", NOT_PUBLIC)
def test_a_non_public_ipv4_address_embedded_in_ipv6_is_refused(inner: str) -> None:
    for embedding_address in embed_in_ipv6(inner):
        assert explain_refused_address(embedding_address), embedding_address
        assert explain_refused_host(f"[{embedding_address}]"), embedding_address


@pytest.mark.parametrize("inner", PUBLIC)
def test_a_public_ipv4_address_embedded_in_ipv6_is_allowed(inner: str) -> None:
    for embedding_address in embed_in_ipv6(inner):
        assert explain_refused_address(embedding_address) == "", embedding_address


@pytest.mark.spec("C66")
@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0x7F.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "127.0.0.1.",
        "127.0.0.01",
        "1.1.1.0x1",
        "8.8.8.010",
        "134744072",  # 8.8.8.8 is public, but parsers disagree on this spelling
        "256.1.1.1",
        "1.2.3.4.5",
        "0x",
        "host.0x7f",
        "１２７.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
    ],
)
def test_an_ip_address_in_another_numeric_notation_is_refused_as_a_host(host: str) -> None:
    assert explain_refused_host(host)


@pytest.mark.spec("C66")
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "ｌｏｃａｌｈｏｓｔ",
        "local\u00adhost",
        "foo.localhost",
        "localhost.localdomain",
        "printer.local",
        "metadata.google.internal",
        "Metadata.Google.Internal.",
        "db.internal",
        "nas.lan",
        "router.home.arpa",
        "",
        ".",
        "a..b",
        "-a.example",
        "a b.example",
        "a\n.example",
        "a\x00.example",
        "user@example.com",
        "example.com/path",
        "example.com:80",
        "exam%70le.com",
        "[::1",
        "[127.0.0.1]",
        "[fe80::1%25eth0]",
        "fe80::1%eth0",
        "x" * 64 + ".example",
        ".".join(["a" * 60] * 5),
        "é" * 5_000,
    ],
)
def test_the_ip_range_check_refuses_a_local_or_invalid_host_name(host: str) -> None:
    assert explain_refused_host(host)


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("ＥＸＡＭＰＬＥ.com", "example.com"),
        ("a_b.example", "a_b.example"),
        ("localhoster.example", "localhoster.example"),
        ("mylocal", "mylocal"),
        ("1.example", "1.example"),
        ("3com.com", "3com.com"),
        ("[2606:4700:4700::1111]", "2606:4700:4700::1111"),
        ("8.8.8.8", "8.8.8.8"),
    ],
)
def test_the_ip_range_check_normalizes_and_allows_public_host_names(host: str, plain: str) -> None:
    assert normalize_host(host) == plain
    assert explain_refused_host(host) == ""


@pytest.mark.parametrize(
    "text", ["", "example.com", "127.1", "1.2.3.4 ", "::1%eth0", "fe80::1%1", "1.2.3.4/32", "٨.8.8.8"]
)
def test_text_that_is_not_an_ip_address_is_refused(text: str) -> None:
    assert explain_refused_address(text) == "it is not an IP address"
    assert not is_ip_address(text)


def test_a_private_ip_address_is_in_only_a_part_of_the_non_public_ranges() -> None:
    assert all(
        map(is_private_address, ["10.0.0.1", "127.0.0.1", "192.168.1.5", "172.20.0.1", "100.64.1.1", "::1", "fd00::1"])
    )
    assert all(map(is_private_address, ["::ffff:10.0.0.1"]))
    assert not any(
        map(is_private_address, ["169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1", "::", "8.8.8.8", "ff02::1", "x"])
    )
    assert not is_private_address("::ffff:169.254.169.254")


@given(st.ip_addresses(v=4))
def test_every_ipv4_address_that_is_not_global_is_refused(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert explain_refused_address(str(address))


@given(st.ip_addresses(v=6))
def test_every_ipv6_address_that_is_not_global_is_refused(address: IPv6Address) -> None:
    carried = address.ipv4_mapped or address.sixtofour or address.teredo or address in IPv6_NAT64
    if not carried and (not address.is_global or address.is_multicast):
        assert explain_refused_address(str(address))


class _Nat64:
    def __contains__(self, address: IPv6Address) -> bool:
        return int(address) >> 32 == 0x0064FF9B << 64


IPv6_NAT64 = _Nat64()


@given(st.text(max_size=300))
def test_arbitrary_text_never_crashes_the_ip_range_check(text: str) -> None:
    assert isinstance(explain_refused_host(text), str)
    plain = normalize_host(text)
    assert plain == "" or plain.isascii()
    assert normalize_host(plain) == plain
