"""A call to Redis that is cancelled ends as cancelled, whenever the cancellation comes."""

import asyncio

from indexer.config import load
from indexer.index.connect import connect
from indexer.index.writer import IndexWriter
from tests.servers import Server


async def test_no_cancellation_is_lost(redis_server: Server) -> None:
    config = load(None, {}, {"redis.url": redis_server.url}).redis
    client = await connect(config)
    index = IndexWriter(client, "default", config.timeout)
    for turns in range(200):
        call = asyncio.create_task(index.streams())
        for _ in range(turns % 20):
            await asyncio.sleep(0)
        if not call.done():
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
    await client.aclose()
