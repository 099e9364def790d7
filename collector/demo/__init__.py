"""The demonstration: recorded engines, a real index, and a router's questions, in under a minute.

Everything is real except the engines, and those sent what real ones sent: an embedded Valkey, a collector
that subscribes over ZMQ, the HTTP service. Each recorded request is asked about before its own events go
out, as a router would ask; the answer must be what the engine itself found in its cache.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from importlib.resources import as_file, files
from statistics import median
from typing import Any

import aiohttp
from msgspec import Struct

from collector.capture import Capture, load
from collector.demo.show import Show
from collector.demo.stage import HIT_RATE, Router, applied, configure, running
from collector.embedded import Embedded
from collector.replayer import Replayer
from indexer.clock import monotonic
from indexer.config import Config
from indexer.errors import CacheIndexerError
from indexer.index.connect import connect
from indexer.index.keys import Keys
from indexer.index.reader import IndexReader
from indexer.index.state import StreamKey

MAIN, FOLLOWER, PARALLEL = "10.0.0.7", "10.0.0.8", "10.0.0.9"
FOLLOWER_STEPS = 80
PATIENCE = 20.0
"""Seconds for what takes milliseconds; then something is broken."""


class Score(Struct):
    """How the answers compare with what the engine did, and how long things took (seconds)."""

    equal: int = 0
    asked: int = 0
    reused_blocks: int = 0
    first_difference: str = ""
    answer_times: list[float] = []
    visible_times: list[float] = []

    @property
    def all_equal(self) -> bool:
        """Whether every answer was right (and there were any)."""
        return self.equal == self.asked > 0


def packaged(name: str) -> Capture:
    """A capture that comes with this package."""
    with as_file(files("collector") / "data" / f"{name}.jsonl.gz") as path:
        return load(path)


async def demonstrate(stay: asyncio.Event | None = None) -> Score:
    """Run the demonstration. `stay`: keep everything up at the end until it is set.

    Raises CacheIndexerError when a part doesn't work; wrong answers are in the score.
    """
    show = Show()
    conversations = packaged("conversations-0.18.0-a")
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(await Embedded.start())
        engines = {
            MAIN: Replayer(conversations),
            FOLLOWER: Replayer(conversations),
            PARALLEL: Replayer(packaged("capture-0.18.0-dp2")),
        }
        for engine in engines.values():
            await stack.enter_async_context(engine)
        config = configure(valkey.url, [engine.target(ip) for ip, engine in engines.items()])
        url = await stack.enter_async_context(running(config))
        client = await connect(config.redis)
        stack.push_async_callback(client.aclose)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        router = Router(session, url, list(engines))
        reader = IndexReader(client, config.pools[0].name, config.redis.timeout)

        _introduce(show, config, engines, url)
        for engine in engines.values():
            await _in_time(engine.subscribed(), "the collector subscribes to the engines")
        await engines[PARALLEL].play()
        score = await _converse(show, engines, router, reader)
        await _show_question(show, router, url, conversations)
        await _show_index(show, client, valkey, Keys(config.pools[0].name))
        _judge(show, score)
        if stay is not None:
            show.line(f"\nStill running: query {url}{HIT_RATE}, index {valkey.url}. Ctrl-C ends it.")
            show.line(f"Look into it: cache-indexer stats --redis-url {valkey.url}")
            await stay.wait()
    return score


def _introduce(show: Show, config: Config, engines: dict[str, Replayer], url: str) -> None:
    key = config.pools[0].block_key
    show.heading("Three engines that play recordings of real ones, and one index")
    notes = {
        MAIN: "plays 250 requests of conversations",
        FOLLOWER: f"plays the first {FOLLOWER_STEPS} of them only",
        PARALLEL: "has two data-parallel ranks",
    }
    for ip, engine in engines.items():
        ports = ", ".join(rank.events for rank in engine.target(ip).ranks)
        show.line(f"engine {ip}  vLLM {engine.capture.version}  {ports}  {notes[ip]}")
    show.line(f"index  {config.redis.url}   queries {url}")
    show.line(f"block hashes: {key.prefix_caching_hash_algo}, PYTHONHASHSEED={key.python_hash_seed}")


async def _converse(show: Show, engines: dict[str, Replayer], router: Router, reader: IndexReader) -> Score:
    """Ask about each request of the main engine, then let it handle that request."""
    main, follower = engines[MAIN], engines[FOLLOWER]
    block_size = main.capture.block_size or 0
    score = Score()
    published = 0
    show.heading("Each request is asked about before the engine gets it")
    with show.progress("requests", len(main.capture.steps)) as advance:
        while (step := main.next_step) is not None:
            for request in step.requests:
                start = monotonic()
                blocks = await router.l1_blocks(MAIN, request, block_size)
                score.answer_times.append(monotonic() - start)
                _compare(score, blocks, (request.cached or 0) // block_size, main.position)
            start = monotonic()
            await main.step()
            if main.position <= FOLLOWER_STEPS:
                await follower.step()
            published += len(step.frames)
            seen = applied(reader, StreamKey(MAIN, 0), published)
            await _in_time(seen, f"batch {published - 1} of {MAIN} becomes visible")
            if step.frames:
                score.visible_times.append(monotonic() - start)
            advance()
    return score


def _compare(score: Score, answered: int, reused: int, position: int) -> None:
    score.asked += 1
    score.reused_blocks += reused
    if answered == reused:
        score.equal += 1
    elif not score.first_difference:
        score.first_difference = f"request {position}: answered {answered} blocks, engine reused {reused}"


async def _show_question(show: Show, router: Router, url: str, capture: Capture) -> None:
    """A prompt whose system part two engines have, more of it one, and its last block nobody."""
    block_size = capture.block_size or 0
    question: dict[str, Any] = {}
    answer: dict[str, Any] = {}
    for step in reversed(capture.steps):
        prompt = step.requests[0].prompt
        tokens = [*prompt[: 4 * block_size], *reversed(prompt[:block_size])]
        question = router.question(tokens, block_size)
        answer = await router.ask(question)
        main, follower, _ = (score["l1_hit_ratio"] for score in answer["server_score_list"])
        if main > follower > 0:
            break
    show.heading("A router's question: who holds how much of this prompt's prefix?")
    show.command(f"curl -s {url}{HIT_RATE} -d '{json.dumps(question, separators=(',', ':'))}'")
    show.answer(answer)


async def _show_index(show: Show, client: Any, valkey: Embedded, keys: Keys) -> None:
    show.heading("The index in Redis")
    holder, stream = keys.holder(f"l1:{MAIN}:0"), f"{keys.prefix}stream:{MAIN}:0"
    for command in (
        ("SCARD", holder),
        ("SRANDMEMBER", holder, "3"),
        ("HMGET", stream, "state", "next", "batches", "stored", "removed"),
        ("HLEN", keys.blocks("l1")),
        ("HGETALL", keys.slots("l1")),
    ):
        quoted = [f"'{part}'" if "{" in part else part for part in command]
        show.command(f"redis-cli -p {valkey.port} {' '.join(quoted)}")
        show.redis_reply(await client.execute_command(*command))


def _judge(show: Show, score: Score) -> None:
    show.heading("Result")
    show.line(
        f"{score.reused_blocks} blocks were reused; an answer took "
        f"{median(score.answer_times) * 1000:.1f} ms, an event was visible after "
        f"{median(score.visible_times) * 1000:.1f} ms (medians)"
    )
    show.verdict(
        f"{score.equal} of {score.asked} answers equal what the engine itself reused", score.all_equal
    )
    if score.first_difference:
        show.line(f"first difference: {score.first_difference}")


async def _in_time(waiting: Any, what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await waiting
    except TimeoutError:
        raise CacheIndexerError(f"gave up after {PATIENCE:.0f} s waiting that {what}") from None
