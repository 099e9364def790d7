"""POST /v1/lookup, several pools, readiness, metrics and the description, through the real service."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.blocks import WIDTH, unpack
from tests import query_service, servers
from tests.index_fill import chain, fill
from tests.query_service import HIT_RATE, Service

SIZE = 4
PROMPT = list(range(200, 240))
BLOCKS = chain(PROMPT, SIZE)
LOOKUP = "/v1/lookup"


def first(count: int) -> str:
    return BLOCKS[: count * WIDTH]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    redis = servers.start("valkey")
    streams = {
        ("10.0.0.1", 0): {"l1": first(3), "l2": first(10)},
        ("10.0.0.1", 1): {"l1": first(7)},
        ("10.0.0.2", 0): {"l1": first(1)},
        ("10.0.0.9", 0): {},
    }
    states = {("10.0.0.2", 0): "suspect", ("10.0.0.9", 0): "lost"}
    l3 = {"10.0.0.1": first(2), "*": first(9)}
    asyncio.run(fill(redis.url, streams, l3, states=states, block_size=SIZE))
    try:
        with query_service.start(tmp_path_factory.mktemp("query"), redis.url) as running:
            yield running
    finally:
        redis.close()


def ask(service: Service, **question: Any) -> Any:
    code, headers, body = service.post(LOOKUP, question)
    assert code == 200, body
    assert float(headers["x-kv-index-age"]) >= 0
    return body


def match(blocks: int, total: int = 10) -> dict[str, float]:
    return {"blocks": blocks, "tokens": blocks * SIZE, "ratio": blocks / total}


def test_everything_known_is_told(service: Service) -> None:
    answer = ask(service, token_ids=PROMPT, block_size=SIZE)
    assert list(answer) == ["pool", "blocks", "instances", "l3_pool", "warnings"]
    assert (answer["pool"], answer["blocks"], answer["l3_pool"]) == ("default", 10, match(9))
    assert [instance["ip"] for instance in answer["instances"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.9"]
    told = answer["instances"][0]
    assert list(told) == ["ip", "l1", "l2", "l3", "ranks", "streams"]
    assert (told["l1"], told["l2"], told["l3"]) == (match(7), match(10), match(2))
    assert told["ranks"] == [
        {"rank": 0, "l1": match(3), "l2": match(10)},
        {"rank": 1, "l1": match(7), "l2": match(0)},
    ]
    assert [(stream["rank"], stream["state"]) for stream in told["streams"]] == [(0, "live"), (1, "live")]
    assert all(stream["age"] >= 0 for stream in told["streams"])
    warnings = "\n".join(answer["warnings"])
    assert "10.0.0.2:0 is suspect" in warnings
    assert "10.0.0.9:0 is lost" in warnings
    assert "10.0.0.1" not in warnings


def test_candidates_keep_their_order_and_only_their_streams_warn(service: Service) -> None:
    answer = ask(service, token_ids=PROMPT, block_size=SIZE, candidates=["x", "10.0.0.1", "x"])
    assert [instance["ip"] for instance in answer["instances"]] == ["x", "10.0.0.1", "x"]
    assert answer["instances"][0] == {
        "ip": "x", "l1": match(0), "l2": match(0), "l3": match(0), "ranks": [], "streams": [],
    }  # fmt: skip
    assert answer["warnings"] == []
    assert ask(service, token_ids=PROMPT, block_size=SIZE, candidates=[])["instances"] == []


def test_the_pool_wide_view_is_no_candidate(service: Service) -> None:
    answer = ask(service, token_ids=PROMPT, block_size=SIZE, candidates=["*", "10.0.0.2"])
    assert [instance["l3"] for instance in answer["instances"]] == [match(0), match(0)]
    assert answer["l3_pool"] == match(9), "however little the candidates hold"


def test_block_hashes_in_every_form_give_the_same(service: Service) -> None:
    expected = ask(service, token_ids=PROMPT, block_size=SIZE, candidates=["10.0.0.1"])["instances"][0]["l1"]
    names = unpack(BLOCKS)
    unsigned = [int(name, 16) for name in names]
    signed = [value - (1 << 64) if value >> 63 else value for value in unsigned]
    for hashes in (names, unsigned, signed, [name.upper() for name in names]):
        answer = ask(service, block_hashes=hashes, candidates=["10.0.0.1"])
        assert answer["instances"][0]["l1"] == expected, "tokens follow from the block size that engines told"


def test_only_the_tiers_asked_for_are_told(service: Service) -> None:
    answer = ask(service, token_ids=PROMPT, block_size=SIZE, tiers=["l1"], candidates=["10.0.0.1"])
    assert "l3_pool" not in answer
    assert set(answer["instances"][0]) == {"ip", "l1", "ranks", "streams"}
    assert answer["instances"][0]["ranks"][0] == {"rank": 0, "l1": match(3)}


def test_a_block_size_that_engines_do_not_have_is_said(service: Service) -> None:
    answer = ask(service, token_ids=PROMPT, block_size=5)
    assert any("block_size 5 was asked, but engines told 4" in warning for warning in answer["warnings"])


def test_no_blocks_is_zero(service: Service) -> None:
    answer = ask(service, token_ids=[1], block_size=SIZE, candidates=["10.0.0.1"])
    assert answer["blocks"] == 0
    assert answer["instances"][0]["l1"] == {"blocks": 0, "tokens": 0, "ratio": 0.0}


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ({}, "token_ids"),
        ({"token_ids": [1]}, "block_size"),
        ({"token_ids": [-1], "block_size": 1}, "token_ids[0]"),
        ({"block_hashes": ["xyz"]}, "block_hashes[0]"),
        ({"block_hashes": [], "pool": "other"}, "other"),
        ({"block_hashes": [], "extra": 1}, "extra"),
        ([], "object"),
    ],
)
def test_errors_have_message_and_status(service: Service, question: object, named: str) -> None:
    code, headers, body = service.post(LOOKUP, question)
    assert (code, headers["content-type"]) == (400, "application/json")
    assert list(body) == ["message", "status"]
    assert body["status"] == 400
    assert named in body["message"]


def test_other_methods_are_405(service: Service) -> None:
    code, headers, body = service.get(LOOKUP)
    assert (code, headers["allow"], body["status"]) == (405, "POST", 405)


def test_health_readiness_and_description(service: Service) -> None:
    assert service.get("/healthz")[2] == "ok"
    assert service.get("/readyz")[2] == {"ready": True, "reasons": []}
    assert service.get("/openapi.json")[2]["openapi"] == "3.1.0"


def test_metrics_count_requests_stages_and_blocks(service: Service) -> None:
    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", service.get("/metrics")[2], re.MULTILINE)
        return float(found[1]) if found else 0.0

    names = {
        'cache_indexer_http_requests_total{route="/kv-cache/hit-rate",status="200"}': 1,
        'cache_indexer_http_request_seconds_count{route="/kv-cache/hit-rate"}': 1,
        'cache_indexer_query_stage_seconds_count{stage="decode"}': 1,
        'cache_indexer_query_stage_seconds_count{stage="hash"}': 1,
        'cache_indexer_query_stage_seconds_count{stage="redis"}': 1,
        "cache_indexer_query_blocks_asked_total": 10,
        'cache_indexer_query_blocks_matched_total{tier="l1"}': 7,
        'cache_indexer_query_blocks_matched_total{tier="l3"}': 2,
    }
    before = {name: value(name) for name in names}
    asked = {"server_ip": ["10.0.0.2", "10.0.0.1"], "body": {"token_ids": PROMPT, "block_size": SIZE}}
    assert service.post(HIT_RATE, asked)[0] == 200
    assert {name: value(name) - before[name] for name in names} == names
    assert value('cache_indexer_query_index_age_seconds{pool="default"}') >= 0
    service.post("/nowhere", {})
    assert value('cache_indexer_http_requests_total{route="unknown",status="404"}') >= 1


@pytest.fixture
def two_pools(start_redis: Callable[..., servers.Server], tmp_path: Path) -> Iterator[Service]:
    """Pool `a` hashes with seed "0", pool `b` with seed "1"; each has an engine with the whole prompt."""
    redis = start_redis("valkey")
    asyncio.run(fill(redis.url, {("10.0.0.1", 0): {"l1": BLOCKS}}, pool="a"))
    asyncio.run(fill(redis.url, {("10.0.0.2", 0): {"l1": BLOCKS}, ("10.0.0.3", 0): {}}, pool="b"))
    pools = [
        {"name": "a", "discovery": {"source": "static"}},
        {"name": "b", "discovery": {"source": "static"}, "blockKey": {"pythonHashSeed": "1"}},
    ]
    with query_service.start(tmp_path, redis.url, discovery=None, pools=pools) as running:
        yield running


def test_a_candidate_finds_its_pool_and_its_hash(two_pools: Service) -> None:
    def ratios(ips: list[str]) -> list[float]:
        body = {"server_ip": ips, "body": {"token_ids": PROMPT, "block_size": SIZE}}
        code, _, answer = two_pools.post(HIT_RATE, body)
        assert code == 200, answer
        return [score["l1_hit_ratio"] for score in answer["server_score_list"]]

    assert ratios(["10.0.0.2", "10.0.0.1", "x"]) == [0.0, 1.0, 0.0], "10.0.0.2 holds hashes of another seed"
    assert ratios(["x"]) == [0.0]
    by_hash = {"block_hashes": unpack(BLOCKS)}
    code, _, answer = two_pools.post(LOOKUP, {**by_hash, "candidates": ["10.0.0.2"]})
    assert (code, answer["pool"], answer["instances"][0]["l1"]["ratio"]) == (200, "b", 1.0)
    assert two_pools.post(LOOKUP, {**by_hash, "pool": "a"})[2]["instances"][0]["ip"] == "10.0.0.1"
    for unclear in ({}, {"candidates": ["x"]}, {"candidates": ["10.0.0.1", "10.0.0.2"]}):
        code, _, answer = two_pools.post(LOOKUP, {**by_hash, **unclear})
        assert (code, "name one of a, b" in answer["message"]) == (400, True)
