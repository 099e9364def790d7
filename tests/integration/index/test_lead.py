"""The lease, its terms, and those who stand by."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from indexer.errors import ConfigError, FencedError, SchemaError
from indexer.index.reader import IndexReader
from indexer.index.state import StreamKey
from indexer.index.writer import IndexWriter
from tests.integration.index.conftest import POOL, PREFIX, Index

A = StreamKey("10.0.0.1", 0)


async def wait_for_the_lease_to_run_out(index: Index) -> None:
    while await index.client.exists(f"{PREFIX}leader"):  # noqa: ASYNC110 - Redis tells nobody
        await asyncio.sleep(0.01)


async def test_only_one_leads_and_each_term_has_its_number(index: Index) -> None:
    assert await index.writer.acquire("other", True, 60) is None
    await index.writer.release(index.token)
    second = await index.writer.acquire("other", True, 60)
    assert second is not None
    assert second.term == 2
    stats = await index.reader.stats()
    assert (stats.leader, stats.term) == ("other", 2)
    assert stats.lease_left is not None
    assert 50 < stats.lease_left <= 60


async def test_a_lease_that_is_not_renewed_runs_out(index: Index) -> None:
    await index.writer.renew(index.token, 0.05)
    await wait_for_the_lease_to_run_out(index)
    with pytest.raises(FencedError):
        await index.writer.renew(index.token, 60)
    with pytest.raises(FencedError):
        await index.open(A)
    assert await index.writer.stand_by("other", True) is None
    await index.lead("other")


async def test_a_late_renewal_does_not_prolong_anothers_lease_or_a_released_one(index: Index) -> None:
    await index.writer.renew(index.token, 600)
    late = index.client.sent[-1]
    await index.writer.release(index.token)
    with pytest.raises(ResponseError, match=r"^FENCED"):
        await index.client.deliver_again(late)
    await index.lead("other")
    with pytest.raises(ResponseError, match=r"^FENCED"):
        await index.client.deliver_again(late)
    left = await index.writer.stand_by("third", False)
    assert left is not None
    assert left <= 60


async def test_a_late_release_does_not_depose_the_next_leader(index: Index) -> None:
    await index.writer.release(index.token)
    late = index.client.sent[-1]
    await index.lead("other")
    await index.client.deliver_again(late)
    await index.writer.renew(index.token, 60)


async def test_a_late_acquire_cannot_make_two_leaders(index: Index) -> None:
    """A copy that nobody waits for any more may hold the lease for its length; no one writes with it."""
    await index.writer.release(index.token)
    lost = await index.writer.acquire("lost", True, 0.05)
    late = index.client.sent[-1]
    assert lost is not None
    term, rev = (await index.client.deliver_again(late))[1:]
    assert (term, rev) == (lost.term, lost.rev), "the same attempt, answered again"
    await wait_for_the_lease_to_run_out(index)
    await index.lead("next")
    assert (await index.client.deliver_again(late))[0] == 0
    await index.open(A)


async def test_standbys_are_counted_while_they_are_heard(index: Index) -> None:
    assert (await index.writer.renew(index.token, 60)).warm_standbys == 0
    await index.writer.acquire("warm", True, 60)
    await index.writer.stand_by("cold", False)
    assert (await index.writer.renew(index.token, 60)).warm_standbys == 1
    assert (await index.reader.stats()).standbys == {"warm": True, "cold": False}
    await index.writer.stand_by("cold", True)
    assert (await index.writer.renew(index.token, 60)).warm_standbys == 2
    await index.writer.withdraw("cold")
    assert (await index.writer.renew(index.token, 60)).warm_standbys == 1
    await index.client.hset(f"{PREFIX}standbys", "warm", "1000:1")
    assert (await index.writer.renew(index.token, 60)).warm_standbys == 0
    await index.writer.stand_by("cold", False)
    assert (await index.reader.stats()).standbys == {"cold": False}, "the silent one is forgotten"


async def test_a_leader_is_no_standby(index: Index) -> None:
    await index.writer.stand_by("next", True)
    await index.writer.release(index.token)
    await index.lead("next")
    assert (await index.reader.stats()).standbys == {}


async def test_every_write_raises_rev_and_every_answer_tells_it(index: Index) -> None:
    revs = [(await index.writer.renew(index.token, 60)).rev]
    await index.open(A)
    revs.append((await index.writer.renew(index.token, 60)).rev)
    await index.store(A, 0, 1)
    revs.append((await index.writer.renew(index.token, 60)).rev)
    revs.append(await index.writer.end(index.token, A, "a"))
    revs.append((await index.writer.sweep(index.token)).rev)
    revs.append((await index.writer.sweep(index.token)).rev)
    revs.append(await index.writer.note(index.token, {"x": "y"}))
    assert revs == [0, 1, 2, 3, 4, 4, 5]


async def test_flushall_is_seen_as_rev_going_back(index: Index) -> None:
    await index.open(A)
    await index.store(A, 0, 1)
    before = (await index.writer.renew(index.token, 60)).rev
    await index.client.flushall()
    with pytest.raises(FencedError):
        await index.writer.renew(index.token, 60)
    lease = await index.writer.acquire("leader", True, 60)
    assert lease is not None
    assert lease.rev < before


async def test_renewing_confirms_that_the_index_is_current(index: Index) -> None:
    assert (await index.reader.lookup([], [], [])).age is None
    await index.writer.renew(index.token, 60, confirm=False)
    assert (await index.reader.lookup([], [], [])).age is None
    await index.writer.renew(index.token, 60)
    age = (await index.reader.lookup([], [], [])).age
    assert age is not None
    assert 0 <= age < 60


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_redis_that_evicts_is_refused(index: Index, policy: str) -> None:
    await index.writer.release(index.token)
    await index.client.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(ConfigError, match=f"{policy}.*noeviction"):
            await index.writer.acquire("other", True, 60)
        with pytest.raises(ConfigError, match=policy):
            await index.reader.ready()
    finally:
        await index.client.config_set("maxmemory-policy", "noeviction")
    await index.reader.ready()


async def test_an_index_of_another_version_is_refused(index: Index) -> None:
    await index.writer.release(index.token)
    await index.reader.lookup([], [], [])  # knows the slots from now on
    await index.client.hset(f"{PREFIX}meta", "schema", "99")
    with pytest.raises(SchemaError, match="99"):
        await IndexWriter(index.client, POOL, 5).acquire("other", True, 60)
    with pytest.raises(SchemaError, match="99"):
        await index.reader.ready()
    with pytest.raises(SchemaError, match="99"):
        await IndexReader(index.client, POOL, 5).lookup([], [], [])
    with pytest.raises(SchemaError, match="99"):
        await index.reader.lookup([], [], [])


async def test_notes_are_kept_in_meta(index: Index) -> None:
    await index.writer.note(index.token, {"cause": "seed", "block_size": "16"})
    await index.writer.note(index.token, {"cause": ""})
    meta = await index.reader.meta()
    assert meta["block_size"] == "16"
    assert "cause" not in meta
