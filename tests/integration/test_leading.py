"""What a leader must not take for granted: where streams stood when it began, and that Redis remembers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import zmq

from collector.discovery import source
from collector.membership import Feed, View
from collector.metrics import Metrics
from collector.pool import PoolCollector
from indexer.config import load
from indexer.index.connect import connect
from indexer.index.writer import IndexWriter
from tests.fake_engine import Engine, block
from tests.fleet import Index, Process, agrees, collecting, hears_sigterm, settings, until
from tests.ports import free_port
from tests.servers import Server

IP = "10.0.0.1"


def watched(server: Server, file: Path) -> dict[str, Any]:
    return settings(server, {}, discovery={"source": "file", "file": str(file), "grace": "300ms"})


def list_engine(file: Path, engine: Engine, incarnation: str | None = None) -> None:
    new = file.with_suffix(".new")
    listed = {"ip": IP, "incarnation": incarnation, "ranks": [{"events": engine.url}]}
    new.write_text(json.dumps({"engines": [listed]}))
    new.replace(file)


async def test_an_engine_at_another_port_with_its_clock_behind_is_no_echo_of_the_one_before(
    redis_server: Server, tmp_path: Path
) -> None:
    """Its batches have numbers and times that were applied before: only where the leader knows how far the
    stream was before it heard this engine does that show."""
    index, file = Index(redis_server), tmp_path / "engines.yaml"
    async with Engine() as before, Engine(clock=5.0) as after:
        list_engine(file, before)
        async with collecting(tmp_path, watched(redis_server, file)):
            await before.heard()
            for name in "abcd":
                await before.store(name)
            await agrees(index, IP, before)
            list_engine(file, after)
            await after.heard()
            await after.store("x")
            await after.store("y")
            await agrees(index, IP, after)


async def test_an_engine_of_long_ago_does_not_come_back_with_an_emptied_redis(
    redis_server: Server, tmp_path: Path
) -> None:
    """A standby still has what the engine before said. Nothing but discovery tells the two apart: the number
    at which the second one was heard first is the one that was due from the first."""
    index, file = Index(redis_server), tmp_path / "engines.yaml"
    async with Engine() as engine:
        list_engine(file, engine, "a")
        leader = Process(tmp_path, watched(redis_server, file))
        try:
            await until(index.leader)
            async with collecting(tmp_path, watched(redis_server, file)):
                await engine.heard(2)
                await engine.store("a", "b")
                await agrees(index, IP, engine)
                await engine.restart(silently=1)
                await engine.heard(2)
                list_engine(file, engine, "b")
                await until(lambda: index.stream(IP).get("incarnation") == "b")
                await asyncio.sleep(1.5)  # the standby looks at the file, too
                await engine.store("x")
                await until(lambda: index.shown(IP) == {block("x")})
                leader.kill()
                redis_server.wipe()
                await until(lambda: index.stream(IP).get("next") == 2)
                assert index.shown(IP) == {block("x")}
        finally:
            leader.kill()


async def test_a_loss_that_the_write_counter_hides_is_found(redis_server: Server, tmp_path: Path) -> None:
    """A replica that lagged was promoted, and writes to it that nobody confirmed raised its counter again.
    The stream says nothing more, so no write of its own could tell."""
    index = Index(redis_server)
    async with Engine() as engine, collecting(tmp_path, settings(redis_server, {IP: engine})):
        await engine.heard()
        await engine.store("a", "b")
        await agrees(index, IP, engine)
        with redis_server.client() as client:
            old = {
                key: client.dump(key) for key in client.scan_iter() if not key.endswith((b"rev", b"leader"))
            }
            await engine.remove("a")
            await engine.store("c")
            await agrees(index, IP, engine)
            with client.pipeline() as transaction:
                for key, value in old.items():
                    transaction.restore(key, 0, value, replace=True)
                transaction.execute()
        assert index.held(IP) != engine.held
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "live"


async def test_an_evicting_redis_is_told_of_once(redis_server: Server, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        process = Process(tmp_path, settings(redis_server, {}))
        try:
            await until(lambda: "maxmemory-policy allkeys-lru" in process.log.read_text())
            await asyncio.sleep(2)  # it has tried again meanwhile
            client.config_set("maxmemory-policy", "noeviction")
            await until(Index(redis_server).leader)
            assert process.log.read_text().count("maxmemory-policy allkeys-lru") == 1
            assert process.terminate() == 0
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            process.kill()


async def test_views_that_overtake_each_other(redis_server: Server, tmp_path: Path) -> None:
    """A grace time runs out while an edit is being followed: both end the same listeners."""
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(settings(redis_server, {})))
    config = load(path, {}, {})
    client, context = await connect(config.redis), zmq.Context()
    pool = config.pools[0]
    collector = PoolCollector(
        config,
        pool,
        IndexWriter(client, pool.name, 5),
        source(pool.discovery, "http"),
        "me",
        context,
        Metrics(),
    )
    feeds = tuple(Feed(f"10.0.0.{n}", 0, f"tcp://127.0.0.1:{free_port()}", None, None) for n in range(5))
    await collector._follow(View(feeds, complete=True))
    await asyncio.gather(
        collector._follow(View(feeds[4:], complete=True)),
        collector._follow(View(feeds[:1], complete=True)),
    )
    assert [key.ip for key in collector._listeners] == ["10.0.0.0"]
    await collector._follow(View(complete=True))
    await client.aclose()
    context.destroy(linger=0)


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux tells who handles which signal")
async def test_sigterm_at_any_moment_of_the_start_is_success(redis_server: Server, tmp_path: Path) -> None:
    """Also twice: the interpreter needs a while to end."""
    for pause in (0.0, 0.3, 0.6, 1.0):
        process = Process(tmp_path, settings(redis_server, {}))
        await until(lambda pid=process.process.pid: hears_sigterm(pid))
        await asyncio.sleep(pause)
        process.process.terminate()
        await asyncio.sleep(pause / 10)
        assert process.terminate() == 0
