"""Our poller must not change what a Mooncake master keeps: real masters under memory pressure.

A poller that asks where every key is, each round, keeps renewing the leases of all old keys: the master then
evicts what was stored last (54 of 54 old keys kept and 3 of 60 new ones, with the numbers used here).
"""

import asyncio
from pathlib import Path

import pytest

from tests import mooncake_servers
from tests.integration.mooncake_rig import Rig, key, keys
from tests.mooncake_servers import MIB, VERSIONS, Master, Pod
from tests.servers import Server

OLD, NEW = range(54), range(100, 160)
LEASE = 5.0
"""Seconds: what masters grant to a read when nobody sets it otherwise (10 s since 0.3.12)."""
FLAGS = {
    "default_kv_lease_ttl": str(int(LEASE * 1000)),
    "eviction_high_watermark_ratio": "0.9",
    "eviction_ratio": "0.1",
}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return mooncake_servers.need(request.param)


def kept(master: Master) -> tuple[int, int]:
    """How many old and new keys the master still has."""
    listed = master.keys()
    return len(listed & set(keys(OLD))), len(listed & set(keys(NEW)))


def below_the_watermark(counts: tuple[int, int]) -> bool:
    """Whether the master has no reason to evict: nine tenths of the pool's 64 objects."""
    return sum(counts) <= 57


async def press(master: Master, pod: Pod) -> None:
    """Fill the pool, let it grow old, then store as much again, a key each tenth of a second."""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, lambda: pod.put(keys(OLD), size=MIB)) == [0] * len(OLD)
    await asyncio.sleep(LEASE + 1)
    for number in NEW:
        assert await loop.run_in_executor(None, lambda: pod.put([key(number)], size=MIB)) == [0]  # noqa: B023
        await asyncio.sleep(0.1)


async def test_eviction_is_the_same_with_and_without_us(
    redis_server: Server, tmp_path: Path, version: str
) -> None:
    async with Rig(redis_server, tmp_path, version, poll=0.5) as rig:
        watched, alone = (rig.master(**FLAGS) for _ in range(2))
        pods = [rig.pod("127.0.0.11", master, 64 * MIB) for master in (watched, alone)]
        await rig.lead(watched.http)
        await rig.polled(1)
        await asyncio.gather(press(watched, pods[0]), press(alone, pods[1]))
        for master in (watched, alone):
            # The last eviction may be still to come.
            await rig.eventually(lambda: asyncio.to_thread(kept, master), below_the_watermark)  # noqa: B023
        assert kept(watched) == kept(alone)
        assert rig.status().leases <= (0 if rig.status().lookup == "read-only" else len(OLD) + len(NEW))
        # And what we say is what is there.
        listed = watched.keys()
        await rig.until("*", [n for n in (*OLD, *NEW) if key(n) in listed])


async def test_remove_right_after_a_poll_is_not_refused(
    redis_server: Server, tmp_path: Path, version: str
) -> None:
    async with Rig(redis_server, tmp_path, version) as rig:
        rig.master(default_kv_lease_ttl="500")
        pod = rig.pod("127.0.0.11")
        rig.pod("127.0.0.12")
        pod.put(keys(range(20)))
        await rig.lead()
        await rig.until("127.0.0.11", range(20))
        if rig.status().lookup != "read-only":
            # Masters before 0.3.12 can't be asked without a lease: each key is leased once in its life.
            assert rig.status().leases == 20
            await asyncio.sleep(0.6)
        await rig.polled(3)
        assert pod.remove(keys(range(20))) == [0] * 20
        await rig.until("127.0.0.11", [])
