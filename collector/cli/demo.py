"""`cache-indexer demo`: see it work, without an engine and without an answer to any question."""

from typing import Annotated

import typer

from collector.cli.common import first
from collector.demo import Score, demonstrate
from indexer import log
from indexer.errors import CacheIndexerError
from indexer.runtime import run, stop_on_signals

StayOption = Annotated[bool, typer.Option("--stay", help="Keep all of it running at the end, until Ctrl-C.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(stay: StayOption = False) -> None:
        """Play recorded engines into a real index and compare each answer with what the engine reused.

        Ends by itself in under a minute; status 0 only if all answers are equal.
        """
        log.configure("error")
        try:
            score = run(_demo(stay))
        except ExceptionGroup as errors:
            raise first(errors) from errors
        if not score.all_equal:
            raise CacheIndexerError(f"{score.asked - score.equal} of {score.asked} answers are wrong")


async def _demo(stay: bool) -> Score:
    return await demonstrate(stop_on_signals() if stay else None)
