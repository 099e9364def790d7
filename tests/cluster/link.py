"""A loopback TCP relay that a test can cut: to its client the server is then unreachable."""

import asyncio
import contextlib

from tests.ports import free_port


class Link:
    """Relays its own `port` to another one. `cut` ends every connection; `heal` lets new ones in."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    async def heal(self) -> None:
        """Listen (again)."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Refuse new connections and end those that there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        ends = [writer]
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(forth)
            await asyncio.gather(_pump(reader, forth), _pump(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._relays.discard(task)
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
