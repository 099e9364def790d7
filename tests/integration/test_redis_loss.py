"""Redis goes away and comes back: bounded 500s, no invented zeros, recovery without help, clean ends."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import query_service, servers
from tests.index_fill import chain, fill
from tests.query_service import HIT_RATE, Service

PROMPT = list(range(64))
ASKED = {"server_ip": ["10.0.0.1"], "body": {"token_ids": PROMPT, "block_size": 16}}
NO_BLOCKS = {"server_ip": ["10.0.0.1"], "body": {"token_ids": [], "block_size": 16}}
LOOKUP = {"token_ids": PROMPT, "block_size": 16}


@pytest.fixture
def redis(start_redis: Callable[..., servers.Server]) -> servers.Server:
    """A Redis with a filled index that survives its process."""
    server = start_redis("valkey", options={"appendonly": "yes", "appendfsync": "always"})
    asyncio.run(fill(server.url, {("10.0.0.1", 0): {"l1": chain(PROMPT, 16)}}))
    return server


@pytest.fixture
def service(redis: servers.Server, tmp_path: Path) -> Iterator[Service]:
    with query_service.start(tmp_path, redis.url) as running:
        yield running


def assert_fails(service: Service) -> None:
    """Every valid question is a 500 that says why, each within a bounded time (a hang fails the socket)."""
    for body in (ASKED, NO_BLOCKS):
        code, _, answer = service.post(HIT_RATE, body)
        assert (code, answer["status"], answer["server_score_list"]) == (500, 500, [])
        assert "Redis" in answer["message"]
    code, _, answer = service.post("/v1/lookup", LOOKUP)
    assert (code, answer["status"]) == (500, 500)
    code, _, answer = service.get("/readyz")
    assert (code, answer["ready"]) == (503, False)
    assert answer["reasons"]
    assert service.post(HIT_RATE, {})[0] == 400
    assert service.get("/healthz")[0] == 200


def until_it_works(service: Service) -> None:
    deadline = time.monotonic() + 15
    while service.post(HIT_RATE, ASKED)[0] != 200:
        assert time.monotonic() < deadline, service.log
        time.sleep(0.05)
    assert_works(service)


def assert_works(service: Service) -> None:
    code, _, answer = service.post(HIT_RATE, ASKED)
    assert code == 200
    assert answer["server_score_list"][0]["l1_hit_ratio"] == 1.0
    assert service.get("/readyz")[0] == 200


def test_killed_and_back(redis: servers.Server, service: Service) -> None:
    assert_works(service)
    redis.kill()
    assert_fails(service)
    redis.start()
    until_it_works(service)


def test_frozen_and_back(redis: servers.Server, service: Service) -> None:
    assert_works(service)
    redis.pause()
    try:
        assert_fails(service)
    finally:
        redis.resume()
    until_it_works(service)


def test_absent_from_the_start(redis: servers.Server, tmp_path: Path) -> None:
    redis.kill()
    with query_service.start(tmp_path, redis.url) as service:
        assert_fails(service)
        redis.start()
        until_it_works(service)
        redis.kill()
        assert_fails(service)
        assert service.terminate() == 0


def test_ends_cleanly_while_redis_is_frozen(redis: servers.Server, service: Service) -> None:
    redis.pause()
    try:
        assert service.post(HIT_RATE, ASKED)[0] == 500
        assert service.terminate() == 0
    finally:
        redis.resume()


def test_killed_under_load(redis: servers.Server, service: Service) -> None:
    """Whatever is in flight at the moment of the kill is answered, rightly or with a 500."""
    answers: list[tuple[int, object]] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            code, _, body = service.post(HIT_RATE, ASKED)
            answers.append((code, [score["l1_hit_ratio"] for score in body["server_score_list"]]))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            time.sleep(0.3)
            redis.kill()
            time.sleep(0.3)
            redis.start()
        until_it_works(service)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert {code for code, _ in answers} == {200, 500}
    assert all(ratios == ([1.0] if code == 200 else []) for code, ratios in answers)


def test_a_flushed_index_is_cold_not_stale(redis: servers.Server, service: Service) -> None:
    assert float(service.post(HIT_RATE, ASKED)[1]["x-kv-index-age"]) >= 0
    redis.wipe()
    code, headers, answer = service.post(HIT_RATE, ASKED)
    assert code == 200
    assert answer["server_score_list"][0]["l1_hit_ratio"] == 0.0
    assert headers["x-kv-index-age"] == "never"
    assert any("never written" in warning for warning in service.post("/v1/lookup", LOOKUP)[2]["warnings"])
