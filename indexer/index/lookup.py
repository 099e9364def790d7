"""One lookup on its way: what to ask next, and what the replies say. No Redis in here."""

from collections.abc import Sequence
from typing import Any

import msgspec

from indexer.blocks import WIDTH
from indexer.holders import POOL_WIDE
from indexer.index.matches import Matches, Query
from indexer.index.slotmap import SlotMap

_BLOCKS_PER_CALL = 2048
"""Blocks of all queries of one call: some 0.6 ms of Redis, in which it serves nobody else."""


class Lookup:
    """Chains x tiers, asked in calls of a bounded number of blocks; at least one call, for the age."""

    def __init__(
        self,
        slots: SlotMap,
        chains: Sequence[str],
        tiers: Sequence[str],
        instances: Sequence[str] | None,
    ) -> None:
        self.finished = False
        self._slots = slots
        self._chains = chains
        self._tiers = tiers
        self._instances = instances
        self._done = 0
        self._age: float | None = None
        self._step = max(1, _BLOCKS_PER_CALL // max(1, len(chains) * len(tiers)))
        self._begin()

    def ask(self) -> list[Any]:
        """The script's arguments, by masks."""
        args = self._head(self._slots.nonce)
        for query in self._live():
            mask = query.alive.to_bytes((query.alive.bit_length() + 7) // 8, "little")
            args += (query.tier, query.chain + 1, mask)
        return args

    def take(self, reply: Sequence[Any]) -> None:
        """The reply to `ask`."""
        for query, runs in zip(self._live(), reply[1:], strict=True):
            query.take(runs, self._blocks_now(query))
        self._took(reply[0])

    def ask_by_names(self) -> list[Any]:
        """The script's arguments, by names: slots may change as they like."""
        args = self._head(b"?")
        for query in self._live():
            names = self._slots.tiers[query.tier].names(query.asked)
            args += (query.tier, query.chain + 1, msgspec.msgpack.encode(names))
        return args

    def take_by_names(self, reply: Sequence[Any]) -> None:
        """The reply to `ask_by_names`."""
        live = self._live()
        tiers: dict[str, dict[str, int]] = {
            tier: dict(known.slots) for tier, known in self._slots.tiers.items()
        }
        for query in live:
            tiers[query.tier] = {}
        for query, (slots, _) in zip(live, reply[1:], strict=True):
            names = self._slots.tiers[query.tier].names(query.asked)
            tiers[query.tier].update(
                (name, slot) for name, slot in zip(names, slots, strict=True) if slot >= 0
            )
        self._move_to(SlotMap(None, tiers))
        for query, (_, runs) in zip(live, reply[1:], strict=True):
            query.take(runs, self._blocks_now(query))
        self._took(reply[0])

    def move(self, slots: SlotMap) -> None:
        """Go on under other slots: from the start when nothing is counted yet."""
        if self._done == 0:
            self._slots = slots
            self._begin()
        else:
            self._move_to(slots)

    def matches(self) -> Matches:
        """The answer, once finished."""
        instances = self._instances
        if instances is None:
            asked = (self._slots.tiers[tier].masks for tier in self._tiers)
            instances = sorted({name for masks in asked for name in masks} - {POOL_WIDE})
        return Matches(self._age, instances, self._slots, self._queries)

    def _begin(self) -> None:
        masks = {}
        for tier in self._tiers:
            known = self._slots.tiers[tier]
            masks[tier] = known.all if self._instances is None else known.mask(self._instances)
        self._queries = [
            Query(tier, chain, masks[tier]) for chain in range(len(self._chains)) for tier in self._tiers
        ]

    def _live(self) -> list[Query]:
        """The queries that have a candidate alive and blocks left."""
        return [query for query in self._queries if query.alive and self._blocks_now(query)]

    def _blocks_now(self, query: Query) -> int:
        """Blocks of the query's chain that the present call covers."""
        return max(0, min(self._step, len(self._chains[query.chain]) // WIDTH - self._done))

    def _head(self, nonce: bytes | None) -> list[Any]:
        first, last = self._done * WIDTH, (self._done + self._step) * WIDTH
        return [nonce, len(self._chains), *(chain[first:last] for chain in self._chains)]

    def _took(self, age_ms: int) -> None:
        self._age = age_ms / 1000 if age_ms >= 0 else None
        self._done += self._step
        self.finished = not self._live()

    def _move_to(self, slots: SlotMap) -> None:
        for query in self._queries:
            query.move(self._slots.tiers[query.tier], slots.tiers[query.tier], fresh=self._done == 0)
        self._slots = slots
