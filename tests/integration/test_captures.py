"""The main path on recorded engines: real ZMQ, real Valkey, real HTTP; nothing in between is left out."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import pytest
import redis

from collector.capture import Capture, Request, load
from collector.demo.stage import Router, applied, configure, running
from collector.replayer import Replayer
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import StreamKey

DATA = Path(__file__).parents[1] / "data"
CONVERSATIONS = "conversations-0.18.0-a.jsonl.gz"
CAPTURES = sorted(path.name for path in DATA.glob("c*.jsonl.gz"))
IP = "10.0.0.7"
PATIENCE = 60


class Stage(NamedTuple):
    """Everything that runs in a test."""

    engine: Replayer
    router: Router
    reader: IndexReader
    url: str
    session: aiohttp.ClientSession

    async def applied(self) -> None:
        """Wait until the index has all that the engine has published."""
        steps = self.engine.capture.steps[: self.engine.position]
        for rank in range(self.engine.capture.ranks):
            published = sum(1 for step in steps for frame in step.frames if frame.rank == rank)
            await applied(self.reader, StreamKey(IP, rank), published)

    async def lookup(self, request: Request, block_size: int) -> int:
        """Blocks of a request's prefix in the engine's HBM, by everything that its hash depends on."""
        question = {
            "token_ids": request.prompt,
            "block_size": block_size,
            "cache_salt": request.cache_salt or "",
            "lora_name": request.lora_name,
            "lora_path": request.lora_path,
            "candidates": [IP],
        }
        async with self.session.post(f"{self.url}/v1/lookup", json=question) as response:
            answer = await response.json()
            assert response.status == 200, answer
        (instance,) = answer["instances"]
        return instance["l1"]["blocks"]


@asynccontextmanager
async def stage(capture: Capture, redis_url: str, **replayer):
    hashing = {
        "blockKey.pythonHashSeed": capture.seed,
        "blockKey.prefixCachingHashAlgo": capture.algo,
    }
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Replayer(capture, **replayer))
        config = configure(redis_url, [engine.target(IP)], hashing)
        url = await stack.enter_async_context(running(config))
        client = await connect(config.redis)
        stack.push_async_callback(client.aclose)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await engine.subscribed()
        reader = IndexReader(client, config.pools[0].name, config.redis.timeout)
        yield Stage(engine, Router(session, url, [IP]), reader, url, session)


def block(value: int | bytes) -> str:
    """A hash as sent, in the form that the index has it: its last 64 bits as hex."""
    return value[-8:].hex() if isinstance(value, bytes) else f"{value % 2**64:016x}"


def fold(capture: Capture) -> dict[str, set[str]]:
    """What each holder has in the end, by nothing but the events' own meaning."""
    held: dict[str, set[str]] = {}
    for frame in capture.frames:
        blocks = held.setdefault(f"l1:{IP}:{frame.rank}", set())
        _, events, _ = msgspec.msgpack.decode(frame.payload)
        for event in events:
            if isinstance(event, list):
                kind, hashes = event[0], event[1] if len(event) > 1 else []
            else:
                kind, hashes = event["type"], event.get("block_hashes", [])
            if kind == "AllBlocksCleared":
                blocks.clear()
            elif kind == "BlockStored":
                blocks.update(map(block, hashes))
            elif kind == "BlockRemoved":
                blocks.difference_update(map(block, hashes))
            else:
                raise AssertionError(f"the capture has an event that this test does not know: {kind}")
    return {holder: blocks for holder, blocks in held.items() if blocks}


def in_redis(url: str) -> dict[str, set[str]]:
    """What each holder has, read as anybody may who knows the key names."""
    prefix = "kvi:{default}:holder:"
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return {key.removeprefix(prefix): client.smembers(key) for key in client.scan_iter(f"{prefix}*")}


@pytest.mark.parametrize("name", CAPTURES)
async def test_index_equals_the_fold_of_the_events(name, redis_server):
    capture = load(DATA / name)
    expected = fold(capture)
    assert sum(map(len, expected.values()))
    async with stage(capture, redis_server.url) as s:
        await s.engine.play()
        await s.applied()
        assert in_redis(redis_server.url) == expected
        for state in await s.reader.streams():
            assert state.state == "live", state
            assert state.counters.get("gaps", 0) == 0


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != CONVERSATIONS])
async def test_a_request_that_was_served_is_found_over_http(name, redis_server):
    """After each single request its whole prompt is in the index: the engine has just computed it."""
    capture = load(DATA / name)
    block_size = capture.block_size or 32
    async with stage(capture, redis_server.url) as s:
        found = 0
        while (step := await s.engine.step()) is not None:
            await s.applied()
            if len(step.requests) == 1 and step.frames:
                (request,) = step.requests
                assert await s.lookup(request, block_size) == len(request.prompt) // block_size
                found += 1
        assert found >= 4


async def test_conversation_oracle(redis_server):
    """Asked before a request's own events, the answer is what the engine then took from its cache."""
    capture = load(DATA / CONVERSATIONS)
    block_size = capture.block_size
    assert block_size is not None
    equal = []
    async with stage(capture, redis_server.url) as s:
        while (step := s.engine.next_step) is not None:
            for request in step.requests:
                answered = await s.router.l1_blocks(IP, request, block_size)
                equal.append(answered * block_size == request.cached)
            await s.engine.step()
            await s.applied()
    assert (sum(equal), len(equal)) == (250, 250)
