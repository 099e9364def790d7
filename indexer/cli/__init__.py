"""The command line, assembled from modules that each have a `register(app)` function.

A command's module is imported only when that command runs: `--help` needs no Redis client, no HTTP server
and no numpy, and answers at once.
"""

import os
import signal
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup


class Command(NamedTuple):
    """A command before it is loaded: where it lives, and its line in the overview. `serves`: till SIGTERM."""

    module: str
    summary: str
    serves: bool = False


COMMANDS = {
    "serve": Command("indexer.cli.serve", "Answer queries over HTTP until SIGTERM.", True),
    "hash": Command("indexer.cli.hash", "Compute block hashes of token ids."),
    "who": Command("indexer.cli.who", "Show who holds a block, or a prompt's prefix."),
    "stats": Command("indexer.cli.stats", "Show instances, blocks, streams and who leads."),
    "verify": Command("indexer.cli.verify", "Check that the index agrees with itself."),
}
"""The query side's commands."""


def assemble(commands: Mapping[str, Command], summary: str) -> typer.Typer:
    """An app with `commands`, in order; `summary` heads its help."""

    class Group(TyperGroup):
        """Swaps the stand-in of the command that is about to run for the real one."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] in commands:
                if commands[args[0]].serves:
                    _end_while_starting()
                self.commands[args[0]] = _load(args[0], commands[args[0]].module)
            return super().resolve_command(ctx, args)

    app = typer.Typer(
        cls=Group, help=summary, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    for name, command in commands.items():
        app.command(name, help=command.summary)(_stand_in)
    return app


def _end_while_starting() -> None:
    """Until `stop_on_signals` is called, SIGTERM ends the process with success: nothing has begun yet.

    Imports take a while, and a container's first process would not even notice a signal without a handler.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def _load(name: str, module: str) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    import_module(module).register(app)
    command = typer.main.get_command(app)
    command.name = name
    return command


def _stand_in() -> None:
    """Never runs: `Group.resolve_command` puts the real command in its place."""
