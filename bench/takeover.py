"""How long an event can take to become visible when the leader is killed.

    python bench/takeover.py [--kills 3]

An engine without a replay socket publishes a batch every 20 ms; four collector processes listen; the one that
leads is killed (SIGKILL) again and again. Prints one JSON object: the longest time from a batch's publication
to its visibility around each kill, and whether anything was lost.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import servers
from tests.fake_engine import Engine
from tests.fleet import Index, Process, ready, settings

IP = "10.0.0.1"


async def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    server = servers.start("valkey")
    processes: list[Process] = []
    try:
        with tempfile.TemporaryDirectory() as directory:
            async with Engine() as engine:
                content = settings(server, {IP: engine}, log={"level": "warning"})
                processes += [Process(Path(directory), content) for _ in range(options.kills + 1)]
                for process in processes:
                    await ready(process)
                await engine.heard(len(processes))
                print(json.dumps(await measure(server, engine, processes, options.kills), indent=2))
    finally:
        for process in processes:
            process.kill()
        server.close()


async def measure(
    server: servers.Server, engine: Engine, processes: list[Process], kills: int
) -> dict[str, Any]:
    """Publish, kill, and watch `next`."""
    index = Index(server)
    published: list[float] = []
    slowest = 0.0
    worst: list[float] = []
    done = 0

    async def watch(seconds: float) -> None:
        """For so long, and then until nothing is left."""
        nonlocal done, slowest
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or done < len(published):
            seen = await asyncio.to_thread(index.next, IP)
            now = time.perf_counter()
            for seq in range(done, seen):
                slowest = max(slowest, now - published[seq])
            done = max(done, seen)
            await asyncio.sleep(0.005)

    async def publish(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            published.append(time.perf_counter())
            await engine.store(f"b{len(published)}")
            await asyncio.sleep(0.02)

    for _ in range(kills):
        await asyncio.gather(publish(2.5), watch(2.5))
        slowest = 0.0
        leader = (index.leader() or b"").decode()
        next(p for p in processes if f"-{p.process.pid}-" in leader).kill()
        await asyncio.gather(publish(4.0), watch(4.0))
        worst.append(round(slowest, 2))
    stream = index.stream(IP)
    return {
        "slowest_event_seconds": worst,
        "state": stream["state"],
        "missing": stream.get("missing", 0),
        "right": index.shown(IP) == engine.held,
    }


if __name__ == "__main__":
    asyncio.run(main())
