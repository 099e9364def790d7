"""The query core: from prompts and candidates to matched blocks. Knows hash rules and indexes, no HTTP.

A question goes to the pool whose engines it is about. With one pool that is settled; with several, a
candidate is looked up in the pool that knows it, so that routers need not name pools.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from indexer.blocks import WIDTH
from indexer.caveats import caveats
from indexer.clock import monotonic
from indexer.config import Pool as PoolConfig
from indexer.engines import engine
from indexer.engines.base import HashRule, Prompt
from indexer.errors import CacheIndexerError, IndexUnavailableError
from indexer.holders import POOL_WIDE, TIERS
from indexer.index.reader import IndexReader, Matches
from indexer.index.state import StreamState

THREAD_TOKENS = 16_384
"""Longer prompts are hashed in a thread: 2 ms and more would hold up everyone else's answers."""


_RATED = ("l1", "l3")


class UnknownPoolError(CacheIndexerError):
    """The named pool is not configured, or several fit and none was named."""


class Pool(Struct, frozen=True):
    """A pool that can be asked."""

    name: str
    rule: HashRule
    reader: IndexReader


class Score(Struct, frozen=True, gc=False):
    """One candidate's matched blocks over the prompt's full blocks; 0 when it has none or is not known."""

    ip: str
    l1: float
    l3: float


class HitRates(Struct, frozen=True):
    """`scores` in the order asked, duplicates kept. `ages` is each asked pool's index age in seconds (None:
    never written). `best` is the longest prefix that one candidate holds, in blocks, by tier."""

    scores: list[Score]
    ages: Mapping[str, float | None]
    blocks: int
    best: Mapping[str, int]
    hash_seconds: float
    redis_seconds: float


class Question(Struct, frozen=True):
    """What `lookup` is asked: a `prompt`, or its packed `blocks` when the caller hashed it already."""

    prompt: Prompt | None = None
    blocks: str = ""
    block_size: int | None = None
    candidates: Sequence[str] | None = None
    tiers: Sequence[str] = TIERS
    pool: str | None = None


class Answer(Struct, frozen=True):
    """What `lookup` found. `total` counts the prompt's full blocks; `block_size` may be unknown (None)."""

    pool: str
    total: int
    block_size: int | None
    instances: tuple[str, ...]
    matches: Matches
    streams: Mapping[str, list[StreamState]]
    warnings: list[str]
    hash_seconds: float
    redis_seconds: float


