"""The names of a pool's keys. No other Python module builds one; the scripts build theirs from the prefix.

All keys of a pool share the hash tag `{<pool>}`, hence one Redis Cluster slot.
"""

import re

from msgspec import Struct

_POOL = re.compile(r"[A-Za-z0-9._/-]{1,100}")


class Keys(Struct, frozen=True):
    """Key names of one pool. Raises ValueError for a pool name that would break the hash tag."""

    pool: str

    def __post_init__(self) -> None:
        if not _POOL.fullmatch(self.pool):
            raise ValueError(f"pool name {self.pool!r}: allowed are letters, digits and . _ / -")

    @property
    def prefix(self) -> str:
        """What every key of the pool begins with; KEYS[1] of every script."""
        return f"kvi:{{{self.pool}}}:"

    def blocks(self, tier: str) -> str:
        """HASH block -> bitmap."""
        return f"{self.prefix}blocks:{tier}"

    def holder(self, holder: str) -> str:
        """SET of a holder's blocks."""
        return f"{self.prefix}holder:{holder}"

    def aside(self, tier: str, slot: int) -> str:
        """SET of the blocks whose bitmaps may still carry a retired slot's bit."""
        return f"{self.prefix}aside:{tier}:{slot}"

    def slots(self, tier: str) -> str:
        """HASH holder -> slot."""
        return f"{self.prefix}slots:{tier}"

    def retired(self, tier: str) -> str:
        """SET of slots that the sweeper still clears."""
        return f"{self.prefix}retired:{tier}"

    def generations(self, tier: str) -> str:
        """HASH holder -> generation, for holders without an event stream."""
        return f"{self.prefix}gen:{tier}"

    def ended(self, name: str) -> str:
        """STRING with PX: the last life (generation) of a stream (holder) that is gone."""
        return f"{self.prefix}ended:{name}"

    @property
    def meta(self) -> str:
        """HASH: schema, time of the last write, hash configuration, findings."""
        return f"{self.prefix}meta"
