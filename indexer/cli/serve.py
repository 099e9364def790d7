"""`cache-indexer serve`: the query service."""

import typer

from indexer import log
from indexer.api.workers import run_query
from indexer.cli.common import AddrOption, ConfigOption, RedisOption, fail, fail_with, load_config
from indexer.config import Config
from indexer.errors import CacheIndexerError
from indexer.runtime import run, stop_on_signals


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def serve(
        config: ConfigOption = None, redis_url: RedisOption = None, http_addr: AddrOption = None
    ) -> None:
        """Answer queries over HTTP until SIGTERM."""
        settings = load_config(config, redis_url, http_addr)
        log.configure(settings.log.level)
        try:
            run(_serve(settings))
        except CacheIndexerError as error:
            fail_with(error)
        except OSError as error:
            fail(f"cannot listen on http.addr = {settings.http.addr}: {error.strerror or error}")


async def _serve(config: Config) -> None:
    await run_query(config, stop_on_signals())
