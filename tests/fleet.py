"""Collectors, in this process or as processes of their own, and what they made of the index."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from collector.app import run_collector
from indexer.config import load
from tests.fake_engine import Engine
from tests.ports import free_port
from tests.servers import Server

POOL = "default"
PREFIX = f"kvi:{{{POOL}}}:"


def settings(server: Server, engines: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration file's content: engines by address, each one Engine or a list (its ranks)."""
    listed = [
        {
            "ip": ip,
            "ranks": [
                {"events": e.url} | ({"replay": e.replay_url} if e.replay_url else {})
                for e in (engine if isinstance(engine, list) else [engine])
            ],
        }
        for ip, engine in engines.items()
    ]
    return {
        "redis": {"url": server.url},
        "discovery": {"source": "static", "static": {"engines": listed}},
        "collector": {"addr": f"127.0.0.1:{free_port()}"},
        "ingest": {"l1": {"backoffInitial": "100ms", "backoffMax": "200ms"}},
    } | more


@contextlib.asynccontextmanager
async def collecting(tmp_path: Path, content: Mapping[str, Any]) -> AsyncIterator[asyncio.Task[None]]:
    """A collector on this event loop."""
    stop = asyncio.Event()
    path = tmp_path / f"collector-{free_port()}.yaml"
    path.write_text(json.dumps(content))
    task = asyncio.create_task(run_collector(load(path, {}, {}), stop=stop))
    try:
        yield task
    finally:
        stop.set()
        await task


class Process:
    """A collector as a process of its own."""

    def __init__(self, tmp_path: Path, content: Mapping[str, Any]) -> None:
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        path = tmp_path / f"collector-{port}.yaml"
        path.write_text(
            json.dumps(
                {**content, "collector": {**content.get("collector", {}), "addr": f"127.0.0.1:{port}"}}
            )
        )
        self.log = tmp_path / f"collector-{port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("cache-indexer"), "collect", "--config", path],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(20)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Index:
    """What stands in Redis, read by key names as anybody may."""

    def __init__(self, server: Server) -> None:
        self._redis = server.client(decode_responses=False)

    def held(self, ip: str, rank: int = 0, tier: str = "l1") -> set[str]:
        """Blocks of a holder."""
        return {b.decode() for b in self._redis.smembers(f"{PREFIX}holder:{tier}:{ip}:{rank}")}

    def shown(self, ip: str, rank: int = 0, tier: str = "l1") -> set[str]:
        """Blocks that the bitmaps show for a holder: what a lookup goes by."""
        slot = self._redis.hget(f"{PREFIX}slots:{tier}", f"{tier}:{ip}:{rank}")
        if slot is None:
            return set()
        byte, bit = divmod(int(slot), 8)
        maps = self._redis.hgetall(f"{PREFIX}blocks:{tier}")
        return {b.decode() for b, m in maps.items() if len(m) > byte and m[byte] >> bit & 1}

    def stream(self, ip: str, rank: int = 0) -> dict[str, Any]:
        """A stream's hash; numbers as numbers."""
        raw = self._redis.hgetall(f"{PREFIX}stream:{ip}:{rank}")
        return {
            k.decode(): int(v) if v.isdigit() else v if k == b"ts" else v.decode() for k, v in raw.items()
        }

    def next(self, ip: str, rank: int = 0) -> int:
        """The stream's expected sequence; 0 when it isn't there."""
        return int(self._redis.hget(f"{PREFIX}stream:{ip}:{rank}", "next") or 0)

    def meta(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self._redis.hgetall(f"{PREFIX}meta").items()}

    def leader(self) -> bytes | None:
        value = self._redis.get(f"{PREFIX}leader")
        assert value is None or isinstance(value, bytes)
        return value

    def standbys(self) -> list[bool]:
        """Whether each standby that spoke lately is warm."""
        seconds, _ = self._redis.time()
        marks = (v.decode().split(":") for v in self._redis.hgetall(f"{PREFIX}standbys").values())
        return [warm == "1" for at, warm in marks if int(at) > (seconds - 3) * 1000]

    def rev(self) -> int:
        """The write counter."""
        return int(self._redis.get(f"{PREFIX}rev") or 0)

    def term(self) -> int:
        return int(self._redis.get(f"{PREFIX}term") or 0)


async def until(condition: Callable[[], object], seconds: float = 40.0) -> None:
    """Wait for a condition; a failure shows it."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (it looks into Redis)
            await asyncio.sleep(0.01)


async def agrees(index: Index, ip: str, engine: Engine, rank: int = 0, seconds: float = 40.0) -> None:
    """Wait until the index has taken in all that the engine published and shows exactly what it holds."""

    def same() -> bool:
        return index.stream(ip, rank).get("next") == engine.seq and index.shown(ip, rank) == engine.held

    try:
        await until(same, seconds)
    except TimeoutError:
        extra, lacking = index.shown(ip, rank) - engine.held, engine.held - index.shown(ip, rank)
        raise AssertionError(
            f"{index.stream(ip, rank)}, engine at {engine.seq}; extra {extra}, lacking {lacking}"
        ) from None


async def ready(process: Process, seconds: float = 90.0) -> None:
    """Wait until a collector process says that it is ready."""
    import aiohttp

    async with aiohttp.ClientSession() as session, asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(process.base + "/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
