"""Options that `run` and `collect` share, and how they become configuration."""

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any

import typer

from collector.discovery.static import parse_engine
from indexer.cli.common import given
from indexer.config import Config, load, parse_redis_url
from indexer.errors import CacheIndexerError

EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar="IP=URL[,replay=URL]",
        help="An engine: its address as routers name it, the ZMQ URL of its KV events and of its replay "
        "socket, if any; a further URL is the next data-parallel rank. May be repeated. "
        "Takes the place of the configured discovery. "
        "Example: --engine 10.0.0.7=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558",
        show_default=False,
    ),
]


def load_with(
    config: Path | None, engines: list[str] | None, redis_url: str | None, http_addr: str | None = None
) -> Config:
    """The configuration with options on top. Raises ConfigError."""
    overrides: dict[str, Any] = dict(given(redis_url, http_addr))
    if engines:
        overrides |= {
            "discovery.source": "static",
            "discovery.file": "",
            "discovery.static": {"engines": [parse_engine(text) for text in engines]},
        }
    return load(config, os.environ, overrides)


def wants_embedded(config: Config) -> bool:
    """Whether the index shall lie in the embedded Valkey: asked for, or nothing else was named."""
    return not config.redis.url_given or parse_redis_url(config.redis.url).kind == "embedded"


async def listening(key: str, addr: str, server: Awaitable[None]) -> None:
    """Run `server`; when it can't listen, the error names the key that says where."""
    try:
        await server
    except OSError as error:
        raise CacheIndexerError(f"cannot listen on {key} = {addr}: {error.strerror or error}") from error


def first(errors: ExceptionGroup[Exception]) -> Exception:
    """The failure that ended all the rest."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
