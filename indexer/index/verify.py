"""Check that the index agrees with itself.

Pages of the bitmaps and of the sets are read by scanning, and each page is then checked by a script at one
instant, so the check runs beside writers without false alarms, in bounded memory.
"""

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from indexer.blocks import WIDTH
from indexer.holders import TIERS
from indexer.index.keys import Keys
from indexer.index.scripts import Scripts, bounded

_PAGE = 250
_MAX_FINDINGS = 100


class Report(Struct, frozen=True):
    """What was looked at, and what is wrong: the first 100 findings in words, and how many there are.

    `bits` (set bits of all bitmaps) and `members` (of all holders' sets, and of those that are being swept)
    are equal in an index that nobody writes to meanwhile.
    """

    pool: str
    blocks: int
    bits: int
    members: int
    findings: tuple[str, ...]
    finding_count: int

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.finding_count


async def verify(client: Any, pool: str, timeout: float = 5.0) -> Report:  # noqa: ASYNC109 - of each call
    """Check a whole pool: sets and bitmaps agree, slots are dense, nothing is left over.

    Reads everything: O(bits). IndexUnavailableError when Redis does not answer one call within `timeout`.
    """
    return await _Check(client, Keys(pool), timeout).run()


class _Check:
    def __init__(self, client: Any, keys: Keys, timeout: float) -> None:
        self._client = client
        self._keys = keys
        self._timeout = timeout
        self._scripts = Scripts(client)
        self._blocks = self._bits = self._members = self._count = 0
        self._findings: list[str] = []

    async def run(self) -> Report:
        await self._audit("slots")
        for tier in TIERS:
            await self._bitmaps(tier)
            await self._sets(tier)
        await self._leftovers()
        return Report(
            self._keys.pool, self._blocks, self._bits, self._members, tuple(self._findings), self._count
        )

    async def _audit(self, *args: Any) -> None:
        found = await bounded(self._scripts.call("audit", self._keys.prefix, *args), self._timeout)
        self._count += len(found)
        room = _MAX_FINDINGS - len(self._findings)
        self._findings += [finding.decode(errors="backslashreplace") for finding in found[:room]]

    async def _bitmaps(self, tier: str) -> None:
        async for page in self._pages("HSCAN", self._keys.blocks(tier)):
            self._blocks += len(page)
            self._bits += sum(int.from_bytes(bitmap).bit_count() for bitmap in page.values())
            odd = [name for name in page if len(name) != WIDTH]
            for name in odd:
                self._count += 1
                self._findings.append(f"{tier}: field {name!r} is no block")
                del page[name]
            await self._in_pages("blocks", tier, list=[*page])

    async def _sets(self, tier: str) -> None:
        slots = await self._run("HGETALL", self._keys.slots(tier))
        retired = await self._run("SMEMBERS", self._keys.retired(tier))
        owners = [
            *((slot, name, self._keys.holder(name.decode())) for name, slot in slots.items()),
            *((slot, b"", self._keys.aside(tier, int(slot))) for slot in retired),
        ]
        for slot, owner, key in owners:
            async for page in self._pages("SSCAN", key):
                self._members += len(page)
                await self._in_pages("set", tier, slot, owner, list=page)

    async def _leftovers(self) -> None:
        prefix = self._keys.prefix
        for kind in ("holder", "aside"):
            names: list[str] = []
            async for key in self._client.scan_iter(match=f"{prefix}{kind}:*", count=1000):
                names.append(key.decode().removeprefix(prefix))
                if len(names) == _PAGE:
                    await self._audit("keys", *names)
                    names.clear()
            if names:
                await self._audit("keys", *names)

    async def _in_pages(self, *args: Any, list: list[bytes]) -> None:
        """A scan's page may be bigger than asked for."""
        for i in range(0, len(list), _PAGE):
            await self._audit(*args, b"".join(list[i : i + _PAGE]))

    async def _pages(self, scan: str, key: str) -> AsyncIterator[Any]:
        cursor = b"0"
        while True:
            cursor, page = await self._run(scan, key, cursor, "COUNT", _PAGE)
            yield page
            if int(cursor) == 0:
                return

    async def _run(self, *command: Any) -> Any:
        return await bounded(self._client.execute_command(*command), self._timeout)
