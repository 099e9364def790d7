"""The whole of cache-indexer in this process, and a router that asks it: for demonstrations and tests."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from collector.app import run_collector
from collector.capture import Request
from collector.discovery import EngineTarget
from indexer.api.server import listen, serve
from indexer.config import Config, load
from indexer.index.reader import IndexReader
from indexer.index.state import StreamKey

LOOK_EVERY = 0.002
HIT_RATE = "/kv-cache/hit-rate"


def configure(
    redis_url: str, engines: Sequence[EngineTarget], overrides: Mapping[str, Any] | None = None
) -> Config:
    """A configuration for `engines` with both HTTP servers on free ports of loopback."""
    listed = [
        {
            "ip": engine.ip,
            "incarnation": engine.incarnation,
            "ranks": [{"events": rank.events, "replay": rank.replay} for rank in engine.ranks],
        }
        for engine in engines
    ]
    return load(
        env={},
        overrides={
            "redis.url": redis_url,
            # All of it shares one machine, which may be busy with something else.
            "redis.timeout": "5s",
            "collector.leaseDuration": "15s",
            "http.addr": "127.0.0.1:0",
            "collector.addr": "127.0.0.1:0",
            "discovery.source": "static",
            "discovery.static": {"engines": listed},
            **(overrides or {}),
        },
    )


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[str]:
    """Run collector and query service; yields the query service's URL. Their failure ends the block."""
    stop = asyncio.Event()
    sock = listen(config.http)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(config, sock, stop))
        group.create_task(run_collector(config, stop=stop))
        try:
            yield url
        finally:
            stop.set()


class Router:
    """Asks the query service as a router does."""

    def __init__(self, session: aiohttp.ClientSession, url: str, candidates: Sequence[str]) -> None:
        self._session = session
        self._url = url
        self._candidates = list(candidates)

    def question(
        self, tokens: Sequence[int], block_size: int, cache_salt: str | None = None
    ) -> dict[str, Any]:
        """The body of a hit-rate question about all candidates."""
        body = {"token_ids": list(tokens), "block_size": block_size, "cache_salt": cache_salt or ""}
        return {"server_ip": self._candidates, "body": body}

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The service's whole answer; raises aiohttp.ClientResponseError when it is none."""
        async with self._session.post(self._url + HIT_RATE, json=question) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer

    async def l1_blocks(self, ip: str, request: Request, block_size: int) -> int:
        """How many blocks of a request's prefix lie in the HBM of `ip`, as far as it could use them."""
        answer = await self.ask(self.question(request.prompt, block_size, request.cache_salt))
        scores = answer["server_score_list"]
        (ratio,) = {score["l1_hit_ratio"] for score in scores if score["server_ip"] == ip}
        return reusable(round(ratio * (len(request.prompt) // block_size)), request, block_size)


def reusable(blocks: int, request: Request, block_size: int) -> int:
    """`blocks`, less what an engine computes anew in any case: it always needs one token to begin with."""
    return min(blocks, (len(request.prompt) - 1) // block_size)


async def applied(reader: IndexReader, key: StreamKey, until: int) -> None:
    """Wait until the index has all batches of a stream before sequence number `until`.

    Waits for ever: give it a time-out.
    """
    # Redis has no event for it that would be as quick.
    while not any(s.key == key and s.next >= until for s in await reader.streams()):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY)
