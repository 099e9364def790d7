"""What the index in Redis says about L3, and the writes that bring it in line with the views.

A leader starts from what Redis has, not from nothing. Each write compares the holder's generation, so a late
copy of an earlier write changes nothing. After anything that went wrong it is unknown what Redis has: then it
is read again, and everything is compared.
"""

from collections.abc import Iterable

from collector.leadership import Reign
from collector.mooncake.gently import gently
from collector.mooncake.view import View
from indexer.errors import IndexFullError, IndexUnavailableError, LifeError
from indexer.holders import POOL_WIDE, parse
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter

_ATTEMPTS = 3
_PREFIX = "l3:"


class Mirror:
    """L3 of one pool, written in the name of `reign`; FencedError goes through to the caller."""

    def __init__(self, writer: IndexWriter, reader: IndexReader, reign: Reign) -> None:
        self._writer = writer
        self._reader = reader
        self._reign = reign
        self._held: dict[str, set[str]] = {}
        self._generations: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._unsure = True
        self._compare = False

    async def load(self) -> None:
        """Read every L3 holder's blocks from Redis; the next `write` compares all of them and all that the
        views have. Raises IndexUnavailableError."""
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
        self._waiting.update(*held.values())
        self._unsure, self._compare = False, True

    def blocks(self) -> dict[str, frozenset[str]]:
        """The instances ("*" for the pool) that Redis has for each block, as of `load` and later writes."""
        holders: dict[str, set[str]] = {}
        for holder, blocks in self._held.items():
            instance = parse(holder).instance
            for block in blocks:
                holders.setdefault(block, set()).add(instance)
        return {block: frozenset(instances) for block, instances in holders.items()}

    def distrust(self) -> None:
        """Redis may have lost writes: read it again and compare everything at the next `write`."""
        self._unsure = True

    def touch(self, blocks: Iterable[str]) -> None:
        """These blocks' holders may have changed."""
        self._waiting.update(blocks)

    async def write(self, views: Iterable[View], *, removing: bool) -> None:
        """Write what the views' union says of every touched block. `removing` False: additions only.

        Raises FencedError, and IndexUnavailableError or IndexFullError: then call again later.
        """
        views = list(views)
        for _ in range(_ATTEMPTS):
            try:
                if self._unsure:
                    await self.load()
                if self._compare:
                    self._waiting.update(*(view.claims for view in views))
                    self._compare = False
                await self._bring_in_line(views, removing)
            except LifeError:
                # A write of ours arrived that we thought had failed, or Redis lost one.
                self._unsure = True
                continue
            except (IndexUnavailableError, IndexFullError):
                self._unsure = True
                raise
            return

    async def _bring_in_line(self, views: list[View], removing: bool) -> None:
        # What is touched from here on may have changed after it was looked at.
        touched, self._waiting = self._waiting, set()
        wanted: dict[str, set[str]] = {}
        async for block in gently(touched):
            for instance in frozenset().union(*(view.holders(block) for view in views)):
                wanted.setdefault(_PREFIX + instance, set()).add(block)
        # The pool-wide holder last: what it has is then known for its instances too, whenever we may die.
        pool_wide = _PREFIX + POOL_WIDE
        for holder in sorted(wanted.keys() | self._held.keys(), key=lambda name: (name == pool_wide, name)):
            held, want = self._held.get(holder, set()), wanted.get(holder, set())
            adds = want - held
            removes = (held & touched) - want if removing else set()
            if adds or removes:
                await self._change(holder, adds, removes)
        if not removing:
            self._waiting |= touched

    async def _change(self, holder: str, adds: set[str], removes: set[str]) -> None:
        if holder not in self._generations:
            self._generations[holder] = await self._writer.generation(holder)
        drop = not adds and len(removes) == len(self._held[holder])
        before = self._reign.rev
        rev, generation = await self._writer.reconcile(
            self._reign.token,
            holder,
            self._generations[holder],
            "".join(adds),
            "" if drop else "".join(removes),
            drop,
        )
        if drop:
            # Redis forgets a dropped holder's generation after a while.
            del self._generations[holder], self._held[holder]
        else:
            self._generations[holder] = generation
            self._held[holder] = (self._held.get(holder, set()) | adds) - removes
        self._reign.saw(before, rev)
