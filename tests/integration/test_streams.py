"""Failures of event streams that were seen in the field, each against real sockets and a real Valkey."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from collector.ingest import listener
from tests.fake_engine import Engine, block, number
from tests.fleet import Index, agrees, collecting, settings, until
from tests.servers import Server

IP = "10.0.0.1"

Collect = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


@pytest.fixture
def index(redis_server: Server) -> Index:
    return Index(redis_server)


@pytest.fixture
def collect(redis_server: Server, tmp_path: Path) -> Collect:
    """A collector of some engines, on this loop."""

    @contextlib.asynccontextmanager
    async def start(engines: dict[str, Any], **more: Any) -> AsyncIterator[None]:
        async with collecting(tmp_path, settings(redis_server, engines, **more)):
            yield

    return start


WIPE = {"ingest": {"l1": {"onGap": "wipe", "backoffInitial": "100ms"}}}


async def test_the_block_size_is_told_once_a_life(index: Index, collect: Collect) -> None:
    """Queries compare it with theirs: another size never matches, and must not look like a cold cache."""

    def stored(name: str, size: int | None) -> list[Any]:
        return ["BlockStored", [number(name)], None, [], size, None, "GPU"]

    async with Engine() as engine:
        async with collect({IP: engine}):
            await engine.heard()
            await engine.publish([stored("a", None)])
            await until(lambda: index.stream(IP).get("next") == 1)
            assert "block_size" not in index.stream(IP)
            await engine.publish([stored("b", 32)])
            await until(lambda: index.stream(IP).get("block_size") == 32)
        await engine.unheard(0)
        async with collect({IP: engine}):
            await engine.heard()
            await engine.publish([stored("c", 32)])
            await until(lambda: index.stream(IP).get("next") == 3)
            assert index.stream(IP)["block_size"] == 32
            await engine.restart()
            await engine.heard()
            await engine.publish([stored("d", 64)])
            await until(lambda: index.stream(IP).get("block_size") == 64)


async def test_only_the_engine_loses_a_connection(
    index: Index, collect: Collect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line about every engine, each time a collector ends, would hide the ones that matter."""
    monkeypatch.setattr(listener, "_log", logs := structlog.testing.CapturingLogger())
    monkeypatch.setattr(logs, "bind", lambda **_: logs, raising=False)
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        await engine.restart()
        await engine.heard()
        await engine.store("b")
        await agrees(index, IP, engine)
    assert [call.args for call in logs.calls if call.method_name == "info"] == [("connection lost",)]


# Restarts.


