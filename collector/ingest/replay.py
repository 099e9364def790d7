"""Asking an engine for batches again, over the ROUTER socket beside its publisher.

Request `[empty, start (8 bytes, big-endian)]`; answers come oldest first, as
`[empty, (topic,) sequence, payload]`, and end with sequence -1. An engine only keeps its last batches, begins
silently at the oldest kept one, and some lose batches in the middle of a long answer and still send the end
marker: so the numbers are checked.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import zmq

from collector.ingest.frames import END, Batch, split
from collector.ingest.sockets import Reader, resolve
from indexer.errors import CacheIndexerError, DecodeError

CHUNK = 500
"""Most batches handed over at once."""
IDLE_SECONDS = 2.0
"""Longest wait for the next message of an answer. Engines serve replays between their own sends."""


class ReplayError(CacheIndexerError):
    """An answer broke off: nothing more came in time, or a batch is missing or unreadable in the middle."""


async def fetch(
    context: "zmq.Context[zmq.Socket[bytes]]",
    url: str,
    start: int,
    stamp: Callable[[bytes], bytes],
    idle: float = IDLE_SECONDS,
) -> AsyncGenerator[list[Batch]]:
    """Consecutive batches from `start` (or the oldest kept) to the newest, in chunks as they come.

    `stamp` reads a payload's time. Raises ReplayError after the last good chunk; a normal end is an end
    marker after an answer without a hole. A slow consumer costs memory here, no batches.
    """
    try:
        address = await asyncio.wait_for(resolve(url), idle)
    except (OSError, ValueError) as error:
        raise ReplayError(f"{url}: {error}") from None
    socket = context.socket(zmq.DEALER)
    arrived: asyncio.Queue[list[bytes]] = asyncio.Queue()
    reader: Reader | None = None
    try:
        for option in (zmq.LINGER, zmq.RCVHWM):
            socket.setsockopt(option, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        reader = Reader(socket, arrived.put_nowait)
        try:
            socket.connect(address)
            socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise ReplayError(f"{url}: {error}") from None
        async with aclosing(_chunks(arrived, start, stamp, idle)) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        if reader is not None:
            reader.close()
        socket.close(0)


async def _chunks(
    arrived: "asyncio.Queue[list[bytes]]", start: int, stamp: Callable[[bytes], bytes], idle: float
) -> AsyncGenerator[list[Batch]]:
    chunk: list[Batch] = []
    expected: int | None = None
    trouble: str | None = None
    while trouble is None:
        if chunk and (arrived.empty() or len(chunk) >= CHUNK):
            yield chunk
            chunk = []
        try:
            parts = await asyncio.wait_for(arrived.get(), idle)
            if len(parts) > 1 and parts[-2] == END:
                break
            seq, payload = split(parts)
            if seq >= start:  # an engine may begin earlier than it was asked to
                if expected is not None and seq != expected:
                    trouble = f"batch {seq} came where {expected} was due"
                    continue
                chunk.append((seq, stamp(payload), payload))
                expected = seq + 1
        except TimeoutError:
            trouble = f"nothing more came for {idle} s"
        except DecodeError as error:
            trouble = str(error)
    if chunk:
        yield chunk
    if trouble is not None:
        raise ReplayError(f"the answer from {start} broke off: {trouble}")
