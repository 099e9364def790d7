"""How a process of this project runs its event loop and learns that it shall end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a uvloop event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets. A second one changes nothing: what ends has its own deadline."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_sigterm(*_: object) -> None:
        # The interpreter takes its time to end after the loop, and drops any other handler early on.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    signal.signal(signal.SIGTERM, on_sigterm)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    return stop
