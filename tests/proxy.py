"""A TCP proxy that can be told to misbehave: cut connections, or hold back what clients send."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from tests.ports import free_port


class Proxy:
    """Between a client and 127.0.0.1:`target`; listens on `port`."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._gate = _open_gate()
        self._held = self._gate
        self._refusing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection and refuse new ones until `mend`."""
        self._refusing = True
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        """Accept connections again."""
        self._refusing = False

    def hold(self) -> None:
        """What clients send on the present connections waits, even when they hang up; new ones are served."""
        self._held, self._gate = self._gate, _open_gate()
        self._held.clear()

    def release(self) -> None:
        """Deliver what was held back."""
        self._held.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        gate = self._gate
        for w in (writer, far_writer):
            self._writers.add(w)
        self._spawn(self._pump(reader, far_writer, gate))
        self._spawn(self._pump(far_reader, writer, None))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if gate is not None:
                    await gate.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
