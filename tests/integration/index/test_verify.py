"""`verify` finds each way in which the index can disagree with itself."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from indexer.index.state import Op, StreamKey
from indexer.index.verify import verify
from tests.integration.index.conftest import POOL, PREFIX, Index, Opener, block, packed
from tests.servers import Server

A = StreamKey("10.0.0.1", 0)
B = StreamKey("10.0.0.2", 0)
Damage = Callable[[Any], Awaitable[Any]]

DAMAGE: dict[str, tuple[Damage, str]] = {
    "a bit too many": (lambda c: c.hset(f"{PREFIX}blocks:l1", block(2), b"\7"), "whose set does not know it"),
    "a bit too few": (lambda c: c.hdel(f"{PREFIX}blocks:l1", block(1)), "without its bit"),
    "a bit of a free slot": (
        lambda c: c.hset(f"{PREFIX}blocks:l1", block(2), b"\1\1"),
        "slot 8, which nobody",
    ),
    "an empty field": (lambda c: c.hset(f"{PREFIX}blocks:l1", block(77), b""), "an empty field"),
    "zeros at the end": (lambda c: c.hset(f"{PREFIX}blocks:l1", block(2), b"\1\0"), "zeros at its end"),
    "a field that is no block": (lambda c: c.hset(f"{PREFIX}blocks:l1", "x", b"\1"), "is no block"),
    "a member too many": (lambda c: c.sadd(f"{PREFIX}holder:l1:10.0.0.2:0", block(2)), "without its bit"),
    "a member too few": (lambda c: c.srem(f"{PREFIX}holder:l1:10.0.0.1:0", block(1)), "does not know it"),
    "a slot with two owners": (
        lambda c: c.hset(f"{PREFIX}slots:l1", "l1:10.0.0.9:0", 0),
        "slot 0 is held",
    ),
    "a slot held and free": (lambda c: c.zadd(f"{PREFIX}free:l1", {"0": 0}), "is free and held by"),
    "a hole in the slots": (
        lambda c: c.hset(f"{PREFIX}slots:l1", "l1:10.0.0.9:0", 7),
        "neither held",
    ),
    "a lost nonce": (lambda c: c.delete(f"{PREFIX}slots:version"), "slots:version is missing"),
    "a lost retired slot": (lambda c: c.srem(f"{PREFIX}retired:l1", 2), "slot 2, which nobody has"),
    "a set of nobody": (lambda c: c.sadd(f"{PREFIX}holder:l3:x", block(1)), "holder:l3:x belongs to nobody"),
    "a lost aside set": (lambda c: c.delete(f"{PREFIX}aside:l1:2"), "has no set aside"),
}


@pytest.fixture
async def three(redis_server: Server, open_index: Opener) -> Index:
    """Two holders, and a retired one that waits for the sweeper."""
    index: Index = await open_index(redis_server)
    gone = StreamKey("10.0.0.3", 0)
    for key in (A, B, gone):
        await index.open(key)
        await index.store(key, 0, *range(1, 600))
    await index.apply(B, 1, Op("remove", "l1", 0, packed(2)))
    await index.writer.end(index.token, gone, "a")
    return index


async def test_a_sound_index(three: Index) -> None:
    report = await verify(three.client, POOL)
    assert report.ok
    assert (report.blocks, report.bits, report.members) == (599, 3 * 599 - 1, 3 * 599 - 1)


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_found(three: Index, what: str) -> None:
    damage, finding = DAMAGE[what]
    await damage(three.client)
    report = await verify(three.client, POOL)
    assert not report.ok
    assert any(finding in text for text in report.findings), report.findings


async def test_findings_are_bounded_but_counted(three: Index) -> None:
    await three.client.delete(f"{PREFIX}holder:l1:10.0.0.1:0")
    report = await verify(three.client, POOL)
    assert (len(report.findings), report.finding_count) == (100, 599)


async def test_writes_meanwhile_raise_no_alarm(three: Index) -> None:
    index = three
    stop = asyncio.Event()

    async def write() -> None:
        batch = 1
        while not stop.is_set():
            numbers = packed(*range(batch % 7 * 100, batch % 7 * 100 + 300))
            ops = (Op("clear", "l1"),) if batch % 9 == 0 else (Op("store", "l1", 0, numbers),)
            await index.apply(A, batch, *ops)
            await index.writer.sweep(index.token, 50)
            batch += 1

    writer = asyncio.create_task(write())
    for _ in range(10):
        report = await verify(index.client, POOL)
        assert report.ok, report.findings
    stop.set()
    await writer


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_command(three: Index, damaged: bool) -> None:
    if damaged:
        await three.client.hset(f"{PREFIX}blocks:l1", block(2), b"\7")
    program = "from indexer.cli import verify; import typer; app = typer.Typer(); verify.register(app); app()"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        "--json",
        env={**os.environ, "CACHE_INDEXER_REDIS_URL": three.server.url},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    (report,) = msgspec.json.decode(out)
    assert process.returncode == int(damaged)
    assert report["finding_count"] == int(damaged)
