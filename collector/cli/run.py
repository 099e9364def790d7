"""`cache-indexer run`: everything in one go."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from collector.app import run_collector
from collector.cli.common import EngineOption, RedisOption, load_with, wants_embedded
from collector.embedded import Embedded, default_port
from indexer import log
from indexer.api.workers import run_query
from indexer.cli.common import ConfigOption
from indexer.config import Config
from indexer.errors import CacheIndexerError, ConfigError
from indexer.runtime import run as run_loop
from indexer.runtime import stop_on_signals

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where the embedded Valkey keeps the index over restarts."),
]
AddrOption = Annotated[
    str | None, typer.Option("--http-addr", metavar="[HOST]:PORT", help="Where queries are answered (http.addr).")
]
_log = log.get(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def run(
        config: ConfigOption = None,
        engine: EngineOption = None,
        redis_url: RedisOption = None,
        http_addr: AddrOption = None,
        data_dir: DataOption = None,
    ) -> None:
        """Collect and answer queries in one process, until SIGTERM.

        Without a redis.url in file, environment or option, the index lies in an embedded Valkey.
        """
        settings = load_with(config, engine, {"redis.url": redis_url, "http.addr": http_addr})
        if data_dir is not None and not wants_embedded(settings):
            raise ConfigError(f"--data-dir {data_dir}: is for the embedded Valkey, but redis.url names another")
        log.configure(settings.log.level)
        try:
            run_loop(_run(settings, data_dir))
        except* OSError as errors:
            first = _first(errors)
            raise CacheIndexerError(
                f"cannot listen on http.addr = {settings.http.addr} or "
                f"collector.addr = {settings.collector.addr}: {first}"
            ) from None
        except* CacheIndexerError as errors:
            raise _first(errors) from None


async def _run(config: Config, data_dir: Path | None) -> None:
    stop = stop_on_signals()
    async with AsyncExitStack() as stack:
        watch = None
        if wants_embedded(config):
            server = await stack.enter_async_context(await Embedded.start(data_dir, default_port()))
            _log.info("embedded Valkey started", url=server.url, data_dir=str(data_dir or ""))
            config = structs.replace(config, redis=structs.replace(config.redis, url=server.url))
            watch = asyncio.create_task(server.watch())
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(run_query(config, stop)),
                group.create_task(run_collector(config, stop=stop)),
            ]
            if watch is not None:
                await asyncio.wait((watch, *parts), return_when=asyncio.FIRST_COMPLETED)
                if watch.done():
                    await watch
                watch.cancel()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
