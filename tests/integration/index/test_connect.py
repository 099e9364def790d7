"""Every form of address, and credentials that change."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.config.tree import Redis, RedisTls
from indexer.errors import ConfigError, IndexUnavailableError
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import STAMP_NONE, Apply, Op, StreamKey
from indexer.index.verify import verify
from indexer.index.writer import IndexWriter
from tests.integration.index.conftest import POOL, packed, stamp
from tests.ports import free_port
from tests.servers import Server, binary

A = StreamKey("10.0.0.1", 0)
Connect = Callable[..., Any]


@pytest.fixture
async def connected() -> AsyncIterator[Connect]:
    clients = []

    async def open_one(**settings: Any) -> Any:
        clients.append(await connect(Redis(**settings)))
        return clients[-1]

    yield open_one
    for client in clients:
        await client.aclose()


async def write_and_read(client: Any) -> None:
    """The whole way: lead, open, store, look up, verify."""
    writer, reader = IndexWriter(client, POOL, 5), IndexReader(client, POOL, 5)
    await reader.ready()
    lease = await writer.acquire("m", True, 60)
    assert lease is not None
    await writer.open(lease.token, A, None, "a", "", 0, STAMP_NONE, "live")
    batch = Apply(A, "a", 0, 1, stamp(1), (Op("store", "l1", 0, packed(1, 2)),))
    _, (outcome,) = await writer.apply(lease.token, [batch])
    assert outcome.code == "OK"
    matches = await reader.lookup([packed(1, 2)], ["l1"], None)
    assert matches.blocks("l1", A.ip) == 2
    assert await writer.generation("l3:x") == ""
    assert [page async for page in writer.holder_blocks("l1:10.0.0.1:0")] != [[]]
    assert (await verify(client, POOL)).ok


async def test_tcp_speaks_resp3(redis_server: Server, connected: Connect) -> None:
    client = await connected(url=redis_server.url, timeout=5)
    await write_and_read(client)
    (listed,) = [c for c in await client.client_list() if c["name"] == "cache-indexer"]
    assert listed["resp"] == "3"


async def test_a_database_number(redis_server: Server, connected: Connect) -> None:
    client = await connected(url=redis_server.url.removesuffix("/0") + "/5", timeout=5)
    await write_and_read(client)
    assert redis_server.client(db=5).dbsize() > 0
    assert redis_server.client(db=0).dbsize() == 0


async def test_a_unix_socket(redis_server: Server, connected: Connect) -> None:
    await write_and_read(await connected(url=f"unix://{redis_server.socket}", timeout=5))


async def test_a_password_file_is_read_at_each_connect(
    start_redis: Any, connected: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = start_redis("valkey", options={"requirepass": "first"})
    secret = tmp_path / "password"
    secret.write_text("first\n")
    client = await connected(url=server.url, timeout=5, password_file=str(secret))
    await write_and_read(client)
    server.client().config_set("requirepass", "second")
    server.options["requirepass"] = "second"
    secret.write_text("second\n")
    await client.connection_pool.disconnect()
    assert (await IndexReader(client, POOL, 5).stats()).term == 1
    assert not [record for record in caplog.records if record.name.startswith("redis")]
    wrong = await connected(url=server.url, timeout=5, password="guess")
    with pytest.raises(IndexUnavailableError) as error:
        await IndexReader(wrong, POOL, 5).ready()
    assert "guess" not in str(error.value)


async def test_a_user_with_few_rights(redis_server: Server, connected: Connect) -> None:
    """Managed servers forbid CONFIG and INFO; what can't be asked is not refused."""
    redis_server.client().execute_command(
        "ACL", "SETUSER", "app", "on", ">pw", "~kvi:*", "+@all", "-@admin", "-@dangerous"
    )
    try:
        client = await connected(url=redis_server.url, timeout=5, username="app", password="pw")
        await write_and_read(client)
        outside = IndexWriter(client, POOL, 5)
        with pytest.raises(IndexUnavailableError, match="refuses this user"):
            await outside._run("GET", "other")
        redis_server.client().execute_command("ACL", "SETUSER", "app", "-hmget")
        with pytest.raises(IndexUnavailableError, match="refuses this user"):
            await IndexReader(client, POOL, 5).lookup([], [], [])
    finally:
        redis_server.client().execute_command("ACL", "DELUSER", "app")


