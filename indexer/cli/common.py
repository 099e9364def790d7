"""What all commands share: options, the configuration, and errors as one line."""

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console

from indexer.config import Config, load
from indexer.errors import CacheIndexerError, ConfigError, IndexUnavailableError

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file.", show_default="/etc/cache-indexer/config.yaml"),
]
RedisOption = Annotated[
    str | None, typer.Option("--redis-url", metavar="URL", help="Where the index lies (redis.url).")
]
AddrOption = Annotated[
    str | None,
    typer.Option("--http-addr", metavar="[HOST]:PORT", help="Where queries are answered (http.addr)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of tables.")]


def load_config(path: Path | None, redis_url: str | None = None, http_addr: str | None = None) -> Config:
    """The configuration of file, environment and options; a wrong one ends the program with status 2."""
    try:
        return load(path, os.environ, given(redis_url, http_addr))
    except ConfigError as error:
        fail(str(error), 2)


def given(redis_url: str | None = None, http_addr: str | None = None) -> dict[str, str]:
    """Options as configuration; those that are None were not given."""
    overrides: dict[str, str] = {}
    if redis_url is not None:
        # Whoever names one Redis means it for reading, too.
        overrides |= {"redis.url": redis_url, "redis.readUrl": ""}
    if http_addr is not None:
        overrides["http.addr"] = http_addr
    return overrides


def fail(message: str, code: int = 1) -> NoReturn:
    """End the program with one line on stderr."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def fail_with(error: CacheIndexerError) -> NoReturn:
    """End the program because of `error`."""
    message = str(error) or type(error).__name__
    if isinstance(error, IndexUnavailableError):
        message = (
            f"{message.rstrip('.')}; the index is looked for at redis.url: "
            "--redis-url, --config or CACHE_INDEXER_REDIS_URL name another"
        )
    fail(message)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def console() -> Console:
    """Where tables go; as wide as they need when nobody looks, so that a pipe gets whole lines."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)
