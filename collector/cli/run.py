"""`cache-indexer run`: everything in one go."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from collector.app import run_collector
from collector.cli.common import EngineOption, first, listening, load_with, wants_embedded
from collector.embedded import Embedded, default_port
from indexer import log
from indexer.api.workers import run_query
from indexer.cli.common import AddrOption, ConfigOption, RedisOption
from indexer.config import Config
from indexer.errors import ConfigError
from indexer.runtime import run as run_loop
from indexer.runtime import stop_on_signals

DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where the embedded Valkey keeps the index over restarts."),
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
        settings = load_with(config, engine, redis_url, http_addr)
        if data_dir is not None and not wants_embedded(settings):
            raise ConfigError(
                f"--data-dir {data_dir}: is for the embedded Valkey, but redis.url names another"
            )
        log.configure(settings.log.level)
        try:
            run_loop(_run(settings, data_dir))
        except ExceptionGroup as errors:
            raise first(errors) from errors


async def _run(config: Config, data_dir: Path | None) -> None:
    if not wants_embedded(config):
        await _run_both(config)
        return
    async with await Embedded.start(data_dir, default_port()) as server, asyncio.TaskGroup() as group:
        _log.info("embedded Valkey started", url=server.url, data_dir=str(data_dir or ""))
        watch = group.create_task(server.watch())
        redis = structs.replace(config.redis, url=server.url)
        await _run_both(structs.replace(config, redis=redis))
        watch.cancel()


async def _run_both(config: Config) -> None:
    """Until a signal, or until one of the two fails: then the other ends, too."""
    stop = stop_on_signals()
    async with asyncio.TaskGroup() as group:
        group.create_task(listening("http.addr", config.http.addr, run_query(config, stop)))
        collector = run_collector(config, stop=stop)
        group.create_task(listening("collector.addr", config.collector.addr, collector))