async def test_a_restart_shows_by_the_sequence_going_back(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a", "b")
        await engine.store("c")
        await agrees(index, IP, engine)
        await engine.restart()
        await engine.heard()
        await engine.store("d")
        await agrees(index, IP, engine)
        assert index.stream(IP)["restarts"] == 1
        assert index.stream(IP)["state"] == "live"


async def test_a_restart_on_the_same_connection_is_seen(index: Index, collect: Collect) -> None:
    """Behind a proxy the connection stays when the engine goes."""
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await engine.store("b")
        await agrees(index, IP, engine)
        engine._begin()
        await engine.store("c")
        await agrees(index, IP, engine)


@pytest.mark.parametrize("topic", [False, True])
async def test_a_restart_already_past_our_next_is_no_gap(index: Index, collect: Collect, topic: bool) -> None:
    async with Engine(replay=True, topic_in_replay=topic) as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await engine.store("b")
        await agrees(index, IP, engine)
        await engine.restart(silently=5)
        await engine.heard()
        await engine.store("c")
        await agrees(index, IP, engine)
        assert block("a") not in index.shown(IP)
        assert index.stream(IP)["state"] == "live"


@pytest.mark.parametrize("silently", [2, 5])
async def test_such_a_restart_without_replay_is_not_hidden(
    index: Index, collect: Collect, silently: int
) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await engine.store("b")
        await agrees(index, IP, engine)
        await engine.restart(silently=silently)
        await engine.heard()
        await engine.store("c")
        await until(lambda: index.stream(IP).get("next") == engine.seq)
        assert index.stream(IP)["state"] == "suspect"
        assert index.stream(IP)["cause"]


async def test_a_restart_with_the_clock_set_back_is_seen(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await engine.store("b")
        await agrees(index, IP, engine)
        await engine.restart(later=-5000)
        await engine.heard()
        await engine.store("c")
        await agrees(index, IP, engine)


async def test_an_idle_restarted_engine_is_found_out_by_its_replay_socket(
    index: Index, collect: Collect
) -> None:
    async with Engine(replay=True) as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        await engine.restart()
        await until(lambda: not index.shown(IP))
        await engine.store("b")
        await agrees(index, IP, engine)


async def test_a_collector_restart_keeps_the_blocks_of_a_healthy_engine(
    index: Index, collect: Collect
) -> None:
    async with Engine() as engine:
        async with collect({IP: engine}):
            await engine.heard()
            await engine.store("a", "b")
            await agrees(index, IP, engine)
        life = index.stream(IP)["life"]
        await engine.unheard(0)
        async with collect({IP: engine}):
            await engine.heard()
            await engine.remove("a")
            await agrees(index, IP, engine)
        assert index.stream(IP)["life"] == life


async def test_a_restart_while_no_collector_ran_is_seen(index: Index, collect: Collect) -> None:
    async with Engine(replay=True) as engine:
        async with collect({IP: engine}):
            await engine.heard()
            await engine.store("a")
            await agrees(index, IP, engine)
        await engine.restart(silently=4)
        async with collect({IP: engine}):
            await agrees(index, IP, engine)
        assert block("a") not in index.shown(IP)


# Gaps and replay.


@pytest.mark.parametrize("topic", [False, True], ids=["3-part", "4-part"])
async def test_a_gap_is_filled_from_the_replay_socket(index: Index, collect: Collect, topic: bool) -> None:
    async with Engine(replay=True, topic_in_replay=topic) as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a", "b")
        await agrees(index, IP, engine)
        await engine.remove("a", lose=True)
        await engine.store("c", lose=True)
        await engine.store("d")
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "live"
        assert 0 in engine.replay_requests
        assert 0 in engine.replay_requests[1:], "a gap asks from the batch before next"


async def test_a_gap_without_replay_is_counted_and_shown(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        await engine.store("b", lose=True)
        await engine.remove("a", lose=True)
        await engine.store("c")
        await until(lambda: index.stream(IP).get("next") == engine.seq)
        stream = index.stream(IP)
        assert (stream["state"], stream["gaps"], stream["missing"]) == ("suspect", 1, 2)
        assert index.shown(IP) == {block("a"), block("c")}


async def test_a_gap_without_replay_may_wipe(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}, **WIPE):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        await engine.remove("a", lose=True)
        await engine.store("c")
        await until(lambda: index.stream(IP).get("next") == engine.seq)
        assert index.shown(IP) == {block("c")}
        assert index.stream(IP)["state"] == "suspect"


async def test_the_first_batch_heard_is_no_beginning(index: Index, collect: Collect) -> None:
    async with Engine() as engine:
        await engine.store("a")
        await engine.store("b")
        async with collect({IP: engine}):
            await engine.heard()
            await engine.store("c")
            await until(lambda: index.stream(IP).get("next") == 3)
            assert index.stream(IP)["state"] == "suspect"
            assert index.stream(IP)["missing"] == 2


async def test_first_contact_asks_for_everything_at_once(index: Index, collect: Collect) -> None:
    async with Engine(replay=True) as engine:
        await engine.store("a", "b")
        await engine.remove("a")
        async with collect({IP: engine}):
            await agrees(index, IP, engine)
            assert engine.replay_requests == [0]
            assert index.stream(IP)["state"] == "live"


async def test_a_replay_buffer_that_is_too_short_is_shown(index: Index, collect: Collect) -> None:
    async with Engine(replay=True, keep=3) as engine:
        for name in "abcdef":
            await engine.store(name)
        async with collect({IP: engine}):
            await until(lambda: index.stream(IP).get("next") == 6)
            assert index.shown(IP) == {block(n) for n in "def"}
            assert index.stream(IP)["state"] == "suspect"
            assert index.stream(IP)["missing"] == 3


async def test_a_replay_that_loses_middle_batches_is_asked_again(index: Index, collect: Collect) -> None:
    async with Engine(replay=True) as engine:
        for name in "abcdef":
            await engine.store(name)
        await engine.remove("c")
        engine.drop_from_replay = {2, 3}
        async with collect({IP: engine}):
            await until(lambda: index.stream(IP).get("next") == 2)
            engine.drop_from_replay = set()
            await agrees(index, IP, engine)
            assert index.stream(IP)["state"] == "live"


async def test_a_replay_that_never_brings_a_batch_does_not_hold_live_ones_for_ever(
    index: Index, collect: Collect
) -> None:
    async with Engine(replay=True) as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        engine.drop_from_replay = {1}
        await engine.store("b", lose=True)
        await engine.store("c")
        await until(lambda: index.stream(IP).get("next") == engine.seq)
        assert index.shown(IP) == {block("a"), block("c")}
        assert index.stream(IP)["state"] == "suspect"


async def test_a_late_replay_does_not_revive_what_was_removed(index: Index, collect: Collect) -> None:
    """Live events that arrive during a replay wait; else an old store comes after its removal."""
    async with Engine(replay=True) as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        engine.hold_replay.clear()
        await engine.store("b", lose=True)
        await engine.store("c")
        await engine.remove("b")
        await engine.remove("c")
        await asyncio.sleep(0.3)
        assert index.stream(IP)["next"] == 1, "nothing is applied past the gap"
        engine.hold_replay.set()
        await agrees(index, IP, engine)
        assert index.shown(IP) == {block("a")}


async def test_a_replay_socket_of_another_engine_is_not_believed(index: Index, collect: Collect) -> None:
    async with Engine() as engine, Engine(replay=True, clock=2_000_000.0) as other:
        await other.store("x")
        await other.store("y")
        wrong = {"ip": IP, "ranks": [{"events": engine.url, "replay": other.replay_url}]}
        async with collect({}, discovery={"source": "static", "static": {"engines": [wrong]}}):
            await engine.heard()
            await until(lambda: index.stream(IP).get("next") == 2)  # nothing contradicts it yet
            await engine.store("a")
            await engine.store("b")
            await engine.store("c")
            await agrees(index, IP, engine)
            assert index.stream(IP)["state"] == "live"


# Order, duplicates, tiers.


async def test_all_blocks_cleared_counts_in_its_place(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a", "b")
        await engine.publish([["AllBlocksCleared"], engine._stored(["c"])])
        engine.held = {block("c")}
        await agrees(index, IP, engine)
        await engine.store("d")
        await engine.clear()
        await engine.store("e")
        await agrees(index, IP, engine)


async def test_a_batch_that_comes_twice_counts_once(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a", twice=True)
        await engine.remove("a", twice=True)
        await engine.store("b", twice=True)
        await agrees(index, IP, engine)
        assert index.stream(IP)["batches"] == 3
        assert index.stream(IP).get("restarts", 0) == 0


async def test_an_absent_block_does_not_end_a_removal(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a", "b")
        await engine.remove("never", "a", "never either", "b")
        await agrees(index, IP, engine)
        assert index.shown(IP) == set()


async def test_tiers_of_an_engine_do_not_mix(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await engine.publish([["BlockStored", [number("a")], None, [], 16, None, "CPU"]])
        await engine.publish([["BlockRemoved", [number("a")], "GPU"]])
        await until(lambda: index.stream(IP).get("next") == 3)
        assert index.shown(IP) == set()
        assert index.shown(IP, tier="l2") == {block("a")}


async def test_signed_and_bytes_hashes_name_the_same_block(index: Index, collect: Collect) -> None:
    value = number("a")
    signed = value - (1 << 64)
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.publish([["BlockStored", [signed], None, [], 16, None, "GPU"]])
        await until(lambda: index.shown(IP) == {block("a")})
        digest = bytes(24) + value.to_bytes(8, "big")
        await engine.publish([["BlockRemoved", [digest], "GPU"]])
        await until(lambda: index.shown(IP) == set())


async def test_ranks_have_streams_of_their_own(index: Index, collect: Collect) -> None:
    async with Engine(rank=0) as zero, Engine(rank=1) as one, collect({IP: [zero, one]}):
        await zero.heard()
        await one.heard()
        await zero.store("a")
        await one.store("a", "b")
        await zero.remove("a")
        await agrees(index, IP, zero, rank=0)
        await agrees(index, IP, one, rank=1)


# Bad frames and bad streams.


async def test_a_storm_of_bad_frames_stops_nothing(index: Index, collect: Collect) -> None:
    async with Engine() as engine, Engine() as other, collect({IP: engine, "10.0.0.2": other}):
        await engine.heard()
        await other.heard()
        await engine.store("a")
        for i in range(200):
            await engine.raw([b""])
            await engine.raw([b"t", b"short", b"x"])
            await engine.raw([b"t", (1 << 63).to_bytes(8, "big"), b"x"])
            await engine.raw([b"t", i.to_bytes(8, "big"), b"\xc1 no msgpack"])
            await engine.raw([b"t", i.to_bytes(8, "big"), b"\x93\xcb\x7f\xf8\0\0\0\0\0\0\x90\xc0"])
        await engine.store("b")
        await other.store("c")
        await agrees(index, IP, engine)
        await agrees(index, "10.0.0.2", other)
        assert index.stream(IP)["state"] == "live"


async def test_a_batch_that_cannot_be_read_is_a_gap_of_one(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        seq, payload = engine._record([])
        await engine.raw([b"t", seq.to_bytes(8, "big"), payload[:10] + b"\xc1"])
        await engine.store("b")
        await agrees(index, IP, engine)
        assert index.stream(IP)["state"] == "suspect"


async def test_unknown_events_are_counted_and_passed_over(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.publish([["BlockMoved", 1, 2], engine._stored(["a"]), {"type": "Whatever"}])
        await agrees(index, IP, engine)
        assert index.stream(IP)["skipped"] == 2
        assert index.stream(IP)["state"] == "live"


# What is shown of a stream.


async def test_an_engine_that_never_spoke_is_shown_as_connecting(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine, "10.0.0.9": Engine()}):
        await engine.heard()
        await until(lambda: index.stream(IP).get("state") == "connecting")
        await until(lambda: index.stream("10.0.0.9").get("state") == "connecting")


async def test_a_lost_engine_is_shown_and_keeps_its_blocks(index: Index, collect: Collect) -> None:
    async with Engine() as engine, collect({IP: engine}):
        await engine.heard()
        await engine.store("a")
        await agrees(index, IP, engine)
        await engine.stop()
        await until(lambda: index.stream(IP)["state"] == "lost")
        assert index.shown(IP) == {block("a")}
