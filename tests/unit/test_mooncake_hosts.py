"""Addresses in a master's answers, and the instances they belong to."""

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.mooncake.hosts import Endpoint, Hosts, endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.244.1.12:16199", "10.244.1.12", 16199),
        ("10.244.1.12:16199:npu_3", "10.244.1.12", 16199),
        ("10.244.1.12", "10.244.1.12", None),
        ("::1:15530", "::1", 15530),
        ("[::1]:17001", "::1", 17001),
        ("[FD00:0:0::1]:17001", "fd00::1", 17001),
        ("fd00::1:17001:npu_0", "fd00::1", 17001),
        ("fd00::1", "fd00::1", None),
        ("[fd00::1]", "fd00::1", None),
        ("::ffff:10.0.0.1:5000", "10.0.0.1", 5000),
        ("localhost:17001", "localhost", 17001),
        ("Engine-0.engines.default.svc:17001", "engine-0.engines.default.svc", 17001),
        ("engine-0", "engine-0", None),
    ],
)
def test_endpoints(text: str, host: str, port: int | None) -> None:
    assert endpoint(text) == Endpoint(host, port)


@given(st.integers(0, 2**128 - 1).map(IPv6Address), st.integers(10000, 65535), st.booleans())
def test_ipv6_with_and_without_brackets(address: IPv6Address, port: int, exploded: bool) -> None:
    text = address.exploded if exploded else str(address)
    assert endpoint(f"{text}:{port}") == endpoint(f"[{text}]:{port}")
    expected = str(address.ipv4_mapped or address)
    assert endpoint(f"[{text}]:{port}").host == expected


@given(st.text(max_size=60))
def test_any_text_is_some_endpoint(text: str) -> None:
    assert Hosts(["10.0.0.1"]).instance(text) is not None


def test_several_endpoints_of_one_pod_are_one_instance() -> None:
    hosts = Hosts(["10.0.0.1", "10.0.0.2"])
    assert {hosts.instance(f"10.0.0.1:{port}") for port in (15000, 15001, 16999)} == {"10.0.0.1"}


def test_an_instance_keeps_the_spelling_of_discovery() -> None:
    assert Hosts(["FD00::0:1"]).instance("fd00::1:15530") == "FD00::0:1"


def test_a_host_that_discovery_does_not_know_is_named_by_itself() -> None:
    assert Hosts(["10.0.0.1"]).instance("[fd00::9]:1234") == "fd00::9"


def test_names_are_followed_to_an_address() -> None:
    hosts = Hosts(["10.0.0.1"], names={"Engine-0": "10.0.0.1"})
    assert hosts.instance("engine-0:17001") == "10.0.0.1"
    assert hosts.instance("engine-1:17001") == "engine-1"


def test_host_network_is_told_apart_by_port() -> None:
    hosts = Hosts(["10.0.0.1:17001", "10.0.0.1:17002", "10.0.0.2"])
    assert hosts.instance("10.0.0.1:17002") == "10.0.0.1:17002"
    assert hosts.instance("10.0.0.2:15999") == "10.0.0.2"
    assert hosts.instance("10.0.0.1:15999") == "10.0.0.1", "a random port tells nothing"


def test_host_network_with_random_ports_goes_by_segment_name() -> None:
    hosts = Hosts(
        ["10.0.0.1:17001", "10.0.0.1:17002"],
        segments={"10.0.0.1:15347": "10.0.0.1:17001", "10.0.0.1:16112": "10.0.0.1:17002"},
    )
    assert hosts.instance("10.0.0.1:16112") == "10.0.0.1:17002"
