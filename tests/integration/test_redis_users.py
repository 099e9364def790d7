"""The chart's Redis: its start script, users and probes on real servers, with the index's real clients."""

import contextlib
import hashlib
import os
import re
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from indexer.config.tree import Redis
from indexer.errors import CacheIndexerError
from indexer.index import scripts
from indexer.index.connect import connect
from indexer.index.reader import IndexReader
from indexer.index.state import Apply, Op, StreamKey
from indexer.index.verify import verify
from indexer.index.writer import IndexWriter
from tests import servers
from tests.conftest import REQUIRED
from tests.ports import free_port

FILES = Path(__file__).resolve().parents[2] / "charts" / "cache-indexer" / "files"
ACL = (FILES / "users.acl").read_text()
SCRIPTS = sorted(path.stem for path in (FILES.parents[2] / "lua").glob("*.lua"))
BLOCK, OTHER = "00112233445566aa", "00112233445566bb"


class Pod:
    """One container of the StatefulSet, played: its directories, its environment, its port."""

    def __init__(self, directory: Path, server: Path, number: int, primary: int | None) -> None:
        self.port = free_port()
        self._number, self._primary = number, primary
        self._config, self._passwords = directory / "config", directory / "passwords"
        self._run, self.data, self._bin = directory / "run", directory / "data", directory / "bin"
        for made in (self._config, self._passwords, self._run, self.data, self._bin):
            made.mkdir(parents=True)
        for name in ("start.sh", "probe.sh"):
            (self._config / name).write_bytes((FILES / name).read_bytes())
        # A pod has the port for itself; here it must be a free one. `inspector` lets the test look on.
        conf = (FILES / "redis.conf").read_text()
        assert "\nport 6379\n" in conf
        conf = conf.replace("\nport 6379\n", f"\nport {self.port}\nbind 127.0.0.1\n")
        (self._config / "redis.conf").write_text(conf)
        (self._config / "users.acl").write_text(f"{ACL}user inspector on nopass ~* &* +@all\n")
        for user in ("collector", "query", "replica"):
            (self._passwords / user).write_text(f'secret "of" \\{user}\n')
        (self._bin / "redis-server").symlink_to(server)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the start script until the server answers."""
        environment = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "CONFIG": str(self._config),
            "PASSWORDS": str(self._passwords),
            "RUN": str(self._run),
            "DATA": str(self.data),
            "POD_NAME": f"kv-redis-{self._number}",
        }
        script = (self._config / "start.sh").read_text()
        if self._primary is not None:
            environment["PRIMARY"] = "127.0.0.1"
            script = script.replace("replicaof $PRIMARY 6379", f"replicaof $PRIMARY {self._primary}")
        (self._config / "start.sh").write_text(script)
        with (self._run / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["sh", self._config / "start.sh"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, (self._run / "log").read_text()
            assert time.monotonic() < deadline, (self._run / "log").read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        assert self.process is not None
        with contextlib.suppress(redis.ConnectionError), self.client("inspector") as client:
            assert client.info("server")["process_id"] == self.process.pid
            return True
        return False

    def client(self, user: str) -> "redis.Redis":
        """A client that is that user."""
        file = self._passwords / user
        password = file.read_text().strip() if file.exists() else "any"
        return redis.Redis(port=self.port, username=user, password=password)

    def settings(self, user: str) -> Redis:
        """Configuration of a process that is that user."""
        return Redis(
            url=f"redis://127.0.0.1:{self.port}/0",
            username=user,
            password_file=str(self._passwords / user),
            timeout=5.0,  # type: ignore[arg-type]
        )

    def probe(self, what: str) -> bool:
        """What a probe of the StatefulSet says."""
        script = (self._config / "probe.sh").read_text()
        assert '"$cli" ' in script
        own = self._config / "probe-own-port.sh"
        own.write_text(script.replace('"$cli" ', f'"$cli" -p {self.port} '))
        return subprocess.run(["sh", own, what], env=os.environ, capture_output=True).returncode == 0

    def end(self) -> None:
        """End it as Kubernetes does."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            finally:
                self.process.kill()
            self.process = None


