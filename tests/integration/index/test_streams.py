"""Lives of streams: begin, end, retire, sweep; and what late copies of these calls must not do."""

import pytest
from redis.exceptions import ResponseError

from indexer.errors import LifeError
from indexer.index.scripts import source
from indexer.index.state import STAMP_NONE, Op, StreamKey
from tests.integration.index.conftest import PREFIX, Index, block, packed, stamp

A = StreamKey("10.0.0.1", 0)
B = StreamKey("fd00::2", 3)


async def test_a_new_life_starts_empty_and_keeps_its_counters(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1, 2)
    rev, state = await index.writer.open(index.token, A, "a", "b", "uid/1", 7, stamp(1), "connecting")
    assert (state.life, state.incarnation, state.next, state.stamp) == ("b", "uid/1", 7, stamp(1))
    assert (state.counters["restarts"], state.counters["stored"], state.groups) == (1, 2, ())
    assert rev == (await index.reader.stats()).rev
    assert await index.count(packed(1, 2), A.ip) == 0
    await index.apply(A, 7, Op("store", "l1", 0, packed(2)), life="b")
    assert await index.count(packed(2), A.ip) == 1
    assert await index.sweep_all() == 2
    assert await index.count(packed(2), A.ip) == 1


async def test_an_address_may_hold_colons(index: Index) -> None:
    await index.open(B)
    await index.store(B, 0, 1)
    assert await index.reader.instances() == ["fd00::2"]
    assert (await index.reader.lookup([packed(1)], ["l1"], None)).ranks("l1", "fd00::2") == {3: 1}
    assert [state.key for state in await index.reader.streams()] == [B]


async def test_a_stream_that_is_not_what_the_writer_believes_is_not_touched(index: Index) -> None:
    with pytest.raises(LifeError, match="none"):
        await index.open(A, "b", expect="a")
    await index.open(A)
    await index.store(A, 0, 1)
    before = await index.dump()
    with pytest.raises(LifeError, match="is in life a"):
        await index.open(A, "c", expect="b")
    with pytest.raises(LifeError, match="is in life a"):
        await index.open(A, "c")
    with pytest.raises(LifeError):
        await index.writer.end(index.token, A, "b")
    assert await index.dump() == before


async def test_a_retried_open_wipes_only_once(index: Index) -> None:
    """The first copy of an open whose answer got lost arrives after the new life stored blocks."""
    await index.open(A)
    await index.store(A, 0, 1)
    await index.open(A, "b", "a")
    late = index.client.sent[-1]
    await index.apply(A, 0, Op("store", "l1", 0, packed(2)), life="b")
    before = await index.dump()
    await index.client.deliver_again(late)
    assert await index.dump() == before
    await index.open(A, "c", "b")
    with pytest.raises(ResponseError, match=r"^LIFE"):
        await index.client.deliver_again(late)


async def test_a_late_open_does_not_revive_an_ended_stream(index: Index) -> None:
    await index.open(A)
    late = index.client.sent[-1]
    await index.writer.end(index.token, A, "a")
    with pytest.raises(ResponseError, match=r"^LIFE"):
        await index.client.deliver_again(late)
    assert await index.writer.streams() == []
    await index.open(A, "b")
    assert [state.life for state in await index.writer.streams()] == ["b"]


async def test_a_late_end_does_not_end_the_next_life(index: Index) -> None:
    await index.open(A)
    await index.writer.end(index.token, A, "a")
    late = index.client.sent[-1]
    await index.open(A, "b")
    with pytest.raises(ResponseError, match=r"^LIFE"):
        await index.client.deliver_again(late)
    await index.writer.end(index.token, A, "b")
    rev = await index.writer.end(index.token, A, "b")
    assert rev == (await index.reader.stats()).rev, "ending twice is ending once"


async def test_an_ended_stream_leaves_nothing_once_swept(index: Index) -> None:
    await index.open(A)
    await index.apply(
        A, 0, *(Op("store", tier, group, packed(1, 2)) for tier in ("l1", "l2") for group in (0, 1))
    )
    await index.writer.end(index.token, A, "a")
    assert await index.reader.instances() == []
    await index.sweep_all()
    left = {name.split(":")[0] for name in await index.dump()}
    assert left == {"leader", "term", "slots", "free", "ended"}


