"""The query service as `http.workers` says: in this process, or in several that share one listening socket.

Workers are fresh interpreters (spawned, not forked), so that no event loop, thread or metric of the parent
lives on in them. They share the parent's listening socket: when one dies, connections that wait in the
backlog are taken by the others.
"""

import asyncio
import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path

from indexer import log
from indexer.api.metrics import MULTIPROCESS
from indexer.api.server import listen, open_query, serve
from indexer.config import Config
from indexer.runtime import run, stop_on_signals

RESTART_PAUSE = 0.5
"""Seconds before a dead worker is replaced, so that one that cannot start does not spin."""
KILL_AFTER = 5.0
"""Seconds that a worker gets beyond http.shutdownTimeout before it is killed."""
_log = log.get(__name__)


async def run_query(config: Config, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
    """Run the query service until `stop`; `ready` is called once it listens.

    Raises OSError if it cannot, and HashError or ConfigError for what no worker could start with.
    """
    async with open_query(config):
        pass
    sock = listen(config.http)
    if ready is not None:
        ready()
    if config.http.workers == 1:
        await serve(config, sock, stop)
        return
    directory = _metrics_directory()
    os.environ[MULTIPROCESS] = str(directory)
    try:
        stopped = [
            asyncio.create_task(_keep_worker(config, sock, stop, n)) for n in range(config.http.workers)
        ]
        await stop.wait()
        sock.close()  # before the workers close theirs: else clients could connect and nobody would accept
        await asyncio.gather(*stopped)
    finally:
        del os.environ[MULTIPROCESS]
        shutil.rmtree(directory, ignore_errors=True)


def _metrics_directory() -> Path:
    """Where workers count together: in memory if possible, since a container's disk may be read-only."""
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="cache-indexer-metrics-", dir=base))


async def _keep_worker(config: Config, sock: socket.socket, stop: asyncio.Event, number: int) -> None:
    """Keep one worker running, then end it."""
    while not stop.is_set():
        process = multiprocessing.get_context("spawn").Process(
            target=_worker, args=(config, sock), name=f"cache-indexer-query-{number}"
        )
        process.start()
        _log.info("query worker started", worker=number, pid=process.pid)
        ended = _ended(process)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await _end(process, ended, config.http.shutdown_timeout + KILL_AFTER)
            return
        stopping.cancel()
        _log.error("query worker died; it is replaced", worker=number, pid=process.pid, code=process.exitcode)
        await asyncio.sleep(RESTART_PAUSE)


def _ended(process: BaseProcess) -> asyncio.Future[None]:
    """Done when the process has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        loop.remove_reader(process.sentinel)
        process.join()
        if not future.done():
            future.set_result(None)

    loop.add_reader(process.sentinel, done)
    return future


async def _end(process: BaseProcess, ended: asyncio.Future[None], seconds: float) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(ended)
    except TimeoutError:
        _log.error("query worker did not end in time; it is killed", pid=process.pid)
        process.kill()
        await ended


def _worker(config: Config, sock: socket.socket) -> None:
    """A worker's whole life; SIGTERM or the parent's death ends it."""
    log.configure(config.log.level)
    run(_serve_until_told(config, sock))


async def _serve_until_told(config: Config, sock: socket.socket) -> None:
    stop = stop_on_signals()
    parent = parent_process()
    assert parent is not None
    asyncio.get_running_loop().add_reader(parent.sentinel, stop.set)
    await serve(config, sock, stop)
