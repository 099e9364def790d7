"""The tests' own servers: ours, on their own port, gone afterwards."""

import os
import socket

import pytest
import redis

from tests import servers


def test_every_kind_of_server_evaluates_lua(any_redis):
    with any_redis.client() as client:
        assert client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "k", "v") == b"OK"
        assert client.get("k") == b"v"


@pytest.mark.parametrize("_round", range(2))
def test_the_shared_server_is_empty_for_each_test(redis_server, _round):
    with redis_server.client() as client:
        assert client.dbsize() == 0
        client.set("left", "over")


async def test_asyncio_client(redis_server):
    async with redis_server.aclient() as client:
        assert await client.ping()


def test_a_port_that_someone_else_answers_on_is_refused(start_redis):
    first = start_redis()
    with pytest.raises(RuntimeError, match=r"in use|belongs to process"):
        servers.start(port=first.port)
    assert first.client().ping()


def test_stop_kill_and_restart_with_data(start_redis):
    server = start_redis(options={"appendonly": "yes", "appendfsync": "always"})
    server.client().set("k", "v")
    old = server.pid
    server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)
    server.start()
    assert server.client().get("k") == b"v"
    server.stop()
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_paused_server_does_not_answer_and_can_be_ended(start_redis):
    server = start_redis()
    server.pause()
    with pytest.raises(redis.TimeoutError):
        server.client(socket_timeout=0.2, retry=None).ping()
    server.resume()
    assert server.client().ping()
    server.pause()
    server.stop()


def test_replica_follows_its_primary(start_redis):
    primary = start_redis()
    replica = start_redis(replica_of=primary)
    client = primary.client(single_connection_client=True)  # WAIT is about the connection's own writes
    client.set("k", "v")
    assert client.wait(1, 10_000) == 1
    assert replica.client().get("k") == b"v"


def test_unix_socket_and_maxmemory(start_redis):
    server = start_redis(options={"maxmemory": "3mb"})
    client = redis.Redis(unix_socket_path=str(server.socket), decode_responses=True)
    assert client.config_get("maxmemory") == {"maxmemory": "3145728"}
