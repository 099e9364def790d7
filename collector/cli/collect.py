"""`cache-indexer collect`: the write side."""

import typer

from collector.app import run_collector
from collector.cli.common import EngineOption, listening, load_with
from indexer import log
from indexer.cli.common import ConfigOption, RedisOption
from indexer.config import Config, parse_redis_url
from indexer.errors import ConfigError
from indexer.runtime import run, stop_on_signals


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def collect(
        config: ConfigOption = None, engine: EngineOption = None, redis_url: RedisOption = None
    ) -> None:
        """Keep the index: follow engines and Mooncake masters until SIGTERM.

        Any number may run; one of them leads and writes, the others are ready to take over.
        """
        settings = load_with(config, engine, redis_url)
        if parse_redis_url(settings.redis.url).kind == "embedded":
            raise ConfigError(
                "redis.url: embedded is for `cache-indexer run`; name a Redis that all can reach"
            )
        log.configure(settings.log.level)
        run(_collect(settings))


async def _collect(config: Config) -> None:
    collector = run_collector(config, stop=stop_on_signals())
    await listening("collector.addr", config.collector.addr, collector)
