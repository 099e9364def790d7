"""The write side of the index. Every write shows the lease's token and what it believes of the stream."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from indexer.blocks import WIDTH
from indexer.index import batches, replies
from indexer.index.keys import Keys
from indexer.index.scripts import Scripts, bounded
from indexer.index.state import Apply, Lease, Outcome, Renewal, StreamKey, StreamState, Swept

_BLOCKS_PER_CALL = 2000
"""Some 4 ms of Redis."""
_RUN = _BLOCKS_PER_CALL * WIDTH
_PAGE = 1000


class IndexWriter:
    """Writes to one pool's index.

    FencedError: the token is not the leader's. IndexUnavailableError: no answer within `timeout` seconds;
    whether the write happened is then unknown. Calling again with the same arguments is safe: `apply` answers
    DUP, `open` the stream as it is, `reconcile` raises LifeError if the first one had arrived.
    """

    def __init__(self, client: Any, pool: str, timeout: float = 0.5) -> None:
        self._keys = Keys(pool)
        self._client = client
        self._scripts = Scripts(client)
        self._timeout = timeout
        self._sweeping: tuple[Any, Any, Any] = ("", "", "0")

    async def acquire(self, member: str, warm: bool, ttl: float) -> Lease | None:
        """Try to lead for `ttl` seconds; None: somebody leads, and `member` is registered as standby.

        ConfigError: Redis may evict keys. SchemaError: the index is of another version.
        """
        token = f"{member}/{secrets.token_hex(8)}"
        got, *rest = await self._call("lead", "acquire", token, _ms(ttl), member, int(warm))
        return Lease(token, rest[0], rest[1]) if got else None

    async def stand_by(self, member: str, warm: bool) -> float | None:
        """Register as standby without trying to lead; seconds left of the lease, None when nobody leads."""
        _, left = await self._call("lead", "stand_by", "", 0, member, int(warm))
        return left / 1000 if left >= 0 else None

    async def renew(self, token: str, ttl: float, *, confirm: bool = True) -> Renewal:
        """Prolong the lease. `confirm`: the leader hears its streams, so the index is current as of now."""
        fresh = max(2 * ttl, 3.0)
        rev, warm = await self._call("lead", "renew", token, _ms(ttl), _ms(fresh), int(confirm))
        return Renewal(rev, warm)

    async def release(self, token: str) -> None:
        """Stop leading, at once; nothing happens when somebody else leads."""
        await self._call("lead", "release", token)

    async def withdraw(self, member: str) -> None:
        """Leave the list of standbys."""
        await self._call("lead", "withdraw", "", 0, member)

    async def streams(self) -> list[StreamState]:
        """Every stream, sorted by key."""
        return replies.streams(await self._call("streams"))

    async def apply(self, token: str, entries: Sequence[Apply]) -> tuple[int, list[Outcome]]:
        """Apply batches; (rev, an outcome for each entry). The rules stand in lua/apply.lua.

        Entries go in order, in calls of about 2,000 blocks; an entry is never cut, so keep one below that.
        IndexFullError: out of memory, and a call with stores changed nothing; one without works.
        """
        rev, outcomes = 0, []
        for call in batches.calls(entries, _BLOCKS_PER_CALL):
            rev, *results = await self._call("apply", token, _nonce(), *batches.arguments(call))
            outcomes += [
                Outcome(code.decode(), int(next_), stamp, life.decode())
                for code, next_, stamp, life in results
            ]
        return rev, outcomes

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
        """Begin a new life; (rev, the stream). Already in `life`: changes nothing.

        `expect_life` None: there is no such stream. LifeError: it is in another life, or `life` has ended.
        A life is named once: never take a name again. `wipe` retires the holders of the life before, in O(1).
        """
        if not life:
            raise ValueError("a life needs a name")
        rev, now_ms, flat = await self._call(
            "open", token, _nonce(), "open", key.name, expect_life or "",
            life, incarnation, next, stamp, state, int(wipe),
        )  # fmt: skip
        return rev, replies.stream(key.name, int(now_ms), flat)

    async def end(self, token: str, key: StreamKey, life: str) -> int:
        """The stream is gone: retire its holders, delete its hash. LifeError for another life."""
        (rev,) = await self._call("open", token, _nonce(), "end", key.name, life)
        return int(rev)

    async def generation(self, holder: str) -> str:
        """What `reconcile` compares; "" for a holder that never was."""
        tier = holder[:2]
        current = await self._run("HGET", self._keys.generations(tier), holder)
        return (current or await self._run("GET", self._keys.ended(holder)) or b"").decode()

    async def reconcile(
        self, token: str, holder: str, generation: str, adds: str, removes: str, drop: bool = False
    ) -> tuple[int, str]:
        """Change one holder's blocks (packed; removes first), or drop it; (rev, new generation).

        Goes in calls of about 2,000 blocks, each atomic. LifeError: another generation; read it and the
        holder's blocks anew.
        """
        runs = [("", removes[i : i + _RUN]) for i in range(0, len(removes), _RUN)]
        runs += [(adds[i : i + _RUN], "") for i in range(0, len(adds), _RUN)]
        rev = 0
        for add, remove in [("", "")] if drop else runs or [("", "")]:
            fresh = _nonce()
            rev = await self._call(
                "reconcile", token, _nonce(), holder, generation, fresh, add, remove, int(drop)
            )
            generation = fresh
        return rev, generation

    async def holder_blocks(self, holder: str) -> AsyncIterator[list[str]]:
        """The holder's blocks, in pages; a block may come twice, one that comes meanwhile may be missed."""
        key, cursor = self._keys.holder(holder), b"0"
        while True:
            cursor, page = await self._run("SSCAN", key, cursor, "COUNT", _PAGE)
            yield [block.decode() for block in page]
            if int(cursor) == 0:
                return

    async def sweep(self, token: str, budget: int = 2000) -> Swept:
        """One bounded step of clearing retired slots; call again while `pending`."""
        rev, *self._sweeping, cleared, freed, pending = await self._call(
            "sweep", token, *self._sweeping, budget
        )
        return Swept(rev, cleared, freed, pending)

    async def note(self, token: str, fields: Mapping[str, str]) -> int:
        """Set fields of the pool's `meta` hash ("" deletes one); returns rev."""
        return int(await self._call("note", token, *(part for item in fields.items() for part in item)))

    async def _call(self, script: str, *args: Any) -> Any:
        return await bounded(self._scripts.call(script, self._keys.prefix, *args), self._timeout)

    async def _run(self, *command: Any) -> Any:
        return await bounded(self._client.execute_command(*command), self._timeout)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _nonce() -> str:
    """Fresh for every attempt: two attempts with one nonce could leave different slots under it."""
    return secrets.token_hex(8)
