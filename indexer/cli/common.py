"""What all commands share: options, the configuration, and errors as one line."""

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console

from indexer.config import Config, load
from indexer.errors import CacheIndexerError, ConfigError

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Configuration file [default: /etc/cache-indexer/config.yaml]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of tables.")]


def load_config(path: Path | None) -> Config:
    """The configuration of file, environment and defaults; a wrong one ends the program with status 2."""
    try:
        return load(path, os.environ)
    except ConfigError as error:
        fail(str(error), 2)


def fail(message: str, code: int = 1) -> NoReturn:
    """End the program with one line on stderr."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def fail_with(error: CacheIndexerError) -> NoReturn:
    """End the program because of `error`."""
    fail(str(error) or type(error).__name__)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def console() -> Console:
    """Where tables go; as wide as they need when nobody looks, so that a pipe gets whole lines."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)
