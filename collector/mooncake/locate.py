"""Asking a master where keys lie, the gentlest way it knows."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from collector.mooncake.client import CONNECTIONS, MasterClient, askable, batchable
from collector.mooncake.errors import MasterError
from collector.mooncake.probe import Lookup
from collector.mooncake.view import Places

BATCH = 500
"""Keys in one URL: best between 100 and 2,000, and far below any limit of a proxy on the way."""


async def locate(
    client: MasterClient, lookup: Lookup, keys: Sequence[str]
) -> AsyncIterator[dict[str, Places]]:
    """Yield the places of `keys` as they come, in bounded pieces. Raises MasterError at the first failure.

    A key is left out while it is being written, when it has gone, and when no URL can name it.
    """
    if lookup is Lookup.SINGLE:
        batched: list[str] = []
        singles = [key for key in keys if askable(key)]
    else:
        batched, singles = [], []
        for key in keys:
            if batchable(key):
                batched.append(key)
            elif askable(key):
                singles.append(key)
    for start in range(0, len(batched), BATCH):
        piece = batched[start : start + BATCH]
        yield await client.batch_places(piece, decoded=lookup is Lookup.READ_ONLY)
    for start in range(0, len(singles), BATCH):
        found, error = await _one_by_one(client, singles[start : start + BATCH])
        # Never ask twice for what was answered before a failure: each answer is a lease.
        yield found
        if error is not None:
            raise error


async def _one_by_one(
    client: MasterClient, keys: Sequence[str]
) -> tuple[dict[str, Places], MasterError | None]:
    found: dict[str, Places] = {}
    waiting = iter(keys)

    async def work() -> None:
        for key in waiting:
            places = await client.places(key)
            if places is not None:
                found[key] = places

    workers = [asyncio.ensure_future(work()) for _ in range(CONNECTIONS)]
    error = None
    try:
        for done in asyncio.as_completed(workers):
            await done
    except MasterError as failure:
        error = failure
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return found, error
