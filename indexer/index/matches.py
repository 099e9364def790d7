"""From runs to counts: how far each holder's blocks reach into a chain."""

from collections.abc import Mapping, Sequence

from indexer.holders import POOL_WIDE
from indexer.index.slotmap import SlotMap, TierSlots

_WORD = 0xFFFFFFFF
_NO_RANKS: Mapping[int, tuple[int, ...]] = {}


class Query:
    """One chain against one tier, while it is being answered: who is alive, and where the others fell out."""

    def __init__(self, tier: str, chain: int, alive: int) -> None:
        self.tier = tier
        self.chain = chain
        self.asked = alive
        """The bits of all holders that are asked about."""
        self.alive = alive
        self.length = 0
        """Blocks of the chain that were looked at; what is alive holds all of them."""
        self._fallen: dict[int, int] = {}

    def take(self, runs: Sequence[int], length: int) -> None:
        """Read the runs of the chain's next `length` blocks."""
        for i in range(0, len(runs), 3):
            first = runs[i + 1] * 32
            # Asked by names, the script also reports those who fell out in an earlier call.
            bits = runs[i + 2] & self.alive >> first & _WORD
            self.alive ^= bits << first
            position = self.length + runs[i]
            while position and bits:
                low = bits & -bits
                self._fallen[first + low.bit_length() - 1] = position
                bits ^= low
        self.length += length

    def count(self, slot: int) -> int:
        """Blocks that the slot's holder has from the chain's start on."""
        return self.length if self.alive >> slot & 1 else self._fallen.get(slot, 0)

    def move(self, old: TierSlots, new: TierSlots, *, fresh: bool) -> None:
        """Go on under other slots. A holder whose slot changed was emptied meanwhile: unless nothing is
        counted yet (`fresh`), it counts 0."""
        fallen: dict[int, int] = {}
        asked = alive = 0
        for name, slot in old.slots.items():
            now = new.slots.get(name)
            if now is None or not self.asked >> slot & 1:
                continue
            asked |= 1 << now
            if self.alive >> slot & 1:
                alive |= (fresh or now == slot) << now
            elif slot in self._fallen:
                fallen[now] = self._fallen[slot]
        self.asked, self.alive, self._fallen = asked, alive, fallen


class Matches:
    """How much of a prompt's prefix each holder has. Counts are blocks from block 0 on."""

    def __init__(
        self, age: float | None, instances: Sequence[str], slots: SlotMap, queries: Sequence[Query]
    ) -> None:
        self.age = age
        """Seconds since the index last moved or was confirmed current; None: never."""
        self.instances = tuple(instances)
        """The instances that were asked about: the given ones, or all known ones."""
        self._slots = slots
        self._queries: dict[str, list[Query]] = {}
        for query in queries:
            self._queries.setdefault(query.tier, []).append(query)

    def blocks(self, tier: str, instance: str) -> int:
        """The instance's best rank; 0 for one that is unknown. The pool-wide view is no instance."""
        return 0 if instance == POOL_WIDE else self._best(tier, instance)

    def ranks(self, tier: str, instance: str) -> dict[int, int]:
        """Blocks of each rank known in `tier` (l1, l2): the minimum over the rank's KV-cache groups."""
        return self._counts(tier, instance)

    def pool_wide(self, tier: str = "l3") -> int:
        """Blocks anywhere in the pool's shared memory (holder `l3:*`), if POOL_WIDE was asked about."""
        return self._best(tier, POOL_WIDE)

    def holders(self) -> list[str]:
        """Names of the holders that have the first block, sorted."""
        return sorted(
            name
            for tier, queries in self._queries.items()
            for name, slot in self._slots.tiers[tier].slots.items()
            if any(query.count(slot) for query in queries)
        )

    def _best(self, tier: str, instance: str) -> int:
        # Once for each candidate of each query: hence the loops, and no minimum of a single group.
        best = 0
        queries = self._queries.get(tier, ())
        for groups in self._slots.tiers[tier].ranks.get(instance, _NO_RANKS).values():
            for query in queries:
                count = query.count(groups[0]) if len(groups) == 1 else min(map(query.count, groups))
                if count > best:
                    best = count
        return best

    def _counts(self, tier: str, instance: str) -> dict[int, int]:
        queries = self._queries.get(tier)
        if not queries:
            return {}
        return {
            rank: max(min(map(query.count, groups)) for query in queries)
            for rank, groups in self._slots.tiers[tier].ranks.get(instance, _NO_RANKS).items()
        }