@pytest.fixture(params=["valkey", "redis7", "redis8"])
def start_pod(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Starts pods, by number."""
    server = servers.binary(request.param)
    if server is None:
        (pytest.fail if request.param in REQUIRED else pytest.skip)(servers.missing(request.param))
    pods: list[Pod] = []

    def start(number: int = 0, primary: int | None = None) -> Pod:
        pods.append(Pod(tmp_path / str(number), server, number, primary))
        pods[-1].start()
        return pods[-1]

    yield start
    for pod in pods:
        pod.end()


def _allowed(user: str) -> set[str]:
    (line,) = (line for line in ACL.splitlines() if line.startswith(f"user {user} "))
    return {word[1:].upper() for word in line.split() if re.fullmatch(r"\+[a-z_]+", word)}


def _called(*names: str) -> set[str]:
    """Commands in scripts, in the parts of the library that they may reach."""
    return {
        command
        for name in names
        for command in re.findall(r"redis\.p?call\(\s*'(\w+)'", scripts.source(name))
    }


def test_the_collector_may_call_what_its_scripts_call() -> None:
    assert _called(*SCRIPTS) <= _allowed("collector")


def test_queries_may_call_nothing_that_writes(start_pod: Callable[..., Pod]) -> None:
    with start_pod().client("inspector") as client:
        writing = {name.upper() for name in client.acl_cat("write")}
    assert _allowed("query") & writing == set()
    assert _allowed("collector") & writing <= _called(*SCRIPTS)


async def _whole_life(writer: IndexWriter, reader: IndexReader) -> None:
    """Everything that a collector and a query service ask of Redis, once."""
    stamp = struct.pack(">d", 1.0)
    await writer.stand_by("second", True)
    lease = await writer.acquire("first", True, 10.0)
    assert lease is not None
    token, stream = lease.token, StreamKey("10.0.0.1", 0)
    await writer.open(token, stream, None, "life", "pod", 0, bytes(8), "live")
    store = Op("store", "l1", 0, BLOCK + OTHER)
    remove = Op("remove", "l1", 0, OTHER)
    _, outcomes = await writer.apply(token, [Apply(stream, "life", 0, 1, stamp, (store, remove))])
    assert [outcome.code for outcome in outcomes] == ["OK"]
    _, generation = await writer.reconcile(token, "l3:10.0.0.1", "", BLOCK + OTHER, "")
    assert await writer.generation("l3:10.0.0.1") == generation
    assert {block async for page in writer.holder_blocks("l3:10.0.0.1") for block in page} == {BLOCK, OTHER}
    await writer.note(token, {"block_size": "16"})

    await reader.ready()
    matches = await reader.lookup([BLOCK + OTHER], ["l1", "l2", "l3"], None)
    assert (matches.blocks("l1", "10.0.0.1"), matches.blocks("l3", "10.0.0.1")) == (1, 2)
    assert await reader.instances() == ["10.0.0.1"]
    assert await reader.holders(OTHER) == ["l3:10.0.0.1"]
    assert (await reader.stats()).meta["block_size"] == "16"

    await writer.reconcile(token, "l3:10.0.0.1", generation, "", OTHER)
    await writer.open(token, stream, "life", "next life", "pod", 0, bytes(8), "live")
    await writer.end(token, stream, "next life")
    while (await writer.sweep(token)).pending:
        pass
    await writer.renew(token, 10.0)
    await writer.release(token)
    await writer.withdraw("second")


async def test_the_index_works_with_just_these_commands(start_pod: Callable[..., Pod]) -> None:
    pod = start_pod()
    writing, reading = await connect(pod.settings("collector")), await connect(pod.settings("query"))
    try:
        await _whole_life(IndexWriter(writing, "default", 5.0), IndexReader(reading, "default", 5.0))
        assert (await verify(writing, "default")).ok
        with pytest.raises(CacheIndexerError, match="refuses this user"):
            await IndexWriter(reading, "default", 5.0).acquire("thief", True, 1.0)
        with pod.client("inspector") as inspector:
            refused = {entry["object"] for entry in inspector.acl_log() if entry["username"] == "collector"}
        assert refused == set()
    finally:
        await writing.aclose()
        await reading.aclose()


REFUSED = [
    ("collector", "FLUSHALL"),
    ("collector", "CONFIG SET maxmemory-policy allkeys-lru"),
    ("collector", "SET elsewhere 1"),
    ("collector", "KEYS *"),
    ("collector", "CLIENT KILL TYPE normal"),
    ("query", f"SADD kvi:{{default}}:holder:l1:a:0 {BLOCK}"),
    ("query", "EVAL return 0"),
    ("query", "GET elsewhere"),
    ("query", "FLUSHALL"),
    ("replica", "GET kvi:{default}:rev"),
    ("probe", "GET kvi:{default}:rev"),
    ("probe", "INFO"),
]


def test_what_each_user_may_not_do(start_pod: Callable[..., Pod]) -> None:
    pod = start_pod()
    for user, command in REFUSED:
        with pod.client(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command.split())
    for anonymous in ({}, {"username": "default", "password": "any"}):
        client = redis.Redis(port=pod.port, protocol=2, **anonymous)  # type: ignore[arg-type]
        with client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()


def test_no_password_in_the_clear_where_the_server_runs(start_pod: Callable[..., Pod]) -> None:
    pod = start_pod()
    for file in pod.data.parent.joinpath("run").iterdir():
        assert "secret" not in file.read_text(), file.name
    acl = pod.data.parent.joinpath("run", "users.acl").read_text()
    assert hashlib.sha256(b'secret "of" \\query').hexdigest() in acl


async def test_the_index_outlives_a_restart(start_pod: Callable[..., Pod]) -> None:
    """What scripts write stands in the log as transactions, whose rights are looked at when it is read."""
    pod = start_pod()
    async with await connect(pod.settings("collector")) as client:
        writer = IndexWriter(client, "default", 5.0)
        lease = await writer.acquire("first", True, 10.0)
        assert lease is not None
        await writer.reconcile(lease.token, "l3:10.0.0.1", "", BLOCK, "")
    pod.end()
    pod.start()
    async with await connect(pod.settings("query")) as client:
        assert await IndexReader(client, "default", 5.0).holders(BLOCK) == ["l3:10.0.0.1"]


def test_replicas_follow_and_probes_tell(start_pod: Callable[..., Pod]) -> None:
    primary = start_pod()
    with primary.client("collector") as client:
        client.sadd("kvi:{default}:holder:l1:a:0", BLOCK)
    replica = start_pod(1, primary.port)
    deadline = time.monotonic() + 20
    while not replica.probe("synced"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with replica.client("query") as client:
        assert client.hgetall("kvi:{default}:meta") == {}
    with replica.client("collector") as client:
        assert client.smembers("kvi:{default}:holder:l1:a:0") == {BLOCK.encode()}
    assert all(pod.probe(what) for pod in (primary, replica) for what in ("synced", "ready", "alive"))
    primary.end()
    assert not any(primary.probe(what) for what in ("synced", "ready", "alive"))
    assert replica.probe("ready"), "a replica goes on answering while the primary is away"


def test_a_replica_that_has_just_joined_ends_when_told(start_pod: Callable[..., Pod]) -> None:
    """It writes its first append-only file then, and Redis refuses to end during that unless it is forced."""
    primary = start_pod()
    for number in range(1, 6):
        replica = start_pod(number, primary.port)
        deadline = time.monotonic() + 20
        while not replica.probe("synced"):
            assert time.monotonic() < deadline
        replica.end()
