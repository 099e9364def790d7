"""Redis gone, frozen or refusing: bounded, typed, and one caller's failure is its own."""

import asyncio
from typing import Any

import pytest

from indexer.config.tree import Redis
from indexer.errors import CacheIndexerError, IndexUnavailableError
from indexer.index.connect import connect
from indexer.index.pipeline import Pipeline
from indexer.index.reader import IndexReader
from indexer.index.scripts import Scripts
from indexer.index.state import StreamKey
from indexer.index.writer import IndexWriter
from tests.integration.index.conftest import POOL, PREFIX, Index, Opener, packed
from tests.ports import free_port

A = StreamKey("10.0.0.1", 0)


async def test_nobody_listens() -> None:
    client = await connect(Redis(url=f"redis://127.0.0.1:{free_port()}/0"))
    try:
        for call in (
            IndexReader(client, POOL, 0.5).lookup([packed(1)], ["l1"], ["x"]),
            IndexReader(client, POOL, 0.5).ready(),
            IndexWriter(client, POOL, 0.5).acquire("m", True, 2),
        ):
            with pytest.raises(IndexUnavailableError):
                await call
    finally:
        await client.aclose()


async def test_a_frozen_server_costs_the_time_out_and_no_more(start_redis: Any, open_index: Opener) -> None:
    server = start_redis("valkey")
    index = await open_index(server)
    await index.open(A)
    await index.store(A, 0, 1)
    reader = IndexReader(index.client, POOL, 0.3)
    assert (await reader.lookup([packed(1)], ["l1"], None)).blocks("l1", A.ip) == 1
    server.pause()
    calls = [asyncio.create_task(reader.lookup([packed(1)], ["l1"], None)) for _ in range(100)]
    done, late = await asyncio.wait(calls, timeout=5)
    assert not late
    assert all(isinstance(call.exception(), IndexUnavailableError) for call in done)
    with pytest.raises(IndexUnavailableError, match="in time"):
        await IndexWriter(index.client, POOL, 0.3).renew(index.token, 60)
    server.resume()
    assert (await reader.lookup([packed(1)], ["l1"], None)).blocks("l1", A.ip) == 1
    await index.check()


async def test_a_server_that_comes_back_is_used_again(start_redis: Any, open_index: Opener) -> None:
    server = start_redis("valkey", options={"appendonly": "yes", "appendfsync": "always"})
    index = await open_index(server)
    await index.open(A)
    await index.store(A, 0, 1)
    await asyncio.gather(*(index.count(packed(1), A.ip) for _ in range(20)))
    server.kill()
    with pytest.raises(IndexUnavailableError):
        await index.count(packed(1), A.ip)
    server.start()
    assert await index.count(packed(1), A.ip) == 1


async def test_a_replica_refuses_writes(index_here: Index, start_redis: Any) -> None:
    replica = start_redis("valkey", replica_of=index_here.server)
    client = replica.aclient()
    try:
        with pytest.raises(IndexUnavailableError, match=r"(?i)readonly|read only"):
            await IndexWriter(client, POOL, 5).renew(index_here.token, 60)
    finally:
        await client.aclose()


async def test_one_failing_call_of_a_batch_does_not_fail_its_neighbours(index: Index) -> None:
    pipeline = Pipeline(Scripts(index.client), PREFIX, 5)
    too_long = packed(*range(1001))
    calls = [pipeline.call("audit", "blocks", "l1", too_long if n % 7 == 3 else packed(n)) for n in range(60)]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    for n, reply in enumerate(replies):
        if n % 7 == 3:
            assert isinstance(reply, CacheIndexerError)
            assert "at most 1000" in str(reply)
        else:
            assert reply == []


async def test_a_caller_that_gives_up_takes_nobody_along(index: Index) -> None:
    pipeline = Pipeline(Scripts(index.client), PREFIX, 5)
    calls = [asyncio.create_task(pipeline.call("audit", "slots")) for _ in range(40)]
    await asyncio.sleep(0)
    for call in calls[2::3]:
        call.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(reply, asyncio.CancelledError) for reply in replies[2::3])
    assert [reply for n, reply in enumerate(replies) if n % 3 != 2] == [[]] * 27
    assert await pipeline.call("audit", "slots") == []


async def test_concurrent_lookups_share_round_trips(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.count(packed(1), A.ip)
    batches: list[int] = []
    make = index.client.pipeline

    def counting(**options: Any) -> Any:
        pipe = make(**options)
        execute = pipe.execute

        async def counted(**more: Any) -> Any:
            batches.append(len(pipe))
            return await execute(**more)

        pipe.execute = counted
        return pipe

    reader = IndexReader(index.client, POOL, 5)
    await reader.lookup([packed(1)], ["l1"], None)
    index.client.pipeline = counting  # type: ignore[attr-defined]
    await reader.lookup([packed(1)], ["l1"], None)
    assert batches == [], "a lone lookup goes at once, by itself"
    counts = await asyncio.gather(*(reader.lookup([packed(1)], ["l1"], [A.ip]) for _ in range(100)))
    assert [matches.blocks("l1", A.ip) for matches in counts] == [1] * 100
    assert max(batches) > 50


async def test_pool_names_that_would_break_the_hash_tag_are_refused(index_here: Index) -> None:
    for name in ("", "a}b", "a b", "a\n", "{x", "*"):
        with pytest.raises(ValueError, match="pool name"):
            IndexReader(index_here.client, name)


async def test_pools_do_not_see_each_other(index_here: Index) -> None:
    index = index_here
    await index.open(A)
    await index.store(A, 0, 1)
    other = IndexReader(index.client, "other", 5)
    assert await other.instances() == []
    assert (await other.lookup([packed(1)], ["l1"], [A.ip])).blocks("l1", A.ip) == 0
