"""The read side of the index (signatures first; see the docstrings)."""

from collections.abc import Sequence
from typing import Any

from indexer.index.state import Stats, StreamState


class Matches:
    """How much of a prompt's prefix each holder has. Counts are blocks from block 0 on."""

    age: float | None
    """Seconds since the index last moved or was confirmed current; None: never."""
    instances: tuple[str, ...]
    """The instances that were asked about: the given ones, or all known ones."""

    def blocks(self, tier: str, instance: str) -> int:
        """The instance's best rank; 0 for one that is unknown."""
        raise NotImplementedError

    def ranks(self, tier: str, instance: str) -> dict[int, int]:
        """Blocks of each rank known in `tier` (l1, l2): the minimum over the rank's KV-cache groups."""
        raise NotImplementedError

    def pool_wide(self, tier: str = "l3") -> int:
        """Blocks anywhere in the pool's shared memory (holder `l3:*`)."""
        raise NotImplementedError


class IndexReader:
    """Answers from the index; holds a cache of slots only. Safe to share between tasks of one loop.

    Every method raises IndexUnavailableError within `timeout` seconds when Redis is away.
    """

    def __init__(self, client: Any, pool: str, timeout: float = 0.5) -> None:
        raise NotImplementedError

    async def lookup(
        self, chains: Sequence[str], tiers: Sequence[str], instances: Sequence[str] | None
    ) -> Matches:
        """Match packed `chains` (alternatives of one prompt: the best counts) against `instances` (None: all)."""
        raise NotImplementedError

    async def instances(self) -> list[str]:
        """Names of the instances that hold or held blocks or have a stream, sorted."""
        raise NotImplementedError

    async def streams(self) -> list[StreamState]:
        """Every stream, sorted by key."""
        raise NotImplementedError

    async def holders(self, block: str) -> list[str]:
        """Names of the holders of one block, sorted."""
        raise NotImplementedError

    async def stats(self) -> Stats:
        """Sizes, leadership, streams."""
        raise NotImplementedError

    async def meta(self) -> dict[str, str]:
        """The pool's `meta` hash: schema, hash configuration, findings of the self-check."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Raise unless Redis answers, scripts load, the schema fits and nothing may be evicted.

        IndexUnavailableError, SchemaError, or ConfigError (maxmemory-policy).
        """
        raise NotImplementedError
