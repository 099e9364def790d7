"""Plays a capture as a living engine: real ZMQ sockets, the recorded frames byte for byte.

As an engine does, each data-parallel rank publishes on a socket of its own with sequence numbers of its own,
and may have a replay socket that serves its last batches. Unlike one, it can be told to take one step at a
time, to wait for its subscribers, to lose frames and to restart: what tests and demonstrations need.
"""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from collector.capture import Capture, Frame, Step
from collector.discovery.base import EngineTarget, Rank

END = (b"", b"\xff" * 8, b"")
"""Ends a replay; engines put the topic's empty frame before it where their answers carry a topic."""
_STAMP = slice(2, 10)


class Replayer:
    """One engine that plays `capture`. Use as an async context manager, or `start` and `close`.

    `ports`: the events port of each rank, else free ones are taken. `buffer_steps` > 0 opens replay sockets
    that keep that many batches; `replay_ports` fixes theirs. `topic_in_replay`: the shape of replay answers,
    by default the recorded engine's.
    """

    def __init__(
        self,
        capture: Capture,
        *,
        host: str = "127.0.0.1",
        ports: tuple[int, ...] | None = None,
        buffer_steps: int = 0,
        replay_ports: tuple[int, ...] | None = None,
        topic_in_replay: bool | None = None,
        hwm: int = 100_000,
    ) -> None:
        self.capture = capture
        self._host = host
        self._fixed = (ports or (0,) * capture.ranks, replay_ports or (0,) * capture.ranks)
        self._buffer_steps = buffer_steps
        self._topic_in_replay = capture.replay_has_topic if topic_in_replay is None else topic_in_replay
        self._hwm = hwm
        self._publishers: list[_Publisher] = []
        self._context: zmq.asyncio.Context
        self._position = 0
        self._shift = 0.0

    async def __aenter__(self) -> "Replayer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Bind all sockets. Raises zmq.ZMQError when a port is taken."""
        self._context = context = zmq.asyncio.Context()
        for events, replay in zip(*self._fixed, strict=True):
            self._publishers.append(
                _Publisher(
                    context, self._host, events, replay, self._buffer_steps, self._topic_in_replay, self._hwm
                )
            )
        # A restarted engine is found where it was.
        self._fixed = (
            tuple(p.port for p in self._publishers),
            tuple(p.replay_port or 0 for p in self._publishers),
        )

    async def close(self) -> None:
        """Close all sockets; what was sent is still delivered, for a second at most."""
        publishers, self._publishers = self._publishers, []
        for publisher in publishers:
            await publisher.close()
        # Returns when the sockets are really closed, so that their ports can be bound again.
        await asyncio.to_thread(self._context.term)

    def target(self, ip: str, incarnation: str | None = None) -> EngineTarget:
        """This engine as discovery would describe it, under the name `ip`."""
        host = "127.0.0.1" if self._host in ("*", "0.0.0.0") else self._host
        return EngineTarget(
            ip,
            incarnation,
            tuple(
                Rank(
                    f"tcp://{host}:{p.port}",
                    None if p.replay_port is None else f"tcp://{host}:{p.replay_port}",
                )
                for p in self._publishers
            ),
        )

    @property
    def position(self) -> int:
        """How many steps have been taken since the last (re)start."""
        return self._position

    @property
    def next_step(self) -> Step | None:
        """The step that `step` would take; None at the end."""
        steps = self.capture.steps
        return steps[self._position] if self._position < len(steps) else None

    async def subscribed(self, count: int = 1) -> None:
        """Wait until each rank has at least `count` subscribers. Frames published before are lost to them."""
        for publisher in self._publishers:
            await publisher.subscribed(count)

    async def step(self, *, lose: bool = False) -> Step | None:
        """Take one step: publish its frames. None at the end. `lose`: the frames exist (a replay socket has
        them, sequence numbers count them) but never reach a subscriber."""
        step = self.next_step
        if step is not None:
            self._position += 1
            for frame in step.frames:
                await self._publishers[frame.rank].publish(self._restamped(frame), lose=lose)
        return step

    async def play(self, speed: float = 0.0, on_step: Callable[[], None] = lambda: None) -> None:
        """Take all further steps. `speed` 1 keeps the recorded pauses, 10 makes a tenth of them, 0 none."""
        last: float | None = None
        while (step := self.next_step) is not None:
            if step.frames:
                at = step.frames[0].at
                if speed > 0 and last is not None:
                    await asyncio.sleep(max(0.0, at - last) / speed)
                last = at
            await self.step()
            on_step()

    async def restart(self, *, down: float = 0.0, later: float = 3600.0) -> None:
        """Die and come back empty on the same ports: sequence numbers begin at 0, batch times go on.

        `down`: seconds without sockets. `later`: seconds by which the new life's batch times are shifted
        against the recording; negative for an engine whose clock was set back.
        """
        await self.close()
        await asyncio.sleep(down)
        self._position = 0
        self._shift += later
        await self.start()

    def _restamped(self, frame: Frame) -> Frame:
        if not self._shift:
            return frame
        payload = bytearray(frame.payload)
        (stamp,) = struct.unpack(">d", payload[_STAMP])
        payload[_STAMP] = struct.pack(">d", stamp + self._shift)
        return Frame(frame.rank, frame.topic, frame.seq, bytes(payload), frame.at + self._shift)


class _Publisher:
    """The sockets of one rank. XPUB is PUB on the wire, but tells who has subscribed."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        host: str,
        port: int,
        replay_port: int,
        buffer_steps: int,
        topic_in_replay: bool,
        hwm: int,
    ) -> None:
        self._topic_in_replay = topic_in_replay
        self._kept: deque[Frame] = deque(maxlen=buffer_steps)
        self._subscribers = 0
        self._changed = asyncio.Event()
        self._events = context.socket(zmq.XPUB)
        self._events.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._events.setsockopt(zmq.SNDHWM, hwm)
        self.port = _bind(self._events, host, port)
        self.replay_port: int | None = None
        self._tasks = [asyncio.create_task(self._count())]
        self._replay: zmq.asyncio.Socket | None = None
        if buffer_steps:
            self._replay = context.socket(zmq.ROUTER)
            self._replay.setsockopt(zmq.SNDHWM, 2 * (buffer_steps + 1))
            self.replay_port = _bind(self._replay, host, replay_port)
            self._tasks.append(asyncio.create_task(self._serve(self._replay)))

    async def publish(self, frame: Frame, *, lose: bool) -> None:
        self._kept.append(frame)
        if not lose:
            await self._events.send_multipart([frame.topic, frame.seq.to_bytes(8, "big"), frame.payload])

    async def subscribed(self, count: int) -> None:
        while self._subscribers < count:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._events.close(linger=1000)
        if self._replay is not None:
            self._replay.close(linger=1000)

    async def _count(self) -> None:
        while True:
            message = await self._events.recv()
            self._subscribers += 1 if message[:1] == b"\x01" else -1
            self._changed.set()

    async def _serve(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            request = await socket.recv_multipart()
            if len(request) != 3:
                continue  # engines drop it without an answer, too
            start = int.from_bytes(request[2], "big")
            for frame in tuple(self._kept):
                if frame.seq >= start:
                    parts = [frame.seq.to_bytes(8, "big"), frame.payload]
                    await socket.send_multipart(
                        [request[0], b"", *([frame.topic] if self._topic_in_replay else []), *parts]
                    )
            await socket.send_multipart([request[0], *([b""] if self._topic_in_replay else []), *END])


def _bind(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    """Bind to `port`, or to a free one for 0; answers the port."""
    url = f"tcp://{host}:{port or '*'}"
    socket.bind(url)
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