async def test_an_empty_holders_slot_is_free_at_once(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.apply(A, 1, Op("remove", "l1", 0, packed(1)), Op("clear", "l1"))
    l1 = (await index.reader.stats()).tiers["l1"]
    assert (l1.free, l1.retired) == (1, 0)


async def test_the_lowest_free_slot_is_taken_first(index: Index) -> None:
    streams = [StreamKey(f"10.0.1.{n}", 0) for n in range(12)]
    for key in streams:
        await index.open(key)
        await index.store(key, 0, 1)
    for n in (9, 3):
        await index.writer.end(index.token, streams[n], "a")
    await index.sweep_all()
    for n, life in ((9, "b"), (3, "b")):
        await index.open(streams[n], life)
        await index.apply(streams[n], 0, Op("store", "l1", 0, packed(1)), life="b")
    slots = await index.client.hgetall(f"{PREFIX}slots:l1")
    assert slots[b"l1:10.0.1.9:0"] == b"3"
    assert slots[b"l1:10.0.1.3:0"] == b"9"


async def test_a_slot_is_not_used_again_while_a_bitmap_may_carry_its_bit(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, *range(5000))
    await index.writer.end(index.token, A, "a")
    await index.open(B)
    life, swept = "a", 0
    while swept < 4000:
        await index.apply(B, 0, Op("store", "l1", 0, packed(9999)), life=life)
        assert await index.count(packed(0), B.ip) == 0
        assert await index.count(packed(4999), B.ip) == 0
        await index.check()
        await index.open(B, life + "x", life)
        life += "x"
        swept += (await index.writer.sweep(index.token, 500)).cleared
    await index.sweep_all()
    l1 = (await index.reader.stats()).tiers["l1"]
    assert (l1.blocks, l1.retired) == (0, 0)


async def test_a_sweep_that_lost_its_cursor_starts_over(index: Index) -> None:
    """Cursors do not survive a failover, and a scan that began on another set ends early."""
    await index.open(A)
    await index.store(A, 0, *range(4000))
    await index.writer.end(index.token, A, "a")
    sweep = await index.client.script_load(source("sweep"))
    cleared = 0
    cursors = ["0", "1234567", "1", "4611686018427387904"]
    for step in range(200):
        reply = await index.client.evalsha(sweep, 1, PREFIX, index.token, "l1", "0", cursors[step % 4], 100)
        cleared += reply[4]
        await index.check()
        if not reply[6]:
            break
    assert cleared == 4000
    assert (await index.reader.stats()).tiers["l1"].retired == 0


async def test_a_sweep_interrupted_before_its_bits_are_gone_loses_nothing(index: Index) -> None:
    """A set that knows more blocks than bits remain, as after a crash of the past, is still swept."""
    await index.open(A)
    await index.store(A, 0, 1, 2, 3)
    await index.writer.end(index.token, A, "a")
    await index.client.sadd(f"{PREFIX}aside:l1:0", block(77))
    assert await index.sweep_all() == 3
    assert await index.client.exists(f"{PREFIX}aside:l1:0") == 0


async def test_sweeping_goes_through_all_tiers(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.store(A, 1, 1, tier="l2")
    _, generation = await index.writer.reconcile(index.token, "l3:10.0.0.1", "", packed(1), "")
    await index.writer.end(index.token, A, "a")
    await index.writer.reconcile(index.token, "l3:10.0.0.1", generation, "", "", drop=True)
    assert await index.sweep_all() == 3
    assert (await index.writer.sweep(index.token)).freed == 0


async def test_retiring_takes_no_longer_for_many_blocks(index_here: Index) -> None:
    """Counted in commands, not in time: none of them names a block."""
    index = index_here
    await index.open(A)
    await index.store(A, 0, *range(5000))
    await index.client.config_resetstat()
    await index.open(A, "b", "a")
    stats = await index.client.info("commandstats")
    assert not {"cmdstat_hset", "cmdstat_srem"} & {
        name for name, stat in stats.items() if name.startswith("cmdstat_") and stat["calls"] > 3
    }
    assert stats["cmdstat_rename"]["calls"] == 1
    await index.sweep_all()


async def test_seen_is_the_time_since_the_last_batch(index: Index) -> None:
    await index.writer.open(index.token, A, None, "a", "", 0, STAMP_NONE, "connecting")
    (state,) = await index.reader.streams()
    assert state.seen_age is None
    await index.store(A, 0, 1)
    (state,) = await index.reader.streams()
    assert state.seen_age is not None
    assert 0 <= state.seen_age < 60