class Query:
    """Answers for all pools. Every method raises IndexUnavailableError at most `timeout` seconds (spent on
    Redis) after Redis went away, and HashError for a prompt that no engine could have hashed."""

    def __init__(self, pools: Sequence[Pool], timeout: float) -> None:
        self.pools = tuple(pools)
        self._timeout = timeout

    async def hit_rate(
        self, server_ips: Sequence[str], token_ids: Sequence[int], cache_salt: str, block_size: int
    ) -> HitRates:
        """How much of the prompt each candidate holds in its own memory (l1) and in Mooncake memory (l3)."""
        prompt = Prompt(token_ids, block_size, cache_salt or None)
        total = len(token_ids) // block_size
        candidates = tuple(dict.fromkeys(ip for ip in server_ips if ip != POOL_WIDE))
        start = monotonic()
        async with self._bounded():
            asked = await self._asked(candidates)
        located = monotonic()
        chains = {pool.name: await _chains(pool.rule, prompt) for pool, _ in asked}
        hashed = monotonic()
        async with self._bounded(spent=located - start):
            found = await asyncio.gather(
                *(pool.reader.lookup(chains[pool.name], _RATED, ips) for pool, ips in asked)
            )
        answered = monotonic()
        l1, l3 = ({ip: max([m.blocks(tier, ip) for m in found]) for ip in candidates} for tier in _RATED)
        return HitRates(
            scores=[
                Score(ip, _ratio(l1.get(ip, 0), total), _ratio(l3.get(ip, 0), total)) for ip in server_ips
            ],
            ages={pool.name: m.age for (pool, _), m in zip(asked, found, strict=True)},
            blocks=total,
            best={"l1": max(l1.values(), default=0), "l3": max(l3.values(), default=0)},
            hash_seconds=hashed - located,
            redis_seconds=located - start + answered - hashed,
        )

    async def lookup(self, question: Question) -> Answer:
        """Everything known about a prompt in one pool. Raises UnknownPoolError, too."""
        start = monotonic()
        async with self._bounded():
            pool = await self._pool_for(question)
        located = monotonic()
        asked = None if question.candidates is None else (*question.candidates, POOL_WIDE)
        if question.prompt is not None:
            chains = await _chains(pool.rule, question.prompt)
        else:
            chains = [question.blocks]
        hashed = monotonic()
        async with self._bounded(spent=located - start):
            matches, streams, meta = await asyncio.gather(
                pool.reader.lookup(chains, question.tiers, asked),
                pool.reader.streams(question.candidates),
                pool.reader.meta(),
            )
        answered = monotonic()
        by_instance: dict[str, list[StreamState]] = {}
        for stream in streams:
            by_instance.setdefault(stream.key.ip, []).append(stream)
        instances = question.candidates
        if instances is None:
            instances = sorted({*matches.instances, *by_instance})
        told = {s.block_size for s in streams if s.block_size}
        return Answer(
            pool=pool.name,
            total=len(chains[0]) // WIDTH,
            block_size=question.block_size or (told.pop() if len(told) == 1 else None),
            instances=tuple(instances),
            matches=matches,
            streams=by_instance,
            warnings=caveats(matches.age, by_instance, meta, question.block_size),
            hash_seconds=hashed - located,
            redis_seconds=located - start + answered - hashed,
        )

    async def ready(self) -> list[str]:
        """Why queries cannot be answered now, a reason a pool; empty when they can."""
        return [reason for reason in await asyncio.gather(*map(self._not_ready, self.pools)) if reason]

    async def _not_ready(self, pool: Pool) -> str:
        try:
            async with self._bounded():
                await pool.reader.ready()
        except CacheIndexerError as error:
            return f"pool {pool.name}: {error}"
        return ""

    @asynccontextmanager
    async def _bounded(self, spent: float = 0.0) -> AsyncIterator[None]:
        """At most what is left of the time that one question may spend on Redis."""
        try:
            async with asyncio.timeout(max(self._timeout - spent, 0.001)):
                yield
        except TimeoutError:
            raise IndexUnavailableError(
                f"Redis did not answer within redis.timeout = {self._timeout:g}s"
            ) from None

    async def _asked(self, candidates: tuple[str, ...]) -> list[tuple[Pool, tuple[str, ...]]]:
        """Each pool that knows a candidate, with those; the first when none does, so that Redis is asked."""
        if len(self.pools) == 1:
            return [(self.pools[0], candidates)]
        known = await asyncio.gather(*(pool.reader.known(candidates) for pool in self.pools))
        asked = [(pool, tuple(mine)) for pool, mine in zip(self.pools, known, strict=True) if mine]
        return asked or [(self.pools[0], ())]

    async def _pool_for(self, question: Question) -> Pool:
        names = ", ".join(pool.name for pool in self.pools)
        if question.pool is not None:
            for pool in self.pools:
                if pool.name == question.pool:
                    return pool
            raise UnknownPoolError(f"pool: {question.pool!r} is not configured; known: {names}")
        if len(self.pools) == 1:
            return self.pools[0]
        fitting = [pool for pool, ips in await self._asked(tuple(question.candidates or ())) if ips]
        if len(fitting) != 1:
            raise UnknownPoolError(f"pool: name one of {names}; {len(fitting)} of them know the candidates")
        return fitting[0]


def build_pools(configs: Sequence[PoolConfig], readers: Mapping[str, IndexReader]) -> list[Pool]:
    """The configured pools, with `readers` by pool name. Raises HashError for an impossible blockKey."""
    return [Pool(pool.name, engine(pool.block_key).rule, readers[pool.name]) for pool in configs]


async def _chains(rule: HashRule, prompt: Prompt) -> list[str]:
    if len(prompt.token_ids) > THREAD_TOKENS:
        return await asyncio.to_thread(rule.chains, prompt)
    return rule.chains(prompt)


def _ratio(blocks: int, total: int) -> float:
    return blocks / total if total else 0.0
