"""The read side of the index: mask in, runs out."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from indexer.errors import IndexUnavailableError
from indexer.holders import TIERS
from indexer.index import replies
from indexer.index.keys import Keys
from indexer.index.lookup import Lookup
from indexer.index.matches import Matches
from indexer.index.pipeline import Pipeline
from indexer.index.scripts import Scripts, SlotsChangedError
from indexer.index.slotmap import SlotMap
from indexer.index.state import Stats, StreamState

__all__ = ["IndexReader", "Matches"]

_REFUSALS = 2
"""After so many changes of slots under one lookup the script is asked by names, which it never refuses."""


class IndexReader:
    """Answers from the index; keeps nothing but the slots. Safe to share between the tasks of one loop.

    Every method raises IndexUnavailableError within `timeout` seconds when Redis is away, and SchemaError
    when the index is of another version.
    """

    def __init__(self, client: Any, pool: str, timeout: float = 0.5) -> None:
        self._keys = Keys(pool)
        self._timeout = timeout
        self._pipeline = Pipeline(Scripts(client), self._keys.prefix, timeout)
        self._slots: SlotMap | None = None
        self._fetching: asyncio.Task[SlotMap] | None = None

    async def lookup(
        self, chains: Sequence[str], tiers: Sequence[str], instances: Sequence[str] | None
    ) -> Matches:
        """Match packed `chains` (alternatives of one prompt: the best counts) for `instances` (None: all).

        The pool-wide view is looked at only where POOL_WIDE is among `instances`, since it may reach further
        into the chain than any candidate does.

        One round trip for up to 2,048 blocks, summed over chains and tiers. A longer chain goes on with those
        that are still alive; a holder that is emptied between two of these calls counts 0.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._lookup(chains, tiers, instances)
        except TimeoutError:
            raise IndexUnavailableError("Redis did not answer in time") from None

    async def instances(self) -> list[str]:
        """Names of the instances that have blocks or a stream, sorted."""
        slots = await self._fetch()
        return sorted(slots.instances | {state.key.ip for state in await self.streams()})

    async def known(self, instances: Sequence[str]) -> list[str]:
        """Those of `instances` that have blocks or a stream, in their order."""
        known = (await self._fetch()).instances
        if others := [instance for instance in instances if instance not in known]:
            known |= {state.key.ip for state in await self.streams(others)}
        return [instance for instance in instances if instance in known]

    async def streams(self, instances: Sequence[str] | None = None) -> list[StreamState]:
        """The streams of `instances` (None: all), sorted by key."""
        wanted = () if instances is None else (msgspec.msgpack.encode(instances),)
        return replies.streams(await self._pipeline.call("streams", *wanted))

    async def holders(self, block: str) -> list[str]:
        """Names of the holders of one block, sorted."""
        return (await self.lookup([block], TIERS, None)).holders()

    async def stats(self) -> Stats:
        """Sizes, leadership, streams."""
        return replies.stats(await self._pipeline.call("stats"), await self.streams())

    async def meta(self) -> dict[str, str]:
        """The pool's `meta` hash: schema, hash configuration, findings of the self-check."""
        return replies.text(await self._pipeline.call("meta"))

    async def ready(self) -> None:
        """Raise unless Redis answers, scripts run, the schema fits and nothing may be evicted.

        IndexUnavailableError, SchemaError, or ConfigError (maxmemory-policy).
        """
        await self._pipeline.call("ready")

    async def _lookup(
        self, chains: Sequence[str], tiers: Sequence[str], instances: Sequence[str] | None
    ) -> Matches:
        lookup = Lookup(self._slots or await self._fetch(), chains, tiers, instances)
        refusals = 0
        while not lookup.finished:
            if refusals >= _REFUSALS:
                lookup.take_by_names(await self._pipeline.call("lookup", *lookup.ask_by_names()))
                continue
            try:
                lookup.take(await self._pipeline.call("lookup", *lookup.ask()))
            except SlotsChangedError:
                refusals += 1
                lookup.move(await self._fetch())
        return lookup.matches()

    async def _fetch(self) -> SlotMap:
        """The slots as they are now, read again if they changed. Who asks meanwhile gets the same result."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_alone())
            # Retrieved here too, in case that every caller gives up before it fails.
            self._fetching.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._fetching)

    async def _fetch_alone(self) -> SlotMap:
        try:
            known = self._slots
            nonce, *tiers = await self._pipeline.call("slots", known.nonce if known else b"")
            if known and not tiers:
                return known
            self._slots = SlotMap(
                nonce,
                {
                    tier: {name.decode(): int(slot) for name, slot in replies.pairs(flat)}
                    for tier, flat in zip(TIERS, tiers, strict=True)
                },
            )
            return self._slots
        finally:
            self._fetching = None
