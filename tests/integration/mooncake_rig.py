"""A real Mooncake master with real clients, a real Redis, and our poller between them."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import structs

from collector.discovery.base import Master as Target
from collector.leadership import Reign
from collector.mooncake.mirror import Mirror
from collector.mooncake.poller import Poller
from indexer.blocks import block_of_digest
from indexer.config.tree import IngestL3
from indexer.config.units import Duration
from indexer.index.reader import IndexReader
from indexer.index.writer import IndexWriter
from tests.mooncake_servers import Master, Pod
from tests.servers import Server

POOL = "p"


def digest(number: int) -> str:
    """The full digest of a made-up block."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def block(number: int) -> str:
    """The same block as the index names it."""
    return block_of_digest(bytes.fromhex(digest(number)))


def key(number: int, tp: int = 0, model: str = "Qwen3-32B") -> str:
    """Under which one rank stores it."""
    return f"{model}@pcp0@dcp0@head_or_tp_rank:{tp}@pp_rank:0@{digest(number)}"


def keys(numbers: Iterable[int], tp: int = 0) -> list[str]:
    return [key(number, tp) for number in numbers]


class Rig:
    """`poll` is the poll interval in seconds."""

    def __init__(self, redis: Server, directory: Path, version: str, poll: float = 0.1) -> None:
        self.version, self._directory, self._redis = version, directory, redis
        self.pods: list[Pod] = []
        self.masters: list[Master] = []
        self.config = IngestL3(poll_interval=Duration(poll), http_timeout=Duration(1))
        self.client: Any = None
        self.poller: Poller
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Rig":
        self.client = self._redis.aclient()
        self.writer = IndexWriter(self.client, POOL, timeout=5)
        self.reader = IndexReader(self.client, POOL, timeout=5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()
        for pod in self.pods:
            pod.kill()
        for master in self.masters:
            master.kill()
        await self.client.aclose()

    def master(self, **flags: str) -> Master:
        self.masters.append(Master(self.version, self._directory, **flags).start())
        return self.masters[-1]

    def pod(self, ip: str, master: Master | None = None, size: int = 64 << 20) -> Pod:
        self.pods.append(Pod(master or self.masters[-1], ip, self._directory, size))
        return self.pods[-1]

    async def lead(self, *masters: str, instances: Iterable[str] = ()) -> Poller:
        """Become the leader and poll `masters` (all that were started, when none are named)."""
        lease = await self.writer.acquire("rig", warm=True, ttl=600)
        assert lease is not None
        self.token = lease.token
        self.poller = Poller(Mirror(self.writer, self.reader, Reign(POOL, lease)), self.config, grace=1)
        urls = masters or tuple(master.http for master in self.masters)
        self.poller.target([Target(url) for url in urls], instances, complete=True)
        self._task = asyncio.create_task(self.poller.run())
        return self.poller

    async def resign(self) -> None:
        """Stop polling and stop leading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.writer.release(self.token)

    async def held(self, instance: str) -> set[str]:
        """What the index has for an instance, from its set (see `agree` for the bitmaps)."""
        return {
            member.decode() for member in await self.client.smembers(f"kvi:{{{POOL}}}:holder:l3:{instance}")
        }

    async def until(self, instance: str, numbers: Iterable[int], within: float = 15) -> None:
        """Wait until the index has exactly these blocks for an instance."""
        wanted = set(map(block, numbers))
        await self.eventually(lambda: self.held(instance), lambda held: held == wanted, within)

    async def eventually(
        self, ask: Callable[[], Any], good: Callable[[Any], bool], within: float = 15
    ) -> Any:
        assert self._task is None or not self._task.done(), self._task
        try:
            async with asyncio.timeout(within):
                while not good(answer := await ask()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return answer
        except TimeoutError:
            raise AssertionError(f"still {answer} after {within} s; {self.poller.statuses()}") from None

    async def polled(self, more: int = 2) -> None:
        """Wait for `more` polls of every master to end."""
        await self.eventually(lambda: asyncio.sleep(0, self.poller.statuses()), bool)
        goal = {base: status.polls + more for base, status in self.poller.statuses().items()}

        async def polls() -> dict[str, int]:
            return {base: status.polls for base, status in self.poller.statuses().items()}

        # A poll counts when it starts: one more has then begun.
        await self.eventually(polls, lambda now: all(now[base] > goal[base] for base in goal))

    def sweep_every(self, seconds: float) -> None:
        """Shorten `sweepInterval`; call it before `lead`."""
        self.config = structs.replace(self.config, sweep_interval=Duration(seconds))

    def status(self) -> Any:
        """The state of the only master."""
        (status,) = self.poller.statuses().values()
        return status
