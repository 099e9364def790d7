"""Everything that chaos happens to: a Redis behind a proxy, collector processes, engines, a watched file.

Each part can be hurt by itself; `truth` tells what the index must say once all is quiet.
"""

import asyncio
import contextlib
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import redis

from indexer.config import load
from indexer.index.connect import connect
from indexer.index.verify import verify
from tests import servers
from tests.fake_engine import Engine
from tests.fleet import POOL, PREFIX, Index, Process, hears_sigterm
from tests.proxy import Proxy

GRACE = 1.5
MAY_DIFFER = ("suspect", "lost", "connecting", "mismatch")
"""States by which a stream says that its content may not be the engine's."""


class Rank:
    """An engine process of an instance, and the way to it."""

    def __init__(self, engine: Engine, proxy: Proxy | None) -> None:
        self.engine, self.proxy = engine, proxy

    def listed(self) -> dict[str, str]:
        port = self.proxy.port if self.proxy else self.engine.port
        found = {"events": f"tcp://127.0.0.1:{port}"}
        return found | ({"replay": self.engine.replay_url} if self.engine.replay_url else {})


class Instance:
    """As discovery lists it. `told`: its restarts show in discovery, by another incarnation."""

    def __init__(self, ip: str, ranks: list[Rank], told: bool) -> None:
        self.ip, self.ranks, self.told = ip, ranks, told
        self.number = 0
        self.listed_ranks = len(ranks)

    def listed(self) -> dict[str, Any]:
        ranks = [rank.listed() for rank in self.ranks[: self.listed_ranks]]
        told = {"incarnation": f"{self.ip}-{self.number}"} if self.told else {}
        return {"ip": self.ip, "ranks": ranks} | told


class Redis:
    """One Redis at one address over restarts, restores and failovers."""

    def __init__(self) -> None:
        self.server = self._start()
        self.proxy = Proxy(self.server.port)
        self._backups: list[Path] = []

    def _start(self, **more: Any) -> servers.Server:
        return servers.start(
            "valkey", options={"appendonly": "yes", "auto-aof-rewrite-percentage": "0"}, **more
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}/0"

    def backup(self) -> None:
        """Remember the state on disk: a log that only grows is whole at any length."""
        copy = self.server.directory / f"backup-{len(self._backups)}"
        shutil.copytree(self.server.directory / "appendonlydir", copy)
        self._backups.append(copy)

    async def restart(self, chance: random.Random, *, restore: bool) -> None:
        """Crash and start again with what was on disk, or with what an earlier backup has."""
        self.server.kill()
        if restore and self._backups:
            live = self.server.directory / "appendonlydir"
            shutil.rmtree(live)
            shutil.copytree(chance.choice(self._backups), live)
        await asyncio.sleep(chance.choice([0.0, 0.3, 2.5]))
        await asyncio.to_thread(self.server.start)

    async def fail_over(self, chance: random.Random) -> None:
        """A replica is promoted; the primary goes on for a while that nobody will remember."""
        replica = await asyncio.to_thread(self._start, replica_of=self.server)
        await asyncio.sleep(0.3)
        with replica.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        await asyncio.sleep(chance.choice([0.0, 0.2, 1.0]))
        old, self.server = self.server, replica
        self._backups = []
        self.proxy.retarget(replica.port)
        replica.options.pop("replicaof")
        old.close()

    def close(self) -> None:
        self.server.close()


