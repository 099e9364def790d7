"""Tasks that belong together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until one returns or raises; end the others, and raise what the first one raised."""
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
