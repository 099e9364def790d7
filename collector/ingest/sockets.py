"""ZeroMQ sockets on an asyncio loop, by their file descriptor.

Draining a socket in one go costs a tenth of awaiting each message, and a busy stream sends thousands a
second. The descriptor is edge-triggered: it tells that something changed, not that there is something left,
so whoever is woken reads until the socket is empty.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import zmq

BURST = 200
"""Messages read before other tasks get their turn."""


class Reader:
    """Hands every message of `socket` to `on_message` until closed."""

    def __init__(self, socket: "zmq.Socket[bytes]", on_message: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._fd: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._loop.add_reader(self._fd, self._ready)
        self._open = True
        self._loop.call_soon(self._ready)

    def drain(self) -> None:
        """Hand over everything that has arrived."""
        for parts in self._messages():
            self._on_message(parts)

    def close(self) -> None:
        """Stop reading; the socket stays as it is."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)

    def _ready(self) -> None:
        # Nobody is woken again for what is left: after a burst, and after a failure, come back for it.
        again = True
        try:
            again = not self._read(BURST)
        finally:
            if again and self._open:
                self._loop.call_soon(self._ready)

    def _read(self, limit: int) -> bool:
        """Hand over up to `limit` messages; whether the socket is empty now."""
        for count, parts in enumerate(self._messages(), 1):
            self._on_message(parts)
            if count == limit:
                return False
        return True

    def _messages(self) -> Iterator[list[bytes]]:
        while self._open:
            try:
                yield self._receive()
            except zmq.Again:
                return

    def _receive(self) -> list[bytes]:
        # A frame knows whether more come; `recv_multipart` asks the socket, which costs as much as the rest.
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        parts = [frame.bytes]
        while frame.more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            parts.append(frame.bytes)
        return parts


async def resolve(url: str) -> str:
    """`url` with its host as an address. ZeroMQ would resolve it in the thread that serves every socket.

    Raises OSError when there is no such host, ValueError when there is no port.
    """
    parts = urlsplit(url)
    if parts.scheme != "tcp" or parts.hostname is None:
        return url
    host = parts.hostname
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.partition("%")[0])
        return url
    infos = await asyncio.get_running_loop().getaddrinfo(host, parts.port)
    address = str(infos[0][4][0])
    return f"tcp://[{address}]:{parts.port}" if ":" in address else f"tcp://{address}:{parts.port}"
