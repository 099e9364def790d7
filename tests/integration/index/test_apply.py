"""What `apply` accepts and refuses, and what it then does to sets, bitmaps and the stream."""

import pytest

from indexer.errors import FencedError, IndexFullError
from indexer.index.state import Apply, Op, StreamKey
from indexer.index.writer import IndexWriter
from tests.integration.index.conftest import POOL, Index, block, packed, stamp

A = StreamKey("10.0.0.1", 0)
B = StreamKey("10.0.0.2", 0)


async def test_an_unknown_stream_is_never_created(index: Index) -> None:
    outcome = await index.apply(A, 0, Op("store", "l1", 0, packed(1)))
    assert outcome.code == "NONE"
    assert await index.writer.streams() == []
    assert await index.reader.holders(block(1)) == []


async def test_another_life_is_refused(index: Index) -> None:
    await index.open(A)
    outcome = await index.apply(A, 0, Op("store", "l1", 0, packed(1)), life="b")
    assert (outcome.code, outcome.life) == ("LIFE", "a")
    assert await index.reader.holders(block(1)) == []


async def test_an_early_batch_is_a_gap_and_changes_nothing(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    before = await index.dump()
    outcome = await index.apply(A, 2, Op("store", "l1", 0, packed(2)))
    assert (outcome.code, outcome.next) == ("GAP", 1)
    assert await index.dump() == before


async def test_a_gap_is_jumped_only_from_where_the_writer_believes_the_stream_to_be(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    op = Op("store", "l1", 0, packed(2))
    assert (await index.apply(A, 5, op, skip_from=0)).code == "GAP"
    assert (await index.apply(A, 5, op, skip_from=1, fields={"state": "live"})).code == "OK"
    (state,) = await index.writer.streams()
    assert (state.next, state.state) == (6, "suspect")
    assert (state.counters["gaps"], state.counters["missing"]) == (1, 4)
    assert await index.reader.holders(block(1)) == ["l1:10.0.0.1:0"]


async def test_a_duplicate_changes_nothing(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.apply(A, 1, Op("remove", "l1", 0, packed(1)))
    before = await index.dump()
    for start, stop in ((0, 1), (0, 2), (1, 2)):
        outcome = await index.apply(A, start, Op("store", "l1", 0, packed(1)), stop=stop)
        assert (outcome.code, outcome.next) == ("DUP", 2)
    assert await index.dump() == before


async def test_a_retry_that_grew_is_not_a_duplicate(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    grown = await index.apply(A, 0, Op("store", "l1", 0, packed(1, 2, 3)), stop=3)
    assert (grown.code, grown.next) == ("OK", 3)
    assert await index.count(packed(1, 2, 3), A.ip) == 3
    (state,) = await index.writer.streams()
    assert (state.counters["batches"], state.counters["stored"]) == (3, 3)


async def test_an_old_number_with_a_newer_timestamp_is_a_restart(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.store(A, 1, 2)
    late = Apply(A, "a", 0, 1, stamp(99), (Op("store", "l1", 0, packed(7)),))
    _, (outcome,) = await index.writer.apply(index.token, [late])
    assert outcome.code == "LIFE"
    assert await index.reader.holders(block(7)) == []


async def test_batches_that_reach_over_next_must_have_the_known_batch_among_them(index: Index) -> None:
    """An engine that restarted and is past our `next` looks like a replay that overlaps."""
    await index.open(A)
    await index.store(A, 0, 1)
    foreign = Apply(A, "a", 0, 3, stamp(90) + stamp(91) + stamp(92), (Op("store", "l1", 0, packed(7)),))
    _, (outcome,) = await index.writer.apply(index.token, [foreign])
    assert outcome.code == "LIFE"
    assert await index.reader.holders(block(7)) == []


async def test_timestamps_are_compared_as_numbers(index: Index) -> None:
    """As strings of bytes, or by the locale's order, 2.0 and 1.9999999999999998 may compare the other way."""
    await index.open(A)
    close = stamp(1.9999999999999998)
    _, (first,) = await index.writer.apply(index.token, [Apply(A, "a", 0, 1, stamp(2.0))])
    _, (older,) = await index.writer.apply(index.token, [Apply(A, "a", 0, 1, close)])
    _, (newer,) = await index.writer.apply(index.token, [Apply(A, "a", 0, 1, stamp(2.0000000000000004))])
    assert (first.code, older.code, newer.code) == ("OK", "DUP", "LIFE")


async def test_sequence_numbers_up_to_2_to_the_53_are_exact(index: Index) -> None:
    top = 2**53 - 2
    await index.writer.open(index.token, A, None, "a", "", top, stamp(1), "live")
    _, (outcome,) = await index.writer.apply(index.token, [Apply(A, "a", top, top + 1, stamp(2))])
    assert (outcome.code, outcome.next) == ("OK", top + 1)
    assert (await index.writer.streams())[0].next == top + 1


async def test_one_stream_refused_leaves_the_others_alone(index: Index) -> None:
    await index.open(A)
    await index.open(B)
    op = (Op("store", "l1", 0, packed(1)),)
    _, outcomes = await index.writer.apply(
        index.token,
        [
            Apply(A, "a", 3, 4, stamp(4), op),
            Apply(B, "a", 0, 1, stamp(1), op),
            Apply(StreamKey("10.0.0.9", 0), "a", 0, 1, stamp(1), op),
            Apply(B, "a", 1, 2, stamp(2), (Op("store", "l1", 0, packed(2)),)),
        ],
    )
    assert [outcome.code for outcome in outcomes] == ["GAP", "OK", "NONE", "OK"]
    assert await index.count(packed(1, 2), B.ip) == 2
    assert await index.count(packed(1, 2), A.ip) == 0


async def test_cleared_acts_at_its_place_in_the_order(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1, 2)
    outcome = await index.apply(
        A,
        1,
        Op("store", "l1", 0, packed(3)),
        Op("clear", "l1"),
        Op("store", "l1", 0, packed(1, 4)),
    )
    assert outcome.code == "OK"
    held = [n for n in (1, 2, 3, 4) if await index.reader.holders(block(n))]
    assert held == [1, 4]
    await index.check()
    assert await index.sweep_all() == 3


async def test_clear_leaves_the_other_tier_alone(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.store(A, 1, 1, tier="l2")
    await index.apply(A, 2, Op("clear", "l1"))
    assert await index.reader.holders(block(1)) == ["l2:10.0.0.1:0"]


async def test_more_blocks_than_luas_stack_takes(index: Index) -> None:
    numbers = range(9001)
    await index.open(A)
    await index.store(A, 0, *numbers)
    assert await index.count(packed(*numbers), A.ip) == 9001
    await index.apply(A, 1, Op("remove", "l1", 0, packed(*numbers[5:])))
    assert await index.count(packed(*numbers), A.ip) == 5


async def test_many_entries_go_in_several_calls(index: Index) -> None:
    await index.open(A)
    entries = [
        Apply(A, "a", n, n + 1, stamp(n + 1), (Op("store", "l1", 0, packed(*range(16 * n, 16 * n + 16))),))
        for n in range(400)
    ]
    rev, outcomes = await index.writer.apply(index.token, entries)
    assert {outcome.code for outcome in outcomes} == {"OK"}
    assert rev > 3
    assert await index.count(packed(*range(6400)), A.ip) == 6400


async def test_a_rank_counts_with_its_worst_group(index: Index) -> None:
    await index.open(A)
    await index.apply(A, 0, Op("store", "l1", 0, packed(1, 2, 3)), Op("store", "l1", 1, packed(1, 2)))
    chain = packed(1, 2, 3)
    assert await index.count(chain, A.ip) == 2
    await index.apply(A, 1, Op("remove", "l1", 1, packed(1)))
    assert await index.count(chain, A.ip) == 0
    await index.apply(A, 2, Op("clear", "l1"), Op("store", "l1", 0, packed(1, 2, 3)))
    assert await index.count(chain, A.ip) == 0, "group 1 holds nothing since the clear"
    assert (await index.writer.streams())[0].groups == (0, 1)


async def test_a_group_first_heard_of_in_one_tier_counts_in_the_other(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1, 2)
    assert await index.count(packed(1, 2), A.ip) == 2
    await index.apply(A, 1, Op("store", "l2", 1, packed(1)))
    assert await index.count(packed(1, 2), A.ip) == 0, "group 1 holds nothing in l1"


async def test_a_block_stored_twice_goes_with_one_removal(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    await index.store(A, 1, 1, 1)
    await index.apply(A, 2, Op("remove", "l1", 0, packed(1)))
    assert await index.reader.holders(block(1)) == []
    assert (await index.apply(A, 3, Op("remove", "l1", 0, packed(1, 5)))).code == "OK"


async def test_fields_alone_mark_a_stream(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    mark = Apply(A, "a", 0, 0, fields={"state": "lost", "skipped": 2, "cause": "seed"})
    for _ in range(2):
        _, (outcome,) = await index.writer.apply(index.token, [mark])
        assert (outcome.code, outcome.next) == ("OK", 1)
    (state,) = await index.writer.streams()
    assert (state.state, state.cause, state.counters["skipped"], state.next) == ("lost", "seed", 4, 1)
    _, (other,) = await index.writer.apply(index.token, [Apply(A, "b", 0, 0, fields={"state": "live"})])
    assert other.code == "LIFE"


async def test_stamps_that_do_not_match_the_batches_are_a_programming_error(index_here: Index) -> None:
    with pytest.raises(ValueError, match="stamps"):
        await index_here.writer.apply(index_here.token, [Apply(A, "a", 0, 2, stamp(1))])


async def test_a_deposed_leader_changes_nothing(index: Index) -> None:
    await index.open(A)
    old = index.token
    await index.writer.release(old)
    await index.lead("next")
    before = await index.dump()
    with pytest.raises(FencedError):
        await index.writer.apply(old, [Apply(A, "a", 0, 1, stamp(1), (Op("store", "l1", 0, packed(1)),))])
    with pytest.raises(FencedError):
        await index.writer.open(old, A, "a", "b", "", 0, stamp(0), "live")
    with pytest.raises(FencedError):
        await index.writer.end(old, A, "a")
    with pytest.raises(FencedError):
        await index.writer.reconcile(old, "l3:10.0.0.1", "", packed(1), "")
    with pytest.raises(FencedError):
        await index.writer.sweep(old)
    with pytest.raises(FencedError):
        await index.writer.note(old, {"x": "y"})
    with pytest.raises(FencedError):
        await index.writer.renew(old, 60)
    assert await index.dump() == before


async def test_a_late_copy_of_an_apply_does_not_revive_blocks(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    late = index.client.sent[-1]
    await index.apply(A, 1, Op("remove", "l1", 0, packed(1)))
    before = await index.dump()
    (_, reply) = await index.client.deliver_again(late)
    assert reply[0] == b"DUP"
    await index.open(A, "b", "a")
    (_, reply) = await index.client.deliver_again(late)
    assert reply[0] == b"LIFE"
    assert await index.reader.holders(block(1)) == []
    assert before["stream:10.0.0.1:0"][b"next"] == b"2"


async def test_out_of_memory_refuses_stores_whole_and_lets_the_rest_through(index: Index) -> None:
    await index.open(A)
    await index.open(B)
    await index.store(A, 0, *range(3000))
    await index.store(B, 0, 1, 2)
    await index.client.config_set("maxmemory", "1")
    try:
        before = await index.dump()
        with pytest.raises(IndexFullError, match="maxmemory"):
            await index.apply(A, 1, Op("remove", "l1", 0, packed(1)), Op("store", "l1", 0, packed(9999)))
        with pytest.raises(IndexFullError):
            await index.writer.reconcile(index.token, "l3:10.0.0.1", "", packed(1), "")
        assert await index.dump() == before
        assert (await index.apply(A, 1, Op("remove", "l1", 0, packed(1)))).code == "OK"
        assert (await index.apply(A, 2, Op("clear", "l1"))).code == "OK"
        assert await index.reader.holders(block(1)) == ["l1:10.0.0.2:0"]
        assert await index.sweep_all() == 2999
        await index.writer.renew(index.token, 60)
        await index.open(A, "b", "a")
        await index.writer.end(index.token, B, "a")
        await index.writer.note(index.token, {"cause": "seed"})
        await index.writer.release(index.token)
        await index.lead("next")
        await IndexWriter(index.client, POOL, 5).acquire("third", True, 60)
    finally:
        await index.client.config_set("maxmemory", "0")
