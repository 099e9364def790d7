"""`cache-indexer`: the query side's commands and those of the write side."""

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from indexer import __version__
from indexer.cli import COMMANDS, Command, assemble
from indexer.errors import CacheIndexerError, ConfigError

SUMMARY = """The global KV-cache index that LLM routers ask where a prompt's prefix already lies.

See it work: cache-indexer demo

Index an engine: cache-indexer run --engine 10.0.0.7=tcp://10.0.0.7:5557

Look into it: cache-indexer stats
"""

WRITE_SIDE = {
    "run": Command("collector.cli.run", "Collect and answer queries in one process, until SIGTERM."),
    "collect": Command("collector.cli.collect", "Keep the index: follow engines and masters until SIGTERM."),
    "demo": Command("collector.cli.demo", "Recorded engines, a real index, a router's question."),
    "replay": Command("collector.cli.replay", "Play a capture as a living engine."),
}


def build() -> typer.Typer:
    """The whole command line."""
    order = ("run", "serve", "collect", "demo", "replay", "hash", "who", "stats", "verify")
    commands = {**COMMANDS, **WRITE_SIDE}
    app = assemble({name: commands[name] for name in order}, SUMMARY)

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        pass

    return app


def main() -> None:
    """Entry point. Expected errors are one line on stderr; status 2 for usage and configuration, else 1."""
    _open_closed_streams()
    try:
        sys.exit(typer.main.get_command(build()).main(prog_name="cache-indexer", standalone_mode=False))
    except TyperException as error:
        message = error.format_message()
        if message and (context := getattr(error, "ctx", None)):
            message = f"{message.rstrip('.')} (see {context.command_path} --help)"
        _end(message, error.exit_code)
    except ConfigError as error:
        _end(str(error), 2)
    except CacheIndexerError as error:
        _end(str(error) or type(error).__name__, 1)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        _end(str(error), 1)  # such as a full disk under our output


def _open_closed_streams() -> None:
    """Put the null device where a standard stream was closed (`>&-`): else its number, and with it what is
    printed, would go to the next file or socket."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order, each gets the lowest free number: its own
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cache-indexer {__version__}")
        raise typer.Exit


def _end(message: str, status: int) -> None:
    if message:  # empty: the help was shown, because there was nothing to do
        typer.echo(f"error: {message}", err=True)
    sys.exit(status)
