"""Lookups at the edges: sizes, unknown names, slots that change while a lookup is on its way."""

import asyncio
from typing import Any

import pytest

from indexer.index import lookup as lookup_module
from indexer.index.reader import IndexReader
from indexer.index.scripts import sha
from indexer.index.state import Apply, Op, StreamKey
from tests.integration.index.conftest import POOL, PREFIX, Index, Opener, block, packed, stamp
from tests.servers import Server

A = StreamKey("10.0.0.1", 0)
B = StreamKey("10.0.0.2", 0)


async def test_nothing_is_known_of_an_empty_index(index: Index) -> None:
    matches = await index.reader.lookup([packed(1, 2)], ["l1", "l3"], ["10.0.0.1"])
    assert (matches.blocks("l1", "10.0.0.1"), matches.pool_wide(), matches.ranks("l1", "x")) == (0, 0, {})
    assert (await index.reader.lookup([packed(1)], ["l1"], None)).instances == ()


async def test_no_blocks(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    for chains in ([], [""], ["", ""]):
        matches = await index.reader.lookup(chains, ["l1", "l2", "l3"], [A.ip])
        assert matches.blocks("l1", A.ip) == 0
        assert matches.age is not None


@pytest.mark.parametrize("blocks", [31, 32, 33, 160, 161, 672, 1696, 2047, 2048, 2049, 4097, 16384])
async def test_chains_end_where_they_end(index_here: Index, blocks: int) -> None:
    """Sizes around those of the chunks in a call, and of the calls."""
    index = index_here
    await index.open(A)
    await index.open(B)
    await index.store(A, 0, *range(blocks))
    await index.store(B, 0, *range(blocks - 1))
    chain = packed(*range(blocks))
    matches = await index.reader.lookup([chain, packed(5)], ["l1", "l3"], None)
    assert (matches.blocks("l1", A.ip), matches.blocks("l1", B.ip)) == (blocks, blocks - 1)
    longer = await index.reader.lookup([chain + packed(-1 % 2**64)], ["l1"], [A.ip])
    assert longer.blocks("l1", A.ip) == blocks


async def test_a_hole_ends_the_prefix(index: Index) -> None:
    """A binary search by holder would miss it."""
    await index.open(A)
    await index.store(A, 0, *range(1000))
    for batch, hole in enumerate((999, 500, 161, 31, 1, 0), 1):
        await index.apply(A, batch, Op("remove", "l1", 0, packed(hole)))
        assert await index.count(packed(*range(1000)), A.ip) == hole


@pytest.mark.parametrize("refusals", [2, 0])
async def test_a_thousand_candidates_that_fall_out_one_by_one(
    index_here: Index, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """Asked by mask, and by names, which come in no order."""
    index = index_here
    monkeypatch.setattr("indexer.index.reader._REFUSALS", refusals)
    streams = [StreamKey(f"10.1.{n // 250}.{n % 250}", 0) for n in range(1000)]
    chain = [block(n) for n in range(301)]
    held = [n * 7 % 300 + 1 for n in range(1000)]
    for key in streams:
        await index.open(key)
    await index.writer.apply(
        index.token,
        [
            Apply(key, "a", 0, 1, stamp(1), (Op("store", "l1", 0, "".join(chain[:length])),))
            for key, length in zip(streams, held, strict=True)
        ],
    )
    names = [key.ip for key in streams]
    matches = await index.reader.lookup(["".join(chain)], ["l1"], ["unknown", *reversed(names)])
    assert [matches.blocks("l1", name) for name in names] == held
    assert matches.blocks("l1", "unknown") == 0
    one = await index.reader.lookup(["".join(chain)], ["l1"], [names[97]])
    assert (one.blocks("l1", names[97]), one.blocks("l1", names[98])) == (held[97], 0), (
        "only one was asked about"
    )


async def test_masks_may_be_wider_than_bitmaps_and_bitmaps_than_masks(index: Index) -> None:
    streams = [StreamKey(f"10.1.0.{n}", 0) for n in range(100)]
    for key in streams:
        await index.open(key)
        await index.store(key, 0, 1)
    await index.store(streams[0], 1, 2)
    await index.store(streams[99], 1, 3)
    low, high = streams[0].ip, streams[99].ip
    for asked in ([low], [high], [low, high]):
        first = await index.reader.lookup([packed(1, 2)], ["l1"], asked)
        second = await index.reader.lookup([packed(1, 3)], ["l1"], asked)
        assert first.blocks("l1", low) == (2 if low in asked else 0)
        assert first.blocks("l1", high) == (1 if high in asked else 0)
        assert second.blocks("l1", low) == (1 if low in asked else 0)
        assert second.blocks("l1", high) == (2 if high in asked else 0)


async def test_the_best_of_several_chains_counts_for_each_holder(index: Index) -> None:
    await index.open(A)
    await index.open(B)
    await index.store(A, 0, 1, 2, 3)
    await index.store(B, 0, 11, 12)
    matches = await index.reader.lookup([packed(1, 2, 3), packed(11, 12, 3)], ["l1"], None)
    assert (matches.blocks("l1", A.ip), matches.blocks("l1", B.ip)) == (3, 2)


async def test_an_instance_counts_with_its_best_rank(index: Index) -> None:
    for rank, numbers in ((0, [1]), (1, [1, 2, 3]), (10, [2, 3])):
        await index.open(StreamKey(A.ip, rank))
        await index.store(StreamKey(A.ip, rank), 0, *numbers)
    matches = await index.reader.lookup([packed(1, 2, 3)], ["l1"], [A.ip])
    assert matches.ranks("l1", A.ip) == {0: 1, 1: 3, 10: 0}
    assert matches.blocks("l1", A.ip) == 3


async def test_one_round_trip_for_both_tiers(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, *range(500))
    await index.count(packed(1), A.ip)
    await index.client.config_resetstat()
    await index.reader.lookup([packed(*range(500))], ["l1", "l3"], [A.ip])
    stats = await index.client.info("commandstats")
    assert sum(stats[name]["calls"] for name in stats if name.startswith("cmdstat_eval")) == 1
    assert stats["cmdstat_hmget"]["calls"] <= 4


async def test_holders_that_appeared_are_seen_by_a_reader_that_knew_others(index: Index) -> None:
    stale = IndexReader(index.client, POOL, 5)
    await index.open(A)
    await index.store(A, 0, 1)
    assert (await stale.lookup([packed(1)], ["l1"], [A.ip, B.ip])).blocks("l1", A.ip) == 1
    await index.open(B)
    await index.store(B, 0, 1)
    assert (await stale.lookup([packed(1)], ["l1"], [A.ip, B.ip])).blocks("l1", B.ip) == 1


async def test_a_retired_holder_is_gone_at_once_for_a_reader_that_knew_it(index: Index) -> None:
    """Its bits stay until they are swept; only the nonce tells that the slot is nobody's."""
    await index.open(A)
    await index.open(B)
    await index.store(A, 0, 1)
    await index.store(B, 0, 1)
    assert await index.count(packed(1), A.ip) == 1
    await index.apply(A, 1, Op("clear", "l1"))
    assert await index.count(packed(1), A.ip) == 0
    assert await index.count(packed(1), B.ip) == 1
    await index.writer.end(index.token, B, "a")
    assert await index.count(packed(1), B.ip) == 0


async def test_a_counter_would_repeat_after_flushall_but_a_nonce_does_not(index: Index) -> None:
    """The same number of changes, after which the slots are dealt to others."""
    await index.open(A)
    await index.open(B)
    await index.store(A, 0, 1)
    await index.store(B, 0, 2)
    assert await index.count(packed(1), A.ip) == 1
    await index.client.flushall()
    await index.lead()
    await index.open(A)
    await index.open(B)
    await index.store(B, 0, 1)
    await index.store(A, 0, 2)
    assert (await index.count(packed(1), A.ip), await index.count(packed(1), B.ip)) == (0, 1)


class Interrupted:
    """A reader's client, on which something happens before each lookup."""

    def __init__(self, client: Any, before: Any) -> None:
        self._client, self._before, self.lookups = client, before, 0

    async def execute_command(self, *command: Any) -> Any:
        if command[1] == sha("lookup"):
            self.lookups += 1
            await self._before(self.lookups)
        return await self._client.execute_command(*command)


async def test_a_storm_of_slot_changes_does_not_starve_a_reader(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1, 2)
    serial = 0

    async def storm(_: int) -> None:
        nonlocal serial
        serial += 1
        await index.open(StreamKey("10.0.0.9", serial))
        await index.store(StreamKey("10.0.0.9", serial), 0, 1)

    client = Interrupted(index.client, storm)
    matches = await IndexReader(client, POOL, 5).lookup([packed(1, 2)], ["l1"], None)
    assert matches.blocks("l1", A.ip) == 2
    assert client.lookups == 3, "refused, refused, asked by names"


async def test_known_instances_have_blocks_or_a_stream(index: Index) -> None:
    """And slots that did not change are not read again: hidden from the reader, they are still known."""
    await index.open(A)
    await index.store(A, 0, 1)
    await index.open(StreamKey("fd00::2", 0))
    asked = ["x", "fd00::2", A.ip, "*", ""]
    assert await index.reader.known(asked) == ["fd00::2", A.ip]
    await index.client.rename(f"{PREFIX}slots:l1", f"{PREFIX}hidden")
    assert await index.reader.known(asked) == ["fd00::2", A.ip]
    await index.client.rename(f"{PREFIX}hidden", f"{PREFIX}slots:l1")
    await index.writer.end(index.token, A, "a")
    assert await index.reader.known(asked) == ["fd00::2"]
    await index.client.flushall()
    assert await index.reader.known(asked) == []


async def test_streams_of_some_instances(index: Index) -> None:
    for key in (A, StreamKey("fd00::2", 0), StreamKey("fd00::2", 1), StreamKey("fd00::", 2)):
        await index.open(key)
    assert [s.key.name for s in await index.reader.streams(["fd00::2", "x"])] == ["fd00::2:0", "fd00::2:1"]
    assert await index.reader.streams([]) == []
    assert len(await index.reader.streams()) == 4


@pytest.mark.parametrize("refusals", [0, 2])
async def test_slots_that_change_between_the_calls_of_a_long_chain(
    index: Index, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """One holder is emptied after its first blocks were counted, and gets another one's old slot."""
    monkeypatch.setattr(lookup_module, "_BLOCKS_PER_CALL", 64)
    monkeypatch.setattr("indexer.index.reader._REFUSALS", refusals)
    chain = packed(*range(200))
    short = StreamKey("10.0.0.3", 0)
    for key, length in ((A, 200), (B, 200), (short, 40)):
        await index.open(key)
        await index.store(key, 0, *range(length))

    async def change(call: int) -> None:
        if call == 2:
            await index.apply(A, 1, Op("clear", "l1"))
            await index.sweep_all()
            await index.open(StreamKey("10.0.0.9", 0))
            await index.store(StreamKey("10.0.0.9", 0), 0, *range(200))
            await index.apply(A, 2, Op("store", "l1", 0, packed(*range(64, 200))))

    matches = await IndexReader(Interrupted(index.client, change), POOL, 5).lookup([chain], ["l1"], None)
    counts = [matches.blocks("l1", key.ip) for key in (A, B, short)]
    assert counts == [0, 200, 40]


async def test_scripts_that_were_flushed_come_back_by_themselves(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    for _ in range(2):
        await index.client.script_flush()
        assert await index.count(packed(1), A.ip) == 1
        await index.client.script_flush()
        assert (await index.apply(A, 0, Op("store", "l1", 0, packed(1)))).code == "DUP"
    await index.client.script_flush()
    lookups = [index.count(packed(1), A.ip) for _ in range(50)]
    assert await asyncio.gather(*lookups) == [1] * 50


async def test_a_server_without_evalsha_ro_is_asked_by_evalsha(index: Index) -> None:
    """As Redis 6.2; here the command is renamed away from the client's view."""

    class Old(Interrupted):
        async def execute_command(self, *command: Any) -> Any:
            if command[0] in ("EVALSHA_RO", "EVAL_RO"):
                command = (command[0] + "_UNKNOWN", *command[1:])
            return await self._client.execute_command(*command)

    await index.open(A)
    await index.store(A, 0, 1)
    reader = IndexReader(Old(index.client, None), POOL, 5)
    assert (await reader.lookup([packed(1)], ["l1"], None)).blocks("l1", A.ip) == 1


async def test_lookups_run_on_a_replica(index_here: Index, start_redis: Any, open_index: Opener) -> None:
    primary = index_here
    await primary.open(A)
    await primary.store(A, 0, *range(50))
    replica: Server = start_redis("valkey", replica_of=primary.server)
    client = replica.aclient()
    try:
        await primary.client.wait(1, 5000)
        reader = IndexReader(client, POOL, 5)
        await reader.ready()
        assert (await reader.lookup([packed(*range(50))], ["l1"], None)).blocks("l1", A.ip) == 50
        assert [state.key for state in await reader.streams()] == [A]
    finally:
        await client.aclose()


async def test_lookups_write_nothing(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    before = await index.dump(), await index.client.get(f"{PREFIX}rev")
    await index.reader.lookup([packed(1)], ["l1", "l2", "l3"], None)
    await index.reader.stats()
    await index.reader.ready()
    assert (await index.dump(), await index.client.get(f"{PREFIX}rev")) == before


async def test_a_small_index_is_a_hash_table_too(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    assert await index.client.object("encoding", f"{PREFIX}blocks:l1") == b"hashtable"
    assert await index.client.hlen(f"{PREFIX}blocks:l1") == 1


async def test_a_restart_from_disk_loses_nothing(start_redis: Any, open_index: Opener) -> None:
    server = start_redis("valkey", options={"appendonly": "yes", "appendfsync": "always"})
    index = await open_index(server)
    await index.open(A)
    await index.store(A, 0, *range(100))
    await index.apply(A, 1, Op("clear", "l1"), Op("store", "l1", 0, packed(*range(50))))
    rev = (await index.writer.renew(index.token, 60)).rev
    server.kill()
    server.start()
    assert await index.count(packed(*range(100)), A.ip) == 50
    assert (await index.writer.renew(index.token, 60)).rev == rev
    await index.sweep_all()
    await index.check()
