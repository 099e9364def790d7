"""The write side of the index (signatures first; see the docstrings)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from indexer.index.state import Apply, Lease, Outcome, Renewal, StreamKey, StreamState, Swept


class IndexWriter:
    """Writes to one pool's index. Every write shows the lease's token; FencedError: another one leads.

    All methods raise IndexUnavailableError when Redis does not answer within `timeout` seconds: whether the
    write happened is then unknown, and calling again with the same arguments is safe.
    """

    def __init__(self, client: Any, pool: str, timeout: float = 0.5) -> None:
        raise NotImplementedError

    async def acquire(self, member: str, warm: bool, ttl: float) -> Lease | None:
        """Try to lead for `ttl` seconds; None: somebody leads. Registers `member` as a standby if so."""
        raise NotImplementedError

    async def stand_by(self, member: str, warm: bool) -> float | None:
        """Register as standby without trying to lead; seconds left of the lease, None when nobody leads."""
        raise NotImplementedError

    async def renew(self, token: str, ttl: float, *, confirm: bool = True) -> Renewal:
        """Prolong the lease. `confirm`: the leader hears its streams, so the index is current as of now."""
        raise NotImplementedError

    async def release(self, token: str) -> None:
        """Stop leading, at once; nothing happens when somebody else leads."""
        raise NotImplementedError

    async def withdraw(self, member: str) -> None:
        """Leave the standby list."""
        raise NotImplementedError

    async def streams(self) -> list[StreamState]:
        """Every stream, sorted by key."""
        raise NotImplementedError

    async def apply(self, token: str, entries: Sequence[Apply]) -> tuple[int, list[Outcome]]:
        """Apply batches; (rev, an outcome for each entry). IndexFullError: out of memory, nothing changed."""
        raise NotImplementedError

    async def open(
        self,
        token: str,
        key: StreamKey,
        expect_life: str | None,
        life: str,
        incarnation: str,
        next: int,
        stamp: bytes,
        state: str,
        wipe: bool = True,
    ) -> tuple[int, StreamState]:
        """Begin a new life; LifeError unless the current one is `expect_life` (None: no stream) or `life`."""
        raise NotImplementedError

    async def end(self, token: str, key: StreamKey, life: str) -> int:
        """The stream is gone: retire its holders, delete its hash. Returns rev; LifeError for another life."""
        raise NotImplementedError

    async def generation(self, holder: str) -> str:
        """What `reconcile` compares; "" for a holder that never was."""
        raise NotImplementedError

    async def reconcile(
        self, token: str, holder: str, generation: str, adds: str, removes: str, drop: bool = False
    ) -> tuple[int, str]:
        """Change one holder's blocks (packed), or drop it; (rev, new generation). LifeError: other generation."""
        raise NotImplementedError

    def holder_blocks(self, holder: str) -> AsyncIterator[list[str]]:
        """The holder's blocks, in chunks; a block may come twice."""
        raise NotImplementedError

    async def sweep(self, token: str, budget: int = 2000) -> Swept:
        """One bounded step of clearing retired slots; call again while `pending`."""
        raise NotImplementedError

    async def note(self, token: str, fields: Mapping[str, str]) -> int:
        """Set fields of the pool's `meta` hash ("" deletes one); returns rev."""
        raise NotImplementedError
