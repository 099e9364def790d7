"""`cache-indexer replay`: a capture plays a living engine."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import zmq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collector.capture import CaptureError, load
from collector.replayer import Replayer
from indexer.errors import CacheIndexerError
from indexer.runtime import run, stop_on_signals

FileArgument = Annotated[Path, typer.Argument(help="A capture (JSON lines, gzipped or not).")]
HostOption = Annotated[str, typer.Option(help="Address to bind; 0.0.0.0 for every interface.")]
PortOption = Annotated[
    int, typer.Option(min=1, max=65535, help="Events port of rank 0; rank n has this port + n.")
]
ReplayPortOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Opens replay sockets: this port for rank 0, + n for rank n."),
]
BufferOption = Annotated[int, typer.Option(min=1, help="Batches that a replay socket keeps.")]
SpeedOption = Annotated[
    float, typer.Option(min=0, help="1: recorded pauses, 10: a tenth of them, 0: no pauses.")
]
WaitOption = Annotated[bool, typer.Option(help="Begin when every rank has a subscriber.")]
TimesOption = Annotated[
    int, typer.Option(min=1, help="How often to play it; the engine restarts in between, empty.")
]
StayOption = Annotated[bool, typer.Option("--stay", help="Stay up after the end, until SIGTERM.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def replay(
        file: FileArgument,
        host: HostOption = "127.0.0.1",
        port: PortOption = 5557,
        replay_port: ReplayPortOption = None,
        buffer_steps: BufferOption = 10_000,
        speed: SpeedOption = 1.0,
        wait: WaitOption = True,
        times: TimesOption = 1,
        stay: StayOption = False,
    ) -> None:
        """Play a capture as a living engine: its recorded frames, over real ZMQ sockets.

        In one terminal: cache-indexer replay FILE --stay

        In another: cache-indexer run --engine 10.0.0.7=tcp://127.0.0.1:5557
        """
        capture = load(file)
        ranks = range(capture.ranks)
        if replay_port is not None and abs(replay_port - port) < capture.ranks:
            raise CaptureError(
                f"--replay-port {replay_port}: must be {capture.ranks} or more away from --port {port}, "
                "since each rank takes a port of both"
            )
        replayer = Replayer(
            capture,
            host=host,
            ports=tuple(port + rank for rank in ranks),
            buffer_steps=buffer_steps if replay_port is not None else 0,
            replay_ports=tuple((replay_port or 0) + rank for rank in ranks),
        )
        run(_play(replayer, wait=wait, speed=speed, times=times, stay=stay))


async def _play(replayer: Replayer, wait: bool, speed: float, times: int, stay: bool) -> None:
    """Until the end, or until a signal."""
    stop = stop_on_signals()
    try:
        await replayer.start()
    except zmq.ZMQError as error:
        raise CacheIndexerError(f"cannot bind the engine's sockets: {error}") from error
    try:
        playing = asyncio.create_task(_show(replayer, wait=wait, speed=speed, times=times))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if playing.done():
            await playing
            if stay:
                await stopping
        else:
            playing.cancel()
    finally:
        await replayer.close()


async def _show(replayer: Replayer, wait: bool, speed: float, times: int) -> None:
    """Play with a progress bar on a terminal, else with a line for what happens."""
    console = Console(stderr=True)
    capture = replayer.capture
    for rank, sockets in enumerate(replayer.target("").ranks):
        replay = f", replay {sockets.replay}" if sockets.replay else ""
        console.print(f"rank {rank}: events {sockets.events}{replay}", highlight=False)
    columns = (TextColumn(capture.name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for life in range(times):
            if life:
                await replayer.restart()
            if wait:
                console.print("waiting for a subscriber of each rank")
                await replayer.subscribed()
            task = progress.add_task(f"life {life + 1}", total=len(capture.steps))
            await replayer.play(speed, on_step=partial(progress.advance, task))
    frames = sum(1 for _ in capture.frames)
    again = f", {times} times" if times > 1 else ""
    console.print(f"played {len(capture.steps)} steps, {frames} batches{again}", highlight=False)
