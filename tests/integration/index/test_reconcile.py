"""Holders without a stream: Mooncake memory."""

import pytest
from redis.exceptions import ResponseError

from indexer.errors import LifeError
from tests.integration.index.conftest import Index, block, packed

HOST = "l3:10.0.0.1"


async def test_adds_removes_and_the_pool_wide_view(index: Index) -> None:
    token = index.token
    _, generation = await index.writer.reconcile(token, HOST, "", packed(1, 2, 3), "")
    await index.writer.reconcile(token, "l3:*", "", packed(1, 2, 3, 4), "")
    matches = await index.reader.lookup([packed(1, 2, 3, 4)], ["l3"], ["10.0.0.1", "*"])
    assert (matches.blocks("l3", "10.0.0.1"), matches.pool_wide()) == (3, 4)
    await index.writer.reconcile(token, HOST, generation, packed(9), packed(2))
    matches = await index.reader.lookup([packed(1, 2, 3, 4)], ["l3"], None)
    assert (matches.blocks("l3", "10.0.0.1"), matches.instances) == (1, ("10.0.0.1",))
    held = {b for page in [page async for page in index.writer.holder_blocks(HOST)] for b in page}
    assert held == {block(1), block(3), block(9)}


async def test_another_generation_is_refused(index: Index) -> None:
    _, generation = await index.writer.reconcile(index.token, HOST, "", packed(1), "")
    assert await index.writer.generation(HOST) == generation
    before = await index.dump()
    for wrong in ("", "0123"):
        with pytest.raises(LifeError, match=generation):
            await index.writer.reconcile(index.token, HOST, wrong, packed(2), packed(1))
    assert await index.dump() == before


async def test_a_late_copy_is_refused(index: Index) -> None:
    """It would bring back blocks that were removed meanwhile."""
    _, generation = await index.writer.reconcile(index.token, HOST, "", packed(1), "")
    late = index.client.sent[-1]
    await index.writer.reconcile(index.token, HOST, generation, "", packed(1))
    with pytest.raises(ResponseError, match=r"^LIFE"):
        await index.client.deliver_again(late)
    assert await index.reader.holders(block(1)) == []


async def test_a_late_copy_does_not_revive_a_dropped_holder(index: Index) -> None:
    _, generation = await index.writer.reconcile(index.token, HOST, "", packed(1), "")
    late = index.client.sent[-1]
    _, last = await index.writer.reconcile(index.token, HOST, generation, "", "", drop=True)
    with pytest.raises(ResponseError, match=r"^LIFE"):
        await index.client.deliver_again(late)
    assert await index.reader.instances() == []
    assert await index.writer.generation(HOST) == last
    await index.writer.reconcile(index.token, HOST, last, packed(2), "")
    assert await index.reader.holders(block(2)) == [HOST]
    await index.sweep_all()


async def test_a_big_change_goes_in_several_calls(index: Index) -> None:
    numbers = range(7000)
    _, generation = await index.writer.reconcile(index.token, HOST, "", packed(*numbers), "")
    calls = [command for command in index.client.sent if "reconcile" in str(command) or len(command) == 12]
    assert max(len(str(argument)) for command in calls for argument in command) <= 16 * 2000
    assert (await index.reader.stats()).tiers["l3"].holders == {HOST: 7000}
    await index.writer.reconcile(index.token, HOST, generation, "", packed(*numbers[10:]))
    assert (await index.reader.stats()).tiers["l3"].holders == {HOST: 10}
