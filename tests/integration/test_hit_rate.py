"""POST /kv-cache/hit-rate through the real service and a real index: answers, and every way to be refused."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.blocks import WIDTH
from tests import query_service, servers
from tests.index_fill import chain, fill
from tests.query_service import HIT_RATE, Service

SIZE = 4
PROMPT = list(range(100, 140))
BLOCKS = chain(PROMPT, SIZE)
SALTED = chain(PROMPT, SIZE, "tenant-a")


def first(count: int, blocks: str = BLOCKS) -> str:
    return blocks[: count * WIDTH]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over an index that some engines and Mooncake hosts filled."""
    redis = servers.start("valkey")
    hole = BLOCKS[: 2 * WIDTH] + BLOCKS[3 * WIDTH :]
    streams = {
        ("10.0.0.1", 0): {"l1": first(3)},
        ("10.0.0.1", 1): {"l1": first(7)},
        ("10.0.0.2", 0): {"l1": hole},
        ("10.0.0.3", 0): {"l1": first(5, SALTED), "l2": BLOCKS},
        ("fd00::1", 0): {"l1": BLOCKS},
    }
    asyncio.run(fill(redis.url, streams, {"10.0.0.1": first(1), "10.0.0.4": BLOCKS, "*": BLOCKS}))
    try:
        with query_service.start(tmp_path_factory.mktemp("query"), redis.url) as running:
            yield running
    finally:
        redis.close()


def ask(service: Service, ips: list[str], tokens: list[int] = PROMPT, size: int = SIZE, **more: Any) -> Any:
    code, headers, body = service.post(
        HIT_RATE, {"server_ip": ips, "body": {"token_ids": tokens, "block_size": size, **more}}
    )
    assert code == 200, body
    assert headers["content-type"] == "application/json"
    assert float(headers["x-kv-index-age"]) >= 0
    assert list(body) == ["server_score_list", "message", "status"]
    assert (body["message"], body["status"]) == ("", 0)
    assert [list(score) for score in body["server_score_list"]] == [
        ["server_ip", "l1_hit_ratio", "l3_hit_ratio"]
    ] * len(ips)
    assert [score["server_ip"] for score in body["server_score_list"]] == ips
    return [(score["l1_hit_ratio"], score["l3_hit_ratio"]) for score in body["server_score_list"]]


def test_best_rank_counts_and_l3_is_apart(service: Service) -> None:
    assert ask(service, ["10.0.0.1"]) == [(0.7, 0.1)]
    assert ask(service, ["10.0.0.4"]) == [(0.0, 1.0)]


def test_counting_stops_at_a_hole(service: Service) -> None:
    assert ask(service, ["10.0.0.2"]) == [(0.2, 0.0)]


def test_order_and_duplicates_are_kept_and_unknown_names_are_zero(service: Service) -> None:
    ips = ["fd00::1", "nobody", "10.0.0.1", "fd00::1", "", "*", "10.0.0.1:1", "\x00", "ü" * 300]
    assert ask(service, ips) == [(1.0, 0.0), (0.0, 0.0), (0.7, 0.1), (1.0, 0.0), *[(0.0, 0.0)] * 5]


def test_host_memory_is_not_l1_and_salt_counts(service: Service) -> None:
    assert ask(service, ["10.0.0.3"]) == [(0.0, 0.0)]
    assert ask(service, ["10.0.0.3", "10.0.0.1"], cache_salt="tenant-a") == [(0.5, 0.0), (0.0, 0.0)]
    assert ask(service, ["fd00::1"], cache_salt="") == [(1.0, 0.0)]


def test_a_tail_is_ignored_and_no_full_block_is_zero(service: Service) -> None:
    assert ask(service, ["fd00::1"], PROMPT[:7]) == [(1.0, 0.0)]
    for tokens in ([], PROMPT[:3]):
        assert ask(service, ["fd00::1"], tokens) == [(0.0, 0.0)]
    assert ask(service, ["fd00::1"], PROMPT, 2**31 - 1) == [(0.0, 0.0)]


def test_another_block_size_matches_nothing(service: Service) -> None:
    assert ask(service, ["fd00::1"], PROMPT, 5) == [(0.0, 0.0)]


def test_all_token_ids_up_to_64_bits_are_taken(service: Service) -> None:
    assert ask(service, ["fd00::1"], [0, 2**32, 2**63, 2**64 - 1]) == [(0.0, 0.0)]


def test_a_prompt_long_enough_for_a_thread_is_the_same(service: Service) -> None:
    assert ask(service, ["fd00::1"], PROMPT + [7] * 99_960) == [(10 / 25_000, 0.0)]


def test_last_of_a_duplicate_key_counts(service: Service) -> None:
    ips = b'"server_ip":["x"],"server_ip":["fd00::1"]'
    body = b'"body":{"block_size":4,"token_ids":[],"token_ids":%s}' % json.dumps(PROMPT).encode()
    code, _, answer = service.request("POST", HIT_RATE, b"{" + ips + b"," + body + b"}")
    assert code == 200
    assert answer["server_score_list"] == [{"server_ip": "fd00::1", "l1_hit_ratio": 1.0, "l3_hit_ratio": 0.0}]


def test_content_type_of_the_request_does_not_matter(service: Service) -> None:
    body = {"server_ip": ["x"], "body": {"token_ids": [], "block_size": 1}}
    for kind in ("text/plain", "application/json; charset=latin-1", "multipart/form-data"):
        assert service.request("POST", HIT_RATE, body, **{"Content-Type": kind})[0] == 200


def refused(answer: query_service.Answer, status: int) -> str:
    code, headers, body = answer
    assert code == status, body
    assert headers["content-type"] == "application/json"
    assert list(body) == ["server_score_list", "message", "status"]
    assert body["server_score_list"] == []
    assert body["status"] == status
    assert body["message"]
    return str(body["message"])


