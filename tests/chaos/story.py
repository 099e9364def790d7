"""One seeded story, from the start of everything to what is wrong in the end."""

import asyncio
import json
from pathlib import Path

from tests.chaos.deeds import calm, storm, work
from tests.chaos.world import World
from tests.fleet import PREFIX, ready


async def tell(directory: Path, seed: int, steps: int, collectors: int = 2) -> list[str]:
    """What is wrong after `steps` deeds; nothing, it is hoped."""
    world = World(directory, seed)
    async with world.running(collectors):
        await asyncio.gather(*(ready(p) for p in world.collectors))
        for _ in range(10):
            await work(world)
        done = await storm(world, steps)
        (directory / "done.json").write_text(json.dumps(done))
        found = await calm(world)
        states = {f"{i.ip}:{n}": world.index.stream(i.ip, n).get("state") for i, n, _ in world.ranks()}
        (directory / "states.json").write_text(json.dumps(states))
        found += await world.verify()
        found += await desert(world)
        found += await end(world)
        found += world.complaints()
    return [f"seed {seed}: {text}" for text in found]


async def desert(world: World) -> list[str]:
    """All engines go for good: nothing of them may stay but free slots."""
    world.instances.clear()
    found = await calm(world)
    with world.redis.server.client() as client:
        kinds = ("blocks:", "holder:", "aside:", "retired:", "slots:l", "stream:")
        left = [
            k for k in client.scan_iter(f"{PREFIX}*") if k.decode().removeprefix(PREFIX).startswith(kinds)
        ]
    return found + [f"{key} is still there" for key in left]


async def end(world: World) -> list[str]:
    """SIGTERM for all that still run."""
    for process in list(world.collectors):
        world.end_collector(process, kill=False)
    found = []
    for process in world.ended:
        status = await asyncio.to_thread(process.process.wait, 20)
        if status not in (0, -9):
            found.append(f"{process.log.name} ended with {status}")
    return found
