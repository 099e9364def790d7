"""Mooncake's own KV events as an alarm clock.

A master that was built with them publishes when keys are stored or removed, but not where the bytes are, and
not every removal; it keeps no history. So an event only makes the next poll immediate.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import zmq
import zmq.asyncio
from yarl import URL

CALM = 0.2
"""Seconds between two alarms at least: events come in floods."""


@asynccontextmanager
async def listen(master: str, port: int, wake: asyncio.Event) -> AsyncIterator[None]:
    """While inside, set `wake` whenever the master at URL `master` publishes an event on `port`."""
    name = URL(master).host or ""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, ":" in name)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}")
    task = asyncio.create_task(_ring(socket, wake))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        socket.close()
        context.term()


async def _ring(socket: zmq.asyncio.Socket, wake: asyncio.Event) -> None:
    while True:
        await socket.recv_multipart()
        wake.set()
        await asyncio.sleep(CALM)
