"""Tasks that belong together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

AGAIN_SECONDS = 1.0


async def end(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel tasks and wait until they are over, whatever they end with.

    A library that meets a cancellation in the middle of an error may raise the error in its place, and a loop
    that lives through errors then goes on: so one that is still there is cancelled again.
    """
    all_tasks = set(tasks)
    left = {task for task in all_tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
    for task in all_tasks:
        if not task.cancelled():
            task.exception()  # seen, so that nobody warns of it


async def until_first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until one returns or raises; end the others, and raise what the first one raised."""
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(tasks)
    for task in done:
        task.result()
