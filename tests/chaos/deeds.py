"""What may happen to a `World`: `storm` does deeds at random, `calm` waits for the end."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

import redis

from tests.chaos.world import World
from tests.fake_engine import Engine

Deed = Callable[[World], Awaitable[None]]


def _engine(world: World) -> Engine:
    return world.chance.choice(world.ranks())[2].engine


# What engines do.


async def work(world: World) -> None:
    """A few batches of any engine that is up, now and then lost, doubled or unreadable."""
    chance, engine = world.chance, _engine(world)
    for _ in range(chance.randrange(1, 12)):
        if not engine.up:
            return
        kind = chance.random()
        names = [f"{chance.randrange(60)}" for _ in range(chance.randrange(1, 6))]
        options = {"lose": chance.random() < 0.01, "twice": chance.random() < 0.05}
        if kind < 0.55:
            await engine.store(*names, **options)
        elif kind < 0.96:
            await engine.remove(*names, **options)
        elif kind < 0.98:
            await engine.clear(**options)
        else:
            await engine.raw(
                chance.choice([[b"junk"], [b"", b"12345678", b"\xc1"], [b"t", b"short", b""], []]) or [b""]
            )
        if chance.random() < 0.3:
            await asyncio.sleep(0.005)


async def restart_engine(world: World) -> None:
    """A new process at the old address; its clock may be set back, it may be past the old one's number."""
    chance = world.chance
    instance, _, rank = chance.choice(world.ranks())
    if not all(r.engine.up for r in instance.ranks):
        return
    silently = chance.choice([0, 0, 3, rank.engine.seq + chance.randrange(3)])
    later = chance.choice([100.0, 100.0, 0.0, -50.0])
    if instance.told:
        instance.number += 1
        for other in instance.ranks:
            if other is not rank:
                await other.engine.restart(later=later)
    await rank.engine.restart(later=later, down=chance.choice([0.0, 0.3]), silently=silently)
    if instance.told:
        await asyncio.sleep(chance.choice([0.0, 0.5]))
        world.write_file()


async def cut(world: World) -> None:
    """Connections to an engine break; it goes on meanwhile."""
    chance = world.chance
    found = [r for _, _, r in world.ranks() if r.proxy]
    if found:
        rank = chance.choice(found)
        assert rank.proxy is not None
        rank.proxy.cut()
        if chance.random() < 0.7 and rank.engine.up:
            await rank.engine.store("cut", f"{chance.randrange(60)}")
        await asyncio.sleep(chance.choice([0.0, 0.2, 1.0]))
        rank.proxy.mend()


# What happens to the fleet.


async def edit(world: World) -> None:
    """Engines come, go, move, take another one's address, and change their number of ranks."""
    chance = world.chance
    any_ip = chance.choice(list(world.instances))
    deed = chance.choice(["add", "remove", "reuse", "ranks", "move"])
    coin = [chance.random() < 0.5 for _ in range(3)]
    if deed == "add" and len(world.instances) < 8:
        await world.add_instance(told=coin[0], replay=coin[1], proxied=coin[2], ranks=chance.choice([1, 2]))
    elif deed == "remove" and len(world.instances) > 3:
        del world.instances[any_ip]
    elif deed == "reuse":
        await world.add_instance(
            told=True, replay=coin[1], proxied=coin[2], ranks=chance.choice([1, 2]), ip=any_ip
        )
    elif deed == "ranks":
        instance = world.instances[any_ip]
        instance.listed_ranks = chance.randrange(1, len(instance.ranks) + 1)
    elif deed == "move":
        await world.add_instance(told=False, replay=coin[1], proxied=coin[2], ranks=1, ip=any_ip)
    world.write_file()
    await asyncio.sleep(chance.choice([0.0, 0.0, 1.2]))


# What happens to collectors.


async def end_collector(world: World) -> None:
    """kill -9 or SIGTERM of any of them, most often the leader; another one takes its place."""
    chance = world.chance
    victim = world.leader() if chance.random() < 0.7 else None
    victim = victim or chance.choice(world.collectors)
    world.end_collector(victim, kill=chance.random() < 0.6)
    await asyncio.sleep(chance.choice([0.0, 0.5]))
    world.start_collector()


