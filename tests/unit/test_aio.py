"""Tasks that belong together end together."""

import asyncio

from collector.aio import end, until_first


async def test_who_ends_tasks_waits_for_them_also_when_cancelled_meanwhile() -> None:
    """A task that needs two cancellations, ended by one that is cancelled twice as well."""
    ending = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ending.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(stubborn())
    ender = asyncio.create_task(until_first(_wait_for(task), asyncio.sleep(3600)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ender.cancel()
    await ending.wait()
    ender.cancel()
    await asyncio.wait([ender], timeout=20)
    assert ender.cancelled()
    assert task.cancelled()


async def _wait_for(task: "asyncio.Task[None]") -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await end([task])
