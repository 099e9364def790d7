"""An index on a real server, with a leader, and helpers to write to it briefly."""

import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from indexer.config.tree import Redis
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import STAMP_NONE, Apply, Op, Outcome, StreamKey
from indexer.index.verify import verify
from indexer.index.writer import IndexWriter
from tests.servers import Server

POOL = "default"
PREFIX = "kvi:{default}:"


def block(number: int) -> str:
    """A block from a small number."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def packed(*numbers: int) -> str:
    """A packed run of blocks from small numbers."""
    return "".join(map(block, numbers))


def stamp(seconds: float) -> bytes:
    """A batch's timestamp as 8 bytes."""
    return struct.pack(">d", seconds)


class Recorder:
    """A client that remembers the commands it sent, so that a test can deliver one a second time."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.sent: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        self.sent.append(command)
        return await self._client.execute_command(*command, **options)

    async def deliver_again(self, command: tuple[Any, ...]) -> Any:
        """What the server answers to a late copy of `command`."""
        return await self._client.execute_command(*command)


class Index:
    """One pool with a leader."""

    def __init__(self, server: Server, client: Any) -> None:
        self.server = server
        self.client = Recorder(client)
        self.writer = IndexWriter(self.client, POOL, 5)
        self.reader = IndexReader(client, POOL, 5)
        self.token = ""

    async def lead(self, member: str = "leader") -> None:
        lease = await self.writer.acquire(member, True, 60)
        assert lease is not None
        self.token = lease.token

    async def open(self, key: StreamKey, life: str = "a", expect: str | None = None) -> None:
        await self.writer.open(self.token, key, expect, life, "", 0, STAMP_NONE, "connecting")

    async def apply(
        self, key: StreamKey, start: int, *ops: Op, life: str = "a", stop: int | None = None, **more: Any
    ) -> Outcome:
        """Batches of which number n has the timestamp n + 1."""
        stop = start + 1 if stop is None else stop
        stamps = b"".join(stamp(n + 1) for n in range(start, stop))
        _, (outcome,) = await self.writer.apply(
            self.token, [Apply(key, life, start, stop, stamps, ops, **more)]
        )
        return outcome

    async def store(self, key: StreamKey, start: int, *numbers: int, tier: str = "l1") -> None:
        assert (await self.apply(key, start, Op("store", tier, 0, packed(*numbers)))).code == "OK"

    async def count(self, chain: str, instance: str, tier: str = "l1") -> int:
        return (await self.reader.lookup([chain], [tier], [instance])).blocks(tier, instance)

    async def sweep_all(self) -> int:
        """Sweep until nothing waits; how many blocks lost a bit."""
        cleared = 0
        while True:
            swept = await self.writer.sweep(self.token)
            cleared += swept.cleared
            if not swept.pending:
                return cleared

    async def dump(self) -> dict[str, Any]:
        """The whole pool, to compare; without what every write moves."""
        found: dict[str, Any] = {}
        async for key in self.client.scan_iter(match=f"{PREFIX}*"):
            name = key.decode().removeprefix(PREFIX)
            if name not in ("rev", "meta"):
                found[name] = await self._value(key)
        return found

    async def _value(self, key: bytes) -> Any:
        match await self.client.type(key):
            case b"hash":
                return await self.client.hgetall(key)
            case b"set":
                return set(await self.client.smembers(key))
            case b"zset":
                return await self.client.zrange(key, 0, -1)
        return await self.client.get(key)

    async def check(self) -> None:
        """The index agrees with itself."""
        report = await verify(self.client, POOL)
        assert report.ok, report.findings
        assert report.bits == report.members


Opener = Callable[[Server], Any]


@pytest.fixture
async def open_index() -> AsyncIterator[Opener]:
    """Index objects on servers of the test's choice."""
    clients = []

    async def open_one(server: Server) -> Index:
        client = await connect(Redis(url=server.url, timeout=5))  # type: ignore[arg-type]
        clients.append(client)
        index = Index(server, client)
        await index.lead()
        return index

    yield open_one
    for client in clients:
        await client.aclose()


@pytest.fixture
async def index(any_redis: Server, open_index: Opener) -> AsyncIterator[Index]:
    """An index on each kind of server; it must agree with itself when the test ends."""
    opened = await open_index(any_redis)
    yield opened
    await opened.check()


@pytest.fixture
async def index_here(redis_server: Server, open_index: Opener) -> AsyncIterator[Index]:
    """The same on the embedded server only, where the kind of server does not matter."""
    opened = await open_index(redis_server)
    yield opened
    await opened.check()
