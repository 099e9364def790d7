"""Leaders that die, freeze or are cut off, as processes of their own: what a standby makes of it."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from collector.capture import Request, load
from collector.replayer import Replayer
from indexer.blocks import unpack
from indexer.config.pool import BlockKey
from indexer.engines import engine as engine_of
from indexer.engines.base import Prompt
from tests.fake_engine import Engine, block
from tests.fleet import Index, Process, agrees, collecting, ready, settings, until
from tests.proxy import Proxy
from tests.servers import Server

IP = "10.0.0.1"
CONVERSATIONS = Path(__file__).parent.parent / "data" / "conversations-0.18.0-a.jsonl.gz"


@pytest.fixture
def index(redis_server: Server) -> Index:
    return Index(redis_server)


class Fleet:
    """Collector processes with one configuration; ends those that are left."""

    def __init__(self, tmp_path: Path, content: dict[str, Any]) -> None:
        self._tmp_path, self._content = tmp_path, content
        self.running: list[Process] = []

    async def add(self) -> Process:
        process = Process(self._tmp_path, self._content)
        self.running.append(process)
        await ready(process)
        return process

    def kill_leader(self, index: Index) -> None:
        """kill -9 of the one that leads."""
        victim = self.leader(index)
        victim.kill()
        self.running.remove(victim)

    def leader(self, index: Index) -> Process:
        """The one that leads."""
        name = (index.leader() or b"").decode()
        (process,) = [p for p in self.running if f"-{p.process.pid}-" in name]
        return process

    def close(self) -> None:
        for process in self.running:
            process.signal(signal.SIGCONT)
            process.kill()


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    started: list[Fleet] = []

    def start(content: dict[str, Any]) -> Fleet:
        started.append(Fleet(tmp_path, content))
        return started[-1]

    yield start
    for fleet in started:
        fleet.close()


def _blocks(index: Index, request: Request) -> int:
    """Blocks of the prompt's prefix that the index shows for the engine, as the engine itself would count."""
    rule = engine_of(BlockKey()).rule
    shown = index.shown(IP)
    chains = rule.chains(Prompt(request.prompt, 32, cache_salt=request.cache_salt))
    best = max(sum(1 for _ in takewhile(shown.__contains__, unpack(chain))) for chain in chains)
    return min(best, (len(request.prompt) - 1) // 32)


@pytest.mark.timeout(300)
async def test_killing_the_leader_three_times_loses_nothing_of_a_conversation(
    redis_server: Server, index: Index, fleets: Any
) -> None:
    """No replay socket: only the standby's own ears can bridge the time without a leader."""
    capture = load(CONVERSATIONS)
    async with Replayer(capture) as engine:
        (rank,) = engine.target(IP).ranks
        listed = [{"ip": IP, "ranks": [{"events": rank.events}]}]
        fleet = fleets(
            settings(redis_server, {}, discovery={"source": "static", "static": {"engines": listed}})
        )
        await asyncio.gather(*(fleet.add() for _ in range(4)))
        await engine.subscribed(4)
        published = asked = 0
        while (step := engine.next_step) is not None:
            for request in step.requests:
                assert _blocks(index, request) * 32 == request.cached
                asked += 1
            await engine.step()
            published += len(step.frames)
            if engine.position in (60, 130, 200):
                fleet.kill_leader(index)
                # Goes on while nobody leads.
                for _ in range(5):
                    following = engine.next_step
                    assert following is not None
                    await engine.step()
                    published += len(following.frames)
                    asked += len(following.requests)
            await until(lambda n=published: index.stream(IP).get("next") == n)
        assert asked == 250
        stream = index.stream(IP)
        assert stream["state"] == "live"
        assert stream.get("gaps", 0) == stream.get("restarts", 0) == 0
        assert index.term() >= 4  # on a busy machine a lease may run out besides


async def test_sigterm_hands_over_and_ends_with_success(
    redis_server: Server, index: Index, fleets: Any
) -> None:
    async with Engine() as engine:
        fleet = fleets(settings(redis_server, {IP: engine}))
        await fleet.add()
        await fleet.add()
        await engine.heard(2)
        await engine.store("a")
        await agrees(index, IP, engine)
        leader = fleet.leader(index)
        assert leader.terminate() == 0
        fleet.running.remove(leader)
        await engine.store("b")
        await engine.remove("a")
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "live"


async def test_a_frozen_leader_that_wakes_up_is_fenced(
    redis_server: Server, index: Index, fleets: Any
) -> None:
    async with Engine() as engine:
        fleet = fleets(settings(redis_server, {IP: engine}))
        await fleet.add()
        await fleet.add()
        await engine.heard(2)
        await engine.store("a", "b")
        await agrees(index, IP, engine)
        frozen = fleet.leader(index)
        frozen.signal(signal.SIGSTOP)
        await engine.remove("a")
        await agrees(index, IP, engine)
        term = index.term()
        assert term == 2
        # What the frozen one still has in its ears must not be written: "a" would come back.
        await engine.store("c")
        frozen.signal(signal.SIGCONT)
        await agrees(index, IP, engine)
        await until(lambda: "not leading any more" in frozen.log.read_text())
        await engine.store("d")
        await agrees(index, IP, engine)
        assert index.term() == term
        assert index.stream(IP)["state"] == "live"


async def test_a_warm_standby_goes_before_a_cold_replacement(
    redis_server: Server, index: Index, tmp_path: Path
) -> None:
    """The cold one did not hear the batch that the dead leader did not write either."""
    async with Engine() as engine:
        content = settings(redis_server, {IP: engine})
        leader = Process(tmp_path, content)
        try:
            await ready(leader)
            async with collecting(tmp_path, settings(redis_server, {IP: engine})):
                await engine.heard(2)
                await engine.store("a")
                await agrees(index, IP, engine)
                await until(lambda: index.standbys() == [True])
                leader.signal(signal.SIGSTOP)
                await engine.store("b")
                async with collecting(tmp_path, settings(redis_server, {IP: engine})):
                    await engine.heard(3)
                    await engine.store("c")
                    await agrees(index, IP, engine)
                    assert index.stream(IP)["state"] == "live"
        finally:
            leader.kill()


async def test_a_leader_that_missed_something_makes_way_for_a_standby_that_did_not(
    redis_server: Server, index: Index, tmp_path: Path
) -> None:
    async with Engine() as engine, Proxy(engine.port).running() as proxy:
        far = settings(redis_server, _through(proxy))
        near = settings(redis_server, {IP: engine})
        async with collecting(tmp_path, far):
            await until(index.leader)
            await engine.heard(1)
            async with collecting(tmp_path, near):
                await engine.heard(2)
                await engine.store("a", "b")
                await agrees(index, IP, engine)
                await until(lambda: index.standbys() == [True])
                await asyncio.sleep(1)  # the leader learns of it when it renews its lease
                proxy.cut()
                await engine.unheard(1)
                await engine.remove("a")
                proxy.mend()
                await engine.heard(2)
                await engine.store("c")
                await agrees(index, IP, engine)
                assert index.term() == 2
                assert index.stream(IP)["state"] == "live"


async def test_a_late_first_copy_of_a_write_that_was_retried_changes_nothing(
    redis_server: Server, index: Index, tmp_path: Path
) -> None:
    async with Engine() as engine, Proxy(redis_server.port).running() as proxy:
        content = settings(redis_server, {IP: engine})
        content["redis"] = {"url": f"redis://127.0.0.1:{proxy.port}/0"}
        async with collecting(tmp_path, content):
            await engine.heard()
            await engine.store("a", "b")
            await agrees(index, IP, engine)
            proxy.hold()
            await engine.remove("a")
            await engine.clear()
            await agrees(index, IP, engine)
            await engine.store("a", "c")
            await agrees(index, IP, engine)
            rev = index.rev()
            proxy.release()
            await until(lambda: index.rev() > rev)
            await engine.store("d")
            await agrees(index, IP, engine)
            assert index.stream(IP)["state"] == "live"


def _through(proxy: Proxy) -> dict[str, Any]:
    class Seen:
        url = f"tcp://127.0.0.1:{proxy.port}"
        replay_url = None

    return {IP: Seen()}


# Redis goes back in time.


@pytest.mark.parametrize("replay", [False, True])
async def test_flushall_under_a_running_fleet(
    redis_server: Server, index: Index, tmp_path: Path, replay: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(replay=replay))
        other = await stack.enter_async_context(Engine())
        content = settings(redis_server, {IP: engine, "10.0.0.2": other})
        await stack.enter_async_context(collecting(tmp_path, content))
        await engine.heard()
        await other.heard()
        await engine.store("a", "b")
        await engine.remove("a")
        await other.store("x")
        await agrees(index, IP, engine)
        await agrees(index, "10.0.0.2", other)
        redis_server.wipe()
        await until(lambda: index.stream(IP).get("next") == engine.seq)
        await engine.store("c")
        await agrees(index, IP, engine)
        await agrees(index, "10.0.0.2", other)
        assert index.stream(IP)["state"] == "live"


async def test_a_restored_older_state_is_brought_up_to_date(start_redis: Any, tmp_path: Path) -> None:
    """As after a failover to a replica that lagged: everything is there, but older."""
    server = start_redis()
    index = Index(server)
    async with Engine() as engine, collecting(tmp_path, settings(server, {IP: engine})):
        await engine.heard()
        await engine.store("a", "b")
        await agrees(index, IP, engine)
        with server.client() as client:
            client.save()
        await engine.remove("a")
        await engine.store("c")
        await agrees(index, IP, engine)
        server.kill()
        server.start()
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "live"


async def test_redis_away_for_a_while_loses_nothing(start_redis: Any, tmp_path: Path) -> None:
    server = start_redis()
    index = Index(server)
    async with Engine() as engine, collecting(tmp_path, settings(server, {IP: engine})):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        server.pause()
        await engine.store("b")
        await asyncio.sleep(3)
        await engine.remove("a")
        server.resume()
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "live"


async def test_removals_work_while_redis_is_out_of_memory(start_redis: Any, tmp_path: Path) -> None:
    server = start_redis()
    index = Index(server)
    async with Engine() as engine, collecting(tmp_path, settings(server, {IP: engine})):
        await engine.heard()
        await engine.store("a", "b")
        await agrees(index, IP, engine)
        with server.client() as client:
            client.config_set("maxmemory", "1mb")
            await engine.store("c")
            await engine.remove("a")
            await until(lambda: index.stream(IP).get("next") == engine.seq)
            assert index.shown(IP) == {block("b")}
            assert index.stream(IP)["state"] == "suspect"
            client.config_set("maxmemory", "0")
        await engine.store("d")
        await until(lambda: index.shown(IP) == {block("b"), block("d")})