async def freeze_collector(world: World) -> None:
    """SIGSTOP for longer or shorter than the lease."""
    chance = world.chance
    victim = (world.leader() if chance.random() < 0.7 else None) or chance.choice(world.collectors)
    victim.signal(signal.SIGSTOP)
    until = time.monotonic() + chance.choice([0.3, 1.0, 3.0])
    while time.monotonic() < until:
        await work(world)
        await asyncio.sleep(0.1)
    victim.signal(signal.SIGCONT)


# What happens to Redis.


async def crash_redis(world: World) -> None:
    await world.redis.restart(world.chance, restore=False)


async def restore_redis(world: World) -> None:
    await world.redis.restart(world.chance, restore=True)


async def fail_over(world: World) -> None:
    await world.redis.fail_over(world.chance)


async def back_up(world: World) -> None:
    world.redis.backup()


async def flush(world: World) -> None:
    with world.redis.server.client() as client:
        client.flushall()


async def flush_scripts(world: World) -> None:
    with world.redis.server.client() as client:
        client.script_flush()


async def freeze_redis(world: World) -> None:
    world.redis.server.pause()
    await asyncio.sleep(world.chance.choice([0.3, 0.7, 3.0]))
    world.redis.server.resume()


async def cut_redis(world: World) -> None:
    """What was sent arrives late, or its answer never."""
    chance = world.chance
    if chance.random() < 0.5:
        world.redis.proxy.hold()
        await work(world)
        await asyncio.sleep(chance.choice([0.1, 0.7, 2.5]))
        world.redis.proxy.release()
    else:
        world.redis.proxy.cut()
        await asyncio.sleep(chance.choice([0.0, 0.7, 2.5]))
        world.redis.proxy.mend()


async def out_of_memory(world: World) -> None:
    if world.whole:
        return
    with world.redis.server.client() as client:
        client.config_set("maxmemory", "1mb")
    for _ in range(5):
        await work(world)
        await asyncio.sleep(0.1)
    with world.redis.server.client() as client:
        client.config_set("maxmemory", "0")


# Redis suffers one thing at a time.
TO_REDIS = (
    crash_redis,
    restore_redis,
    fail_over,
    flush,
    flush_scripts,
    freeze_redis,
    cut_redis,
    out_of_memory,
)
DEEDS: dict[Deed, int] = {
    work: 60,
    restart_engine: 6,
    cut: 6,
    edit: 5,
    end_collector: 4,
    freeze_collector: 2,
    crash_redis: 1,
    restore_redis: 1,
    fail_over: 1,
    back_up: 2,
    flush: 1,
    flush_scripts: 2,
    freeze_redis: 1,
    cut_redis: 2,
    out_of_memory: 1,
}


async def storm(world: World, steps: int) -> list[str]:
    """So many deeds, one after the other or two at a time, while engines work; what was done."""
    done = []
    for _ in range(steps):
        count = world.chance.choice([1, 1, 2])
        deeds = list(dict.fromkeys(world.chance.choices(list(DEEDS), list(DEEDS.values()), k=count)))
        if all(deed in (*TO_REDIS, back_up) for deed in deeds):
            del deeds[1:]
        done.append(" + ".join(deed.__name__ for deed in deeds))
        beside = asyncio.create_task(_work_beside(world)) if deeds != [work] else None
        try:
            await asyncio.gather(*(deed(world) for deed in deeds))
        finally:
            if beside:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        await asyncio.sleep(0.02)
    return done


async def _work_beside(world: World) -> None:
    while True:
        await asyncio.sleep(0.1)
        await work(world)


async def calm(world: World, seconds: float = 60.0) -> list[str]:
    """Let every engine say something, until nothing is wrong; what is still wrong after so many seconds."""
    world.write_file()
    until = time.monotonic() + seconds
    wrong = ["nothing was looked at"]
    spoken = False
    began = time.monotonic()
    while wrong and time.monotonic() < until:
        with contextlib.suppress(redis.RedisError):
            wrong = world.wrong()
            if not spoken and world.index.leader() and time.monotonic() - began > 4:
                spoken = True
                for _, _, rank in world.ranks():
                    await rank.engine.store("last word")
                wrong = ["just spoken"]
        await asyncio.sleep(0.2)
    return wrong
