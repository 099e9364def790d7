"""An engine whose every frame a test decides: real ZMQ sockets, vLLM's encoding, and the truth beside it.

engine = Engine()
await engine.store("a", "b")     # a batch of one event; blocks by any name
await engine.restart()           # the same ports, sequence from 0
engine.held                      # what its memory holds now, as Redis writes blocks
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from indexer.blocks import block_of_int
from tests.ports import free_port

_encode = msgspec.msgpack.encode
END = b"\xff" * 8


def number(name: str) -> int:
    """The 64-bit hash of a block that a test calls `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def block(name: str) -> str:
    """The same as Redis writes it."""
    return block_of_int(number(name))


class Engine:
    """`replay`: with a replay socket; `topic_in_replay`: 4-part answers; `keep`: batches it can replay."""

    def __init__(
        self,
        *,
        replay: bool = False,
        topic_in_replay: bool = False,
        keep: int = 10_000,
        rank: int | None = 0,
        clock: float = 1_000_000.0,
        host: str = "127.0.0.1",
    ) -> None:
        self.port, self.replay_port = free_port(), free_port()
        self.rank, self.keep, self.clock = rank, keep, clock
        self.topic_in_replay = topic_in_replay
        self.has_replay = replay
        self.host = host
        self.replay_requests: list[int] = []
        self.drop_from_replay: set[int] = set()
        """Sequences that a replay answer leaves out, as engines with a small high-water mark do."""
        self.hold_replay = asyncio.Event()
        """Replay answers wait until this is set."""
        self.hold_replay.set()
        self._context = zmq.asyncio.Context()
        self._pub: zmq.asyncio.Socket | None = None
        self._server: asyncio.Task[None] | None = None
        self._joins: asyncio.Event = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self.held: set[str] = set()
        self.seq = 0
        self.log: list[tuple[int, bytes]] = []

    @property
    def url(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def replay_url(self) -> str | None:
        return f"tcp://{self.host}:{self.replay_port}" if self.has_replay else None

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._context.destroy(linger=0)

    async def start(self) -> None:
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._pub.setsockopt(zmq.IPV6, 1)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        await _bind(self._pub, f"tcp://{self.host}:{self.port}")
        self.subscribers = 0
        self._counter = asyncio.create_task(self._count())
        if self.has_replay:
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.IPV6, 1)
            router.setsockopt(zmq.SNDHWM, 0)
            await _bind(router, f"tcp://{self.host}:{self.replay_port}")
            self._server = asyncio.create_task(self._serve(router))

    @property
    def up(self) -> bool:
        """Whether it can publish."""
        return self._pub is not None

    async def stop(self) -> None:
        """Close the sockets, as the end of the process does; frames that were sent still arrive."""
        publisher, self._pub = self._pub, None
        if publisher is not None:
            publisher.close(linger=500)
        tasks = [t for t in (self._counter, self._server) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server = None

    async def restart(self, *, later: float = 100.0, down: float = 0.0, silently: int = 0) -> None:
        """A new process: empty, sequence from 0, its clock `later` (negative: set back). `silently`: batches
        that it publishes before anybody can have connected."""
        await self.stop()
        self._begin()
        self.clock += later
        for i in range(silently):
            self._record([self._stored([f"silent-{self.clock}-{i}"])])
        await asyncio.sleep(down)
        await self.start()

    async def heard(self, count: int = 1) -> None:
        """Wait until so many subscribers are connected."""
        async with asyncio.timeout(20):
            while self.subscribers < count:
                self._joins.clear()
                await self._joins.wait()

    async def unheard(self, count: int) -> None:
        """Wait until at most so many subscribers are left."""
        async with asyncio.timeout(20):
            while self.subscribers > count:
                self._joins.clear()
                await self._joins.wait()

    async def store(self, *names: str, **options: Any) -> None:
        """Publish a batch that stores these blocks."""
        await self.publish([self._stored(names)], **options)

    async def remove(self, *names: str, **options: Any) -> None:
        """Publish a batch that removes these blocks, one event each, as an engine evicts."""
        await self.publish([self._removed(name) for name in names], **options)

    async def clear(self, **options: Any) -> None:
        """Publish a batch that says that all blocks are gone."""
        self.held.clear()
        await self.publish([["AllBlocksCleared"]], **options)

    def _stored(self, names: Iterable[str], medium: str = "GPU") -> list[Any]:
        names = list(names)
        self.held |= {block(n) for n in names}
        return ["BlockStored", [number(n) for n in names], None, [], 16, None, medium]

    def _removed(self, name: str, medium: str = "GPU") -> list[Any]:
        self.held.discard(block(name))
        return ["BlockRemoved", [number(name)], medium]

    async def publish(self, events: list[Any], *, lose: bool = False, twice: bool = False) -> None:
        """Publish a batch of raw events. `lose`: subscribers never get it; `twice`: they get it twice."""
        seq, payload = self._record(events)
        parts = [b"kv-events", seq.to_bytes(8, "big"), payload]
        if not lose:
            await self.raw(parts)
            if twice and self.up:  # it may have ended meanwhile
                await self.raw(parts)

    def _record(self, events: list[Any]) -> tuple[int, bytes]:
        self.clock += 0.001
        payload = _encode([self.clock, events, self.rank])
        seq, self.seq = self.seq, self.seq + 1
        self.log.append((seq, payload))
        return seq, payload

    async def raw(self, parts: list[bytes]) -> None:
        """Publish any message."""
        assert self._pub is not None
        await self._pub.send_multipart(parts)

    async def _count(self) -> None:
        while self._pub is not None:
            message = await self._pub.recv()
            self.subscribers += 1 if message[:1] == b"\x01" else -1
            self._joins.set()

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                identity, empty, raw = await router.recv_multipart()
                start = int.from_bytes(raw, "big")
                self.replay_requests.append(start)
                await self.hold_replay.wait()
                topic = [b"kv-events"] if self.topic_in_replay else []
                for seq, payload in list(self.log)[-self.keep :]:
                    if seq >= start and seq not in self.drop_from_replay:
                        await router.send_multipart(
                            [identity, empty, *topic, seq.to_bytes(8, "big"), payload]
                        )
                await router.send_multipart([identity, empty, *([b""] if topic else []), END, b""])
        finally:
            router.close(linger=500)


async def _bind(socket: zmq.asyncio.Socket, url: str) -> None:
    """The port may still be on its way to being closed by the process before."""
    for _ in range(200):
        with contextlib.suppress(zmq.ZMQError):
            socket.bind(url)
            return
        await asyncio.sleep(0.01)
    socket.bind(url)
