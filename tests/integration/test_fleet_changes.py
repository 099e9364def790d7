"""A fleet that changes under a running collector, by edits of the watched file."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from collector.capture import load
from collector.demo.stage import applied, configure, running
from collector.discovery import EngineTarget
from collector.replayer import Replayer
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import StreamKey

DATA = Path(__file__).parents[1] / "data"
LORA = DATA / "capture-0.18.0-lora.jsonl.gz"
DP2 = DATA / "capture-0.18.0-dp2.jsonl.gz"
PATIENCE = 60


def write(file: Path, *engines: EngineTarget) -> None:
    """Replace the file as a whole, as a careful editor does."""
    new = file.with_suffix(".new")
    listed = [
        {"ip": e.ip, "incarnation": e.incarnation, "ranks": [{"events": r.events} for r in e.ranks]}
        for e in engines
    ]
    new.write_bytes(msgspec.json.encode({"engines": listed}))
    new.replace(file)


@asynccontextmanager
async def collecting(file: Path, redis_url: str, grace: str):
    overrides = {
        "discovery.source": "file",
        "discovery.static": None,
        "discovery.file": str(file),
        "discovery.grace": grace,
    }
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        config = configure(redis_url, [], overrides)
        await stack.enter_async_context(running(config))
        client = await connect(config.redis)
        stack.push_async_callback(client.aclose)
        yield IndexReader(client, "default", config.redis.timeout)


async def streams(reader: IndexReader) -> dict[tuple[str, int], str]:
    return {(s.key.ip, s.key.rank): s.incarnation for s in await reader.streams()}


async def until_streams(reader: IndexReader, expected: dict[tuple[str, int], str]) -> None:
    while await streams(reader) != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_engine_added_to_the_file_is_followed_and_one_taken_out_is_retired(redis_server, tmp_path):
    file = tmp_path / "engines.yaml"
    async with Replayer(load(LORA)) as first, Replayer(load(DP2)) as second:
        write(file, first.target("e1", "a"))
        async with collecting(file, redis_server.url, grace="1s") as reader:
            await first.subscribed()
            await first.play()
            await applied(reader, StreamKey("e1", 0), 4)
            write(file, first.target("e1", "a"), second.target("e2", "b"))
            await second.subscribed()
            await second.play()
            await applied(reader, StreamKey("e2", 1), 2)
            held = (await reader.stats()).tiers["l1"].holders
            assert set(held) == {"l1:e1:0", "l1:e2:0", "l1:e2:1"}
            write(file, second.target("e2", "b"))
            await until_streams(reader, {("e2", 0): "b", ("e2", 1): "b"})
            assert set((await reader.stats()).tiers["l1"].holders) == {"l1:e2:0", "l1:e2:1"}


async def test_rank_taken_out_of_the_file_is_retired_with_its_stream(redis_server, tmp_path):
    file = tmp_path / "engines.yaml"
    async with Replayer(load(DP2)) as engine:
        target = engine.target("e1", "a")
        write(file, target)
        async with collecting(file, redis_server.url, grace="1s") as reader:
            await engine.subscribed()
            await engine.play()
            await applied(reader, StreamKey("e1", 0), 2)
            await applied(reader, StreamKey("e1", 1), 2)
            write(file, msgspec.structs.replace(target, ranks=target.ranks[:1]))
            await until_streams(reader, {("e1", 0): "a"})
            assert set((await reader.stats()).tiers["l1"].holders) == {"l1:e1:0"}


@pytest.mark.parametrize("content", ["", "engines: [", None])
async def test_broken_edit_retires_nobody(redis_server, tmp_path, content):
    """With a grace time of nothing, so that only the refusal of the edit protects the engines."""
    file = tmp_path / "engines.yaml"
    async with Replayer(load(LORA)) as engine:
        write(file, engine.target("e1", "a"))
        async with collecting(file, redis_server.url, grace="100ms") as reader:
            await engine.subscribed()
            await engine.step()
            await applied(reader, StreamKey("e1", 0), 1)
            if content is None:
                file.unlink()
            else:
                file.write_text(content)
            await asyncio.sleep(2.5)  # the file is looked at every second
            assert await streams(reader) == {("e1", 0): "a"}
            await engine.step()
            await applied(reader, StreamKey("e1", 0), 2)


async def test_another_incarnation_in_the_file_begins_another_life(redis_server, tmp_path):
    """The engine is a new process, though its address, its ports and even its sequence numbers fit."""
    file = tmp_path / "engines.yaml"
    async with Replayer(load(LORA)) as engine:
        write(file, engine.target("e1", "a"))
        async with collecting(file, redis_server.url, grace="30s") as reader:
            await engine.subscribed()
            await engine.play()
            await applied(reader, StreamKey("e1", 0), 4)
            (before,) = await reader.streams()
            write(file, engine.target("e1", "b"))
            await until_streams(reader, {("e1", 0): "b"})
            (after,) = await reader.streams()
            assert after.life != before.life
            assert (await reader.stats()).tiers["l1"].holders.get("l1:e1:0", 0) == 0