async def test_a_cluster(start_redis: Any, connected: Connect) -> None:
    """Of one node that has all slots: routing by key, the cluster client's own pipelines."""
    server: Server = start_redis("valkey", options={"cluster-enabled": "yes"})
    server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    client = await connected(url=f"redis+cluster://127.0.0.1:{server.port}", timeout=5)
    while server.client().cluster("info")["cluster_state"] != "ok":
        pass
    await write_and_read(client)
    reader = IndexReader(client, POOL, 5)
    await reader.stats()
    server.client().script_flush()
    found = await asyncio.gather(*(reader.lookup([packed(1, 2)], ["l1"], None) for _ in range(50)))
    assert [matches.blocks("l1", A.ip) for matches in found] == [2] * 50


async def test_a_node_of_a_cluster_is_no_single_server(start_redis: Any, connected: Connect) -> None:
    asked, other = (start_redis("valkey", options={"cluster-enabled": "yes"}) for _ in range(2))
    other.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    asked.client().execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    client = await connected(url=asked.url, timeout=5)
    while asked.client().cluster("info")["cluster_state"] != "ok":
        pass
    with pytest.raises(IndexUnavailableError, match=r"redis\+cluster://"):
        await IndexReader(client, POOL, 5).ready()


async def test_what_is_no_redis(connected: Connect) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await connected(url=f"redis://127.0.0.1:{port}", timeout=5)
        with pytest.raises(IndexUnavailableError, match="no Redis"):
            await IndexReader(client, POOL, 5).ready()


@pytest.fixture
def sentinel(start_redis: Any, tmp_path: Path) -> Iterator[tuple[Server, int]]:
    primary: Server = start_redis("valkey")
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {primary.port} 1\n"
    )
    program = binary("valkey")
    assert program is not None
    process = subprocess.Popen([program, config, "--sentinel"], stdout=subprocess.DEVNULL)
    yield primary, port
    process.terminate()
    process.wait(10)


async def test_sentinel(sentinel: tuple[Server, int], connected: Connect) -> None:
    _, port = sentinel
    client = await connected(url=f"redis+sentinel://127.0.0.1:{port}/main/0", timeout=5)
    for _ in range(100):
        try:
            await IndexReader(client, POOL, 5).ready()
            break
        except IndexUnavailableError:
            continue
    await write_and_read(client)
    unknown = await connected(url=f"redis+sentinel://127.0.0.1:{port}/other/0", timeout=1)
    with pytest.raises(IndexUnavailableError, match="other"):
        await IndexReader(unknown, POOL, 5).ready()


async def test_tls(start_redis: Any, connected: Connect, tmp_path: Path) -> None:
    if shutil.which("openssl") is None or binary("redis7") is None:
        pytest.skip("needs the system's redis-server (the embedded one has no TLS) and openssl")
    key, cert, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    subprocess.run(  # noqa: ASYNC221
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    start_redis(
        "redis7",
        options={
            "tls-port": str(port),
            "tls-cert-file": str(cert),
            "tls-key-file": str(key),
            "tls-auth-clients": "no",
        },
    )
    url = f"rediss://127.0.0.1:{port}/0"
    await write_and_read(await connected(url=url, timeout=5, tls=RedisTls(ca_file=str(cert))))
    strict = await connected(url=url, timeout=5)
    with pytest.raises(IndexUnavailableError, match=r"(?i)certificate"):
        await IndexReader(strict, POOL, 5).ready()
    lax = await connected(url=url, timeout=5, tls=RedisTls(insecure=True))
    await IndexReader(lax, POOL, 5).ready()


async def test_embedded_is_no_address() -> None:
    with pytest.raises(ConfigError, match="embedded"):
        await connect(Redis(url="embedded"))