class World:
    """Made from a seed; use `running`. With an even one nothing is lost for ever: every engine can replay all
    that it said, and Redis has memory. Then the index must be right, whatever it says of itself."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self.tmp_path = tmp_path
        self.chance = random.Random(seed)
        self.whole = seed % 2 == 0
        self.file = tmp_path / "engines.yaml"
        self.instances: dict[str, Instance] = {}
        self.gone: list[Instance] = []
        self.collectors: list[Process] = []
        self.ended: list[Process] = []
        self.statuses: list[int] = []
        self._made = 0

    @contextlib.asynccontextmanager
    async def running(self, collectors: int):  # type: ignore[no-untyped-def]
        """Engines, Redis and collectors, until the end."""
        async with contextlib.AsyncExitStack() as stack:
            self._stack = stack
            self.redis = Redis()
            stack.callback(self.redis.close)
            await stack.enter_async_context(self.redis.proxy.running())
            for told, replay, proxied, ranks in (
                (True, True, False, 1),
                (True, False, True, 1),
                (False, False, False, 1),
                (False, True, True, 1),
                (False, False, True, 2),
            ):
                await self.add_instance(told=told, replay=replay, proxied=proxied, ranks=ranks)
            self.write_file()
            stack.callback(self._kill_collectors)
            for _ in range(collectors):
                self.start_collector()
            yield self

    def _kill_collectors(self) -> None:
        for process in self.collectors:
            process.kill()

    @property
    def index(self) -> Index:
        return Index(self.redis.server)

    # The fleet.

    async def add_instance(
        self, *, told: bool, replay: bool, proxied: bool, ranks: int, ip: str = ""
    ) -> Instance:
        self._made += 1
        ip = ip or f"10.0.0.{self._made}"
        instance = Instance(ip, [await self._rank(replay, proxied, r) for r in range(ranks)], told)
        instance.number = self._made * 1000
        self.instances[ip] = instance
        return instance

    async def _rank(self, replay: bool, proxied: bool, rank: int) -> Rank:
        engine = Engine(
            replay=replay or self.whole,
            topic_in_replay=self.chance.random() < 0.5,
            rank=rank,
            keep=10_000 if self.whole else self.chance.choice([20, 10_000]),
            clock=1_000_000.0 + 1000 * self._made,
        )
        await self._stack.enter_async_context(engine)
        proxy = Proxy(engine.port) if proxied else None
        if proxy:
            await self._stack.enter_async_context(proxy.running())
        return Rank(engine, proxy)

    def write_file(self) -> None:
        """Let discovery see the fleet as it is."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"engines": [i.listed() for i in self.instances.values()]}))
        new.replace(self.file)

    def ranks(self) -> list[tuple[Instance, int, Rank]]:
        return [(i, n, r) for i in self.instances.values() for n, r in enumerate(i.ranks[: i.listed_ranks])]

    # Collectors.

    def start_collector(self) -> Process:
        limits = {"bufferBatches": self.chance.choice([30, 10_000]), "leaseDuration": "2s"}
        on_gap = self.chance.choice(["keep", "keep", "wipe"])
        content = {
            "redis": {"url": self.redis.url},
            "discovery": {"source": "file", "file": str(self.file), "grace": f"{GRACE}s"},
            "collector": limits,
            "ingest": {"l1": {"backoffInitial": "100ms", "backoffMax": "400ms", "onGap": on_gap}},
        }
        process = Process(self.tmp_path, content)
        self.collectors.append(process)
        return process

    def leader(self) -> Process | None:
        """The collector process that leads, as far as Redis knows."""
        name = b""
        with contextlib.suppress(redis.RedisError), self.redis.server.client(socket_timeout=1) as client:
            name = client.get(f"{PREFIX}leader") or b""
        found = [p for p in self.collectors if f"-{p.process.pid}-" in name.decode()]
        return found[0] if found else None

    def end_collector(self, process: Process, *, kill: bool) -> None:
        self.collectors.remove(process)
        self.ended.append(process)
        if kill:
            process.kill()
        else:
            _await_handler(process)
            process.process.terminate()

    # What must be true in the end.

    def wrong(self) -> list[str]:
        """Streams that claim what is not so, and streams that should not be there."""
        index = self.index
        found = []
        for instance, number, rank in self.ranks():
            stream = index.stream(instance.ip, number)
            engine = rank.engine
            name = f"{instance.ip}:{number} ({engine.seq=})"
            if stream.get("next") != engine.seq:
                found.append(f"{name} is at {stream}")
            elif stream["state"] in ("lost", "connecting"):
                found.append(f"{name} is {stream['state']}, and its engine can be reached")
            elif self.whole or stream["state"] not in MAY_DIFFER:
                extra = index.shown(instance.ip, number) - engine.held
                lacking = engine.held - index.shown(instance.ip, number)
                if extra or lacking:
                    found.append(f"{name}: {len(extra)} too many, {len(lacking)} too few: {stream}")
        with self.redis.server.client() as client:
            there = {s.decode() for s in client.smembers(f"{PREFIX}streams")}
            expected = {f"{i.ip}:{n}" for i, n, _ in self.ranks()}
            if there != expected:
                found.append(f"streams {there ^ expected} should (not) be there")
            left = {tier: client.scard(f"{PREFIX}retired:{tier}") for tier in ("l1", "l2")}
            if any(left.values()):
                found.append(f"slots are still retired: {left}")
            holders = {h.decode() for h in client.hkeys(f"{PREFIX}slots:l1")}
            if extra := holders - {f"l1:{name}" for name in expected}:
                found.append(f"holders without streams: {extra}")
        return found

    async def verify(self) -> tuple[str, ...]:
        """What `cache-indexer verify` finds."""
        config = load(None, {}, {"redis.url": self.redis.server.url})
        client = await connect(config.redis)
        try:
            return (await verify(client, POOL)).findings
        finally:
            await client.aclose()

    def complaints(self) -> list[str]:
        """What no log may hold."""
        words = ("Traceback", "failed:", "leading failed", "stream failed", "never retrieved", "Exception")
        return [
            f"{process.log.name}: {line[:300]}"
            for process in (*self.collectors, *self.ended)
            for line in process.log.read_text().splitlines()
            if any(word in line for word in words)
        ]


def _await_handler(process: Process) -> None:
    """Nobody can answer for the time before the interpreter runs our first line."""
    while process.process.poll() is None and not hears_sigterm(process.process.pid):
        time.sleep(0.02)