def request(
    tokens: str = "[1]", size: str = "1", ips: str = '["x"]', more: str = "", outer: str = ""
) -> bytes:
    return f'{{"server_ip":{ips},"body":{{"token_ids":{tokens},"block_size":{size}{more}}}{outer}}}'.encode()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "no body"),
        (b"   ", "JSON"),
        (b"\xef\xbb\xbf" + request(), "JSON"),
        (b"{", "JSON"),
        (b"null", "object"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"{}", "server_ip"),
        (request() + b" {}", "trailing"),
        (request() + b"x", "trailing"),
        (request().replace(b'"body"', b'"Body"'), "Body"),
        (request(outer=',"top_k":1'), "top_k"),
        (request(more=',"model":"m"'), "model"),
        (request(more=',"model":' + "[" * 100_000), "model"),
        (request(more=',"cache_salt":null'), "cache_salt"),
        (request(more=',"cache_salt":1'), "cache_salt"),
        (request(more=',"cache_salt":"\\ud800"'), "JSON"),
        (request(ips="[]"), "server_ip"),
        (request(ips="null"), "server_ip"),
        (request(ips='"x"'), "server_ip"),
        (request(ips='["x",1]'), "server_ip"),
        (request(ips='["x",null]'), "server_ip"),
        (request(ips='["\\udfff"]'), "JSON"),
        (b'{"body":{"token_ids":[],"block_size":1}}', "server_ip"),
        (b'{"server_ip":["x"]}', "body"),
        (b'{"server_ip":["x"],"body":null}', "body"),
        (b'{"server_ip":["x"],"body":[]}', "body"),
        (b'{"server_ip":["x"],"body":{"block_size":1}}', "token_ids"),
        (b'{"server_ip":["x"],"body":{"token_ids":[]}}', "block_size"),
        (request(size="0"), "block_size"),
        (request(size="-1"), "block_size"),
        (request(size="2147483648"), "block_size"),
        (request(size="1" + "0" * 30), "block_size"),
        (request(size="1.0"), "block_size"),
        (request(size="true"), "block_size"),
        (request(size='"1"'), "block_size"),
        (request(size="null"), "block_size"),
        (request("null"), "token_ids"),
        (request('"1"'), "token_ids"),
        (request("[1.0]"), "token_ids"),
        (request("[1e0]"), "token_ids"),
        (request("[true]"), "token_ids"),
        (request("[null]"), "token_ids"),
        (request('["1"]'), "token_ids"),
        (request("[[1]]"), "token_ids"),
        (request("[NaN]"), "JSON"),
        (request("[Infinity]"), "JSON"),
        (request("[-Infinity]"), "JSON"),
        (request("[01]"), "JSON"),
        (request("[+1]"), "JSON"),
        (request("[0x1]"), "JSON"),
        (request("[1,]"), "JSON"),
        (request("[-1]"), "token_ids[0]"),
        (request("[0,1,18446744073709551616]"), "token_ids[2]"),
        (request("[" + "9" * 400 + "]"), "token_ids[0]"),
        (request("[" + "9" * 5000 + "]"), "token_ids[0]"),
        (request("[" * 500_000), "token_ids"),
        (b"[" * 1_000_000, "object"),
        (b'{"a":' * 200_000, "a"),
        (request(ips='["').replace(b'"]', b'\xff"]') + b'"]}', "JSON"),
        (b'{"server_ip":["\xff"],"body":{"token_ids":[1],"block_size":1}}', "JSON"),
        (b'{"server_ip":["\xed\xa0\x80"],"body":{"token_ids":[1],"block_size":1}}', "JSON"),
        (b'{"\xff":1}', ""),
        (b"\x00" * 1000, "JSON"),
        (request().decode().encode("utf-16"), "JSON"),
    ],
)
def test_wrong_bodies_are_400_and_say_what_is_wrong(service: Service, body: bytes, named: str) -> None:
    message = refused(service.request("POST", HIT_RATE, body), 400)
    assert named in message
    assert len(message) < 600


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_405_and_told_which_is_allowed(service: Service, method: str) -> None:
    answer = service.request(method, HIT_RATE)
    assert answer[0] == 405
    assert answer[1]["allow"] == "POST"
    if method != "HEAD":
        refused(answer, 405)


@pytest.mark.parametrize("path", ["/", "/kv-cache/hit-rate/", "/match_sort", "/%ff", "/healthz/x"])
def test_unknown_routes_are_404_in_json(service: Service, path: str) -> None:
    code, headers, body = service.post(path, {})
    assert (code, headers["content-type"], body["status"]) == (404, "application/json", 404)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FLIPS = st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255))
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "server_ip": st.lists(st.text(max_size=12), max_size=3) | ANY,
        "body": st.fixed_dictionaries(
            {},
            optional={
                "token_ids": st.lists(st.integers(-2, 2**65), max_size=5) | ANY,
                "block_size": st.integers(-1, 2**32) | ANY,
                "cache_salt": st.text(max_size=4) | ANY,
                "more": ANY,
            },
        )
        | ANY,
    },
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=NEARLY, cut=st.none() | st.integers(0, 400), flip=FLIPS)
def test_no_request_is_ever_a_500(
    service: Service, value: object, cut: int | None, flip: tuple[int, int] | None
) -> None:
    body = bytearray(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if flip is not None and flip[0] < len(body):
        body[flip[0]] = flip[1]
    code, _, answer = service.request("POST", HIT_RATE, bytes(body[:cut]))
    assert code in (200, 400)
    assert answer["status"] == (0 if code == 200 else 400)
    assert isinstance(answer["server_score_list"], list)
    assert bool(answer["message"]) == (code == 400)
