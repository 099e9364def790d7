"""Long work in one event loop with a lease to renew."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

STEP = 2000
"""Items between two breaths: a few milliseconds of the work done here."""


async def gently(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, letting other tasks run now and then. `items` must not change meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if number % STEP == 0:
            await asyncio.sleep(0)
