"""The replayer must look like the recorded engine on the wire, or nothing shown with it is worth anything."""

import asyncio
import gzip
import json
import struct
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from collector.capture import CaptureError, load
from collector.replayer import Replayer

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted(path.name for path in DATA.glob("c*.jsonl.gz"))
PATIENCE = 20


@asynccontextmanager
async def subscriber(*urls: str):
    with zmq.asyncio.Context() as context:
        sockets = []
        for url in urls:
            sockets.append(context.socket(zmq.SUB))
            sockets[-1].subscribe(b"")
            sockets[-1].connect(url)
        try:
            yield sockets
        finally:
            context.destroy(linger=0)


async def replayed(url: str, start: int) -> list[list[bytes]]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(url)
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        answers = []
        async with asyncio.timeout(PATIENCE):
            while True:
                answers.append(await socket.recv_multipart())
                if answers[-1][-2] == b"\xff" * 8:
                    return answers


def recorded(name: str) -> list[dict]:
    lines = gzip.decompress((DATA / name).read_bytes()).splitlines()
    return [frame for line in map(json.loads, lines) for frame in line.get("frames", [])]


@pytest.mark.parametrize("name", CAPTURES)
async def test_frames_are_the_recorded_ones_on_each_ranks_own_socket(name):
    frames = recorded(name)
    async with asyncio.timeout(PATIENCE), Replayer(load(DATA / name)) as engine:
        ranks = engine.target("e").ranks
        async with subscriber(*(rank.events for rank in ranks)) as sockets:
            await engine.subscribed()
            await engine.play()
            first_port = min(frame.get("port", 0) for frame in frames)
            for rank, socket in enumerate(sockets):
                own = [f for f in frames if f.get("port", 0) - first_port == rank]
                assert own
                for frame in own:
                    assert [part.hex() for part in await socket.recv_multipart()] == frame["parts_hex"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("capture-0.18.0-bs32-int.jsonl.gz", 3), ("capture-0.32.0-bs128-bytes-seedunset.jsonl.gz", 4)],
)
async def test_replay_answers_have_the_shape_that_the_recorded_engine_sent(name, shape):
    """Answers before 0.26 lack the topic frame; the capture also holds what the real socket answered."""
    lines = map(json.loads, gzip.decompress((DATA / name).read_bytes()).splitlines())
    real = next(line for line in lines if line["kind"] == "replay")
    start = int(real["request_parts"][1], 16)
    async with Replayer(load(DATA / name), buffer_steps=1000) as engine:
        await engine.play()
        url = engine.target("e").ranks[0].replay
        assert url is not None
        answers = await replayed(url, start)
        assert len(answers) == real["n"]
        assert {len(answer) for answer in answers} == {shape}
        assert [part.hex() for part in answers[0][:-1]] == real["first"][0][:-1]
        assert [part.hex() for part in answers[-1]] == [part.split("...")[0] for part in real["last"][0]]
        assert len(await replayed(url, 1_000_000)) == 1


async def test_replay_begins_at_the_oldest_batch_that_is_kept():
    capture = load(DATA / "capture-0.18.0-bs32-int.jsonl.gz")
    async with Replayer(capture, buffer_steps=5) as engine:
        await engine.play()
        url = engine.target("e").ranks[0].replay
        assert url is not None
        last = max(frame.seq for frame in capture.frames)
        answers = await replayed(url, 0)
        assert [int.from_bytes(a[-2], "big") for a in answers[:-1]] == list(range(last - 4, last + 1))


async def test_lost_frames_are_in_the_replay_but_not_on_the_wire():
    capture = load(DATA / "capture-0.18.0-lora.jsonl.gz")
    async with asyncio.timeout(PATIENCE), Replayer(capture, buffer_steps=10) as engine:
        (rank,) = engine.target("e").ranks
        async with subscriber(rank.events) as (socket,):
            await engine.subscribed()
            await engine.step(lose=True)
            await engine.step()
            assert int.from_bytes((await socket.recv_multipart())[1], "big") == 1
        assert rank.replay is not None
        assert len(await replayed(rank.replay, 0)) == 3


async def test_restarted_engine_is_on_the_same_ports_and_counts_from_zero_at_a_later_time():
    capture = load(DATA / "capture-0.18.0-lora.jsonl.gz")
    async with asyncio.timeout(PATIENCE), Replayer(capture, buffer_steps=10) as engine:
        before = engine.target("e")
        async with subscriber(before.ranks[0].events) as (socket,):
            await engine.subscribed()
            await engine.play()
            old = [await socket.recv_multipart() for _ in capture.steps]
            # A subscriber that waits is what makes its socket subscribe again.
            again = asyncio.ensure_future(socket.recv_multipart())
            await engine.restart(later=60)
            assert engine.target("e") == before
            await engine.subscribed()
            await engine.step()
            topic, sequence, payload = await again
        assert (topic, sequence) == (old[0][0], old[0][1])
        assert struct.unpack(">d", payload[2:10])[0] == struct.unpack(">d", old[0][2][2:10])[0] + 60
        assert payload[10:] == old[0][2][10:]
        assert before.ranks[0].replay is not None
        assert len(await replayed(before.ranks[0].replay, 0)) == 2


async def test_recorded_pauses_are_kept_in_proportion(monkeypatch):
    capture = load(DATA / "capture-0.18.0-lora.jsonl.gz")
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with Replayer(capture) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("collector.replayer.asyncio.sleep", sleep)
            await engine.play(speed=10)
    times = [step.frames[0].at for step in capture.steps]
    assert pauses == pytest.approx([(b - a) / 10 for a, b in pairwise(times)])


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n", b"nothing", b'{"kind": "call"}\n', b'{"kind": "meta", "version": "x"}\n', b"\x1f\x8b"],
)
def test_file_that_is_no_capture_is_refused_by_name(tmp_path, content):
    file = tmp_path / "broken.jsonl"
    file.write_bytes(content)
    with pytest.raises(CaptureError, match=r"broken\.jsonl"):
        load(file)


def test_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(CaptureError, match=r"none\.gz"):
        load(tmp_path / "none.gz")
