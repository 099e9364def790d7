"""One seeded story, from the start of everything to what is wrong in the end."""

import asyncio
import json
from pathlib import Path

from tests.chaos.deeds import calm, storm, work
from tests.chaos.world import World
from tests.fleet import ready


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
        found += await end(world)
        found += world.complaints()
    return [f"seed {seed}: {text}" for text in found]


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
