"""The collector around its streams: a fleet that changes, wrong hash configurations, what it shows."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest

from collector.capture import load
from collector.replayer import Replayer
from tests.fake_engine import Engine, block
from tests.fleet import Index, agrees, collecting, settings, until
from tests.ports import free_port
from tests.servers import Server

IP = "10.0.0.1"
DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def index(redis_server: Server) -> Index:
    return Index(redis_server)


class Listing:
    """A watched file of engines, and the configuration that names it."""

    def __init__(self, tmp_path: Path, server: Server) -> None:
        self.path = tmp_path / "engines.yaml"
        self.content = settings(
            server,
            {},
            discovery={
                "source": "file",
                "file": str(self.path),
                "refreshInterval": "100ms",
                "grace": "300ms",
            },
        )

    def write(self, engines: dict[str, tuple[Engine, str]]) -> None:
        """Engines by address, each with its incarnation."""
        listed = [
            {
                "ip": ip,
                "incarnation": incarnation,
                "ranks": [{"events": e.url} | ({"replay": e.replay_url} if e.replay_url else {})],
            }
            for ip, (e, incarnation) in engines.items()
        ]
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"engines": listed}))
        new.replace(self.path)


@pytest.fixture
def listing(tmp_path: Path, redis_server: Server) -> Listing:
    return Listing(tmp_path, redis_server)


async def test_an_engine_that_is_gone_takes_its_blocks_along(
    index: Index, listing: Listing, tmp_path: Path
) -> None:
    async with Engine() as engine, Engine() as other:
        listing.write({IP: (engine, "a1"), "10.0.0.2": (other, "b1")})
        async with collecting(tmp_path, listing.content):
            await engine.heard()
            await other.heard()
            await engine.store("a")
            await other.store("a")
            await agrees(index, IP, engine)
            await agrees(index, "10.0.0.2", other)
            listing.write({"10.0.0.2": (other, "b1")})
            await until(lambda: not index.stream(IP))
            assert index.shown(IP) == set()
            # Late events of what is gone revive nothing.
            await engine.store("b")
            await other.store("c")
            await agrees(index, "10.0.0.2", other)
            assert not index.stream(IP)
            assert index.shown(IP) == set()


async def test_a_new_incarnation_begins_a_new_life_whatever_its_sequence_says(
    index: Index, listing: Listing, tmp_path: Path
) -> None:
    """Discovery knows of the restart; the new engine is exactly at our next."""
    async with Engine() as engine:
        listing.write({IP: (engine, "a1")})
        async with collecting(tmp_path, listing.content):
            await engine.heard()
            await engine.store("a")
            await engine.store("b")
            await agrees(index, IP, engine)
            await engine.restart(silently=2)
            await engine.heard()
            listing.write({IP: (engine, "a2")})
            await engine.store("c")
            await until(lambda: index.stream(IP).get("incarnation") == "a2")
            await until(lambda: index.stream(IP).get("next") == engine.seq)
            assert index.shown(IP) == {block("c")}
            assert index.stream(IP)["state"] == "suspect"  # two batches of the new life were missed


async def test_a_new_incarnation_that_was_heard_from_its_start_loses_nothing(
    index: Index, listing: Listing, tmp_path: Path
) -> None:
    async with Engine() as engine:
        listing.write({IP: (engine, "a1")})
        async with collecting(tmp_path, listing.content):
            await engine.heard()
            await engine.store("a")
            await agrees(index, IP, engine)
            await engine.restart()
            await engine.heard()
            await engine.store("b")
            await engine.store("c")
            await agrees(index, IP, engine)
            listing.write({IP: (engine, "a2")})
            await until(lambda: index.stream(IP).get("incarnation") == "a2")
            await engine.store("d")
            await agrees(index, IP, engine)
            assert index.stream(IP)["state"] == "live"


async def test_an_incarnation_change_breaks_with_a_connection_that_never_broke(
    index: Index, listing: Listing, tmp_path: Path
) -> None:
    """A dead node's connection looks alive for a while; the address is another engine's already."""
    async with Engine() as old, Engine() as new:
        listing.write({IP: (old, "a1")})
        async with collecting(tmp_path, listing.content):
            await old.heard()
            await old.store("a")
            await agrees(index, IP, old)
            listing.write({IP: (old, "a2")})
            await until(lambda: index.stream(IP).get("incarnation") == "a2")
            assert index.shown(IP) == set()
            listing.write({IP: (new, "a3")})
            await new.heard()
            await new.store("b")
            await agrees(index, IP, new)


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ({"pythonHashSeed": "7"}, "seed"),
        ({"prefixCachingHashAlgo": "sha256"}, "algorithm"),
    ],
)
async def test_a_wrong_hash_configuration_is_named(
    redis_server: Server, index: Index, tmp_path: Path, key: dict[str, str], word: str
) -> None:
    async with Replayer(load(DATA / "capture-0.18.0-bs32-int.jsonl.gz")) as engine:
        events = engine.target(IP).ranks[0].events
        listed = {"engines": [{"ip": IP, "ranks": [{"events": events}]}]}
        content = settings(redis_server, {}, discovery={"source": "static", "static": listed}, blockKey=key)
        async with collecting(tmp_path, content):
            await engine.subscribed()
            for _ in range(8):
                await engine.step()
            await until(lambda: index.stream(IP).get("state") == "mismatch")
            assert word in index.stream(IP)["cause"]
            await until(lambda: word in index.meta().get("mismatch", ""))
        right = settings(redis_server, {}, discovery={"source": "static", "static": listed})
        async with collecting(tmp_path, right):
            await engine.restart()
            await engine.subscribed()
            for _ in range(8):
                await engine.step()
            await until(lambda: index.stream(IP).get("state") == "live")
            await until(lambda: "mismatch" not in index.meta())


async def test_it_shows_health_readiness_and_metrics(
    redis_server: Server, index: Index, tmp_path: Path
) -> None:
    async with Engine() as engine:
        content = settings(redis_server, {IP: engine})
        base = "http://" + content["collector"]["addr"]
        async with collecting(tmp_path, content), aiohttp.ClientSession() as session:
            await engine.heard()
            await engine.store("a", "b")
            await agrees(index, IP, engine)

            async def get(path: str) -> tuple[int, str]:
                async with session.get(base + path) as answer:
                    return answer.status, await answer.text()

            assert (await get("/healthz"))[0] == 200
            assert (await get("/readyz"))[0] == 200
            status, text = await get("/metrics")
            assert status == 200
            assert 'cache_indexer_collector_leader{pool="default"} 1.0' in text
            assert 'cache_indexer_collector_blocks_total{kind="store",pool="default"} 2.0' in text
            assert (await get("/nothing"))[0] == 404


async def test_a_collector_that_never_saw_redis_is_not_ready(redis_server: Server, tmp_path: Path) -> None:
    """What it does not know it can't take over; a rolling update must not end the one that does."""
    content = settings(redis_server, {}) | {"redis": {"url": f"redis://127.0.0.1:{free_port()}"}}
    async with collecting(tmp_path, content), aiohttp.ClientSession() as session:
        base = f"http://{content['collector']['addr']}"
        for _ in range(10):
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"{base}/readyz") as answer:
                    assert (answer.status, await answer.text()) == (503, "not yet warm: default\n")
            await asyncio.sleep(0.1)
        async with session.get(f"{base}/healthz") as answer:
            assert answer.status == 200


async def test_engines_listen_on_ipv6_too(redis_server: Server, index: Index, tmp_path: Path) -> None:
    engine = Engine(host="[::1]", replay=True)
    async with engine, collecting(tmp_path, settings(redis_server, {"fd00::7": engine})):
        await engine.heard()
        await engine.store("a")
        await agrees(index, "fd00::7", engine)


async def test_a_hundred_engines_at_once(redis_server: Server, index: Index, tmp_path: Path) -> None:
    engines = {f"10.0.1.{i}": Engine() for i in range(100)}
    try:
        await asyncio.gather(*(e.start() for e in engines.values()))
        async with collecting(tmp_path, settings(redis_server, engines)):
            await asyncio.gather(*(e.heard() for e in engines.values()))
            for i, engine in enumerate(engines.values()):
                await engine.store(f"b{i}", "shared")
            for ip, engine in engines.items():
                await agrees(index, ip, engine)
    finally:
        for engine in engines.values():
            await engine.__aexit__()
