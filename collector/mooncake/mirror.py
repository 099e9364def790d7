"""What the index in Redis says about L3, and the writes that bring it in line with the views.

A leader starts from what Redis has, not from nothing. Each write compares the holder's generation, so a late
copy of an earlier write changes nothing. After anything that went wrong it is unknown what Redis has: then it
is read again, and everything is compared.
"""

from collections.abc import Callable, Iterable

from collector.mooncake.view import View
from indexer.errors import IndexFullError, IndexUnavailableError, LifeError
from indexer.holders import parse
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter

CHUNK = 2000
"""Blocks in one write: about 3 ms of Redis."""

_PREFIX = "l3:"


class Mirror:
    """L3 of one pool. `token` is the leader's; FencedError goes through to the caller."""

    def __init__(self, writer: IndexWriter, reader: IndexReader, token: str) -> None:
        self._writer = writer
        self._reader = reader
        self._token = token
        self._held: dict[str, set[str]] = {}
        self._generations: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._unsure = True
        self._went_back = False
        self._rev = 0

    async def load(self) -> None:
        """Read every L3 holder's blocks from Redis. Raises IndexUnavailableError."""
        stats = await self._reader.stats()
        held: dict[str, set[str]] = {}
        generations: dict[str, str] = {}
        for holder in stats.tiers["l3"].holders:
            # The generation first: a change meanwhile makes the next write fail, not go astray.
            generations[holder] = await self._writer.generation(holder)
            held[holder] = set()
            async for blocks in self._writer.holder_blocks(holder):
                held[holder].update(blocks)
        self._held, self._generations = held, generations
        self._unsure = self._went_back = False

    def blocks(self) -> dict[str, frozenset[str]]:
        """The instances ("*" for the pool) that Redis has for each block, as of `load` and later writes."""
        holders: dict[str, set[str]] = {}
        for holder, blocks in self._held.items():
            instance = parse(holder).instance
            for block in blocks:
                holders.setdefault(block, set()).add(instance)
        return {block: frozenset(instances) for block, instances in holders.items()}

    def sizes(self) -> dict[str, int]:
        """Blocks of each instance in Redis, as of `load` and later writes."""
        return {parse(holder).instance: len(blocks) for holder, blocks in self._held.items() if blocks}

    def distrust(self) -> None:
        """Redis may have lost writes: compare everything at the next `write`."""
        self._unsure = True

    def touch(self, blocks: Iterable[str]) -> None:
        """These blocks' holders may have changed."""
        self._waiting.update(blocks)

    async def write(self, views: Iterable[View], *, removing: bool) -> None:
        """Write what the views' union says of every touched block. `removing` False: additions only.

        Raises FencedError, and IndexUnavailableError or IndexFullError: then call again later.
        """
        views = list(views)
        compare_all = self._unsure
        try:
            if compare_all:
                await self.load()
                self._waiting = {block for view in views for block in view.claims}
                self._waiting.update(*self._held.values())
            await self._write(lambda block: _union(views, block), removing)
        except LifeError:
            # Somebody wrote with our token and is not us: an attempt of ours that we thought had failed.
            self._unsure = True
        except (IndexUnavailableError, IndexFullError):
            self._unsure = True
            raise
        else:
            # Removals that had to wait are found again by comparing everything.
            self._unsure = not removing or self._went_back
            self._waiting.clear()

    async def _write(self, holders: Callable[[str], frozenset[str]], removing: bool) -> None:
        adds: dict[str, list[str]] = {}
        removes: dict[str, list[str]] = {}
        for block in self._waiting:
            wanted = {_PREFIX + instance for instance in holders(block)}
            for holder in wanted:
                if block not in self._held.get(holder, ()):
                    adds.setdefault(holder, []).append(block)
            if removing:
                for holder, held in self._held.items():
                    if holder not in wanted and block in held:
                        removes.setdefault(holder, []).append(block)
        for holder in sorted(adds.keys() | removes.keys()):
            await self._change(holder, adds.get(holder, []), removes.get(holder, []))

    async def _change(self, holder: str, adds: list[str], removes: list[str]) -> None:
        if not adds and len(removes) == len(self._held[holder]):
            await self._reconcile(holder, [], removes, drop=True)
            return
        for start in range(0, len(removes), CHUNK):
            await self._reconcile(holder, [], removes[start : start + CHUNK])
        for start in range(0, len(adds), CHUNK):
            await self._reconcile(holder, adds[start : start + CHUNK], [])

    async def _reconcile(
        self, holder: str, adds: list[str], removes: list[str], *, drop: bool = False
    ) -> None:
        if holder not in self._generations:
            self._generations[holder] = await self._writer.generation(holder)
        packed = "" if drop else "".join(removes)
        rev, generation = await self._writer.reconcile(
            self._token, holder, self._generations[holder], "".join(adds), packed, drop
        )
        self._generations[holder] = generation
        held = self._held.setdefault(holder, set())
        held.update(adds)
        held.difference_update(removes)
        self._went_back |= rev < self._rev
        self._rev = rev


def _union(views: Iterable[View], block: str) -> frozenset[str]:
    return frozenset().union(*(view.holders(block) for view in views))
