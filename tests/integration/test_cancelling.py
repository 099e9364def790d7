"""A task that is cancelled while it talks to Redis ends, whatever the client library does to it."""

import asyncio
import random

from indexer.index.reader import IndexReader
from tests.servers import Server


async def test_no_cancellation_is_lost(redis_server: Server) -> None:
    """Before Python 3.12 about half of them were: a leader that should stop went on, and its stop hung."""
    client = redis_server.aclient()
    reader = IndexReader(client, "p", timeout=5)

    async def busy() -> None:
        for _ in range(100):
            await reader.meta()
        await asyncio.sleep(3600)

    moments = random.Random(0)
    for _ in range(100):
        task = asyncio.create_task(busy())
        await asyncio.sleep(moments.random() * 0.01)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
    await client.aclose()
