"""The SUB side of one stream: one socket for each connection, tried again at a constant pace.

ZeroMQ would reconnect by itself, but one socket then mixes the messages of two engine processes and does not
say where the first one ends. Here a socket lives as long as its connection: what comes out of it is from one
process, and the next number (`Tracker.epoch`) begins with the next socket.

The pace never grows. A restarted engine publishes as soon as it is up, and whatever it says while nobody
listens is lost for good where there is no replay socket.
"""

import asyncio
import itertools
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from collector.ingest.sockets import Reader, resolve
from indexer import clock

RETRY_SECONDS = 0.1
"""Between two attempts to connect."""
ATTEMPT_SECONDS = 5.0
"""Longest attempt, name lookup and handshake included."""
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 15000

_OVER = {
    zmq.Event.CLOSED,
    zmq.Event.DISCONNECTED,
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.MONITOR_STOPPED,
}
_numbers = itertools.count()


class Listener(Protocol):
    """Who is told; calls come from the event loop and must not block."""

    def connecting(self) -> None:
        """An attempt begins; everything of the connection before was handed over."""

    def connected(self) -> None:
        """Subscribed: what the engine publishes from now on will come."""

    def disconnected(self) -> None:
        """The connection is gone (also told after an attempt that failed)."""

    def message(self, parts: list[bytes]) -> None:
        """A message as it came."""


class Subscriber:
    """Keeps one publisher subscribed, all topics, until cancelled."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", url: str, listener: Listener) -> None:
        self._context = context
        self._url = url
        self._listener = listener
        self._over = asyncio.Event()

    def reconnect(self) -> None:
        """Give up the present connection."""
        self._over.set()

    async def run(self) -> None:
        """Connect, hand over, connect again."""
        while True:
            began = clock.monotonic()
            self._listener.connecting()
            try:
                await self._connection()
            except (OSError, ValueError, zmq.ZMQError):
                pass  # no such host, or out of descriptors: the next attempt may do better
            finally:
                self._listener.disconnected()
            await asyncio.sleep(max(0.0, RETRY_SECONDS - (clock.monotonic() - began)))

    async def _connection(self) -> None:
        self._over.clear()
        async with asyncio.timeout(ATTEMPT_SECONDS):
            url = await resolve(self._url)
        socket = self._context.socket(zmq.SUB)
        monitor = self._context.socket(zmq.PAIR)
        events: Reader | None = None
        messages: Reader | None = None
        timer = asyncio.get_running_loop().call_later(ATTEMPT_SECONDS, self._over.set)

        def on_event(parts: list[bytes]) -> None:
            event = parse_monitor_message(parts)["event"]
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                timer.cancel()
                self._listener.connected()
            elif event in _OVER:
                self._over.set()

        try:
            for option, value in (
                (zmq.LINGER, 0),
                (zmq.IPV6, 1),
                (zmq.RCVHWM, 0),  # memory is bounded by our own buffer, which tells what it drops
                (zmq.RECONNECT_IVL, -1),
                (zmq.CONNECT_TIMEOUT, 2000),
                (zmq.HANDSHAKE_IVL, 3000),
                (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
                (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
                (zmq.TCP_KEEPALIVE, 1),
                (zmq.TCP_KEEPALIVE_IDLE, 30),
            ):
                socket.setsockopt(option, value)
            socket.subscribe(b"")
            address = f"inproc://subscriber-{next(_numbers)}"
            socket.monitor(address, zmq.EVENT_ALL)
            monitor.setsockopt(zmq.LINGER, 0)
            monitor.connect(address)
            events = Reader(monitor, on_event)
            messages = Reader(socket, self._listener.message)
            socket.connect(url)
            await self._over.wait()
            messages.drain()
        finally:
            timer.cancel()
            for reader in (events, messages):
                if reader is not None:
                    reader.close()
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)
