"""Concurrent reading script calls of one process share round trips.

A call that finds the way free is sent at once. Calls that come while others are on their way go together in
the next batch, so a busy process sends few big writes instead of many small ones, and none waits for company.
"""

import asyncio
from typing import Any

from indexer.index.scripts import Scripts, bounded, read_again, translate

_IN_FLIGHT = 2
"""Batches on their way at once: Redis works on one while the replies of the other are read."""

_Call = tuple[str, tuple[Any, ...], "asyncio.Future[Any]"]


class Pipeline:
    """Calls of read-only scripts under one key prefix. A call's failure and time-out are its own."""

    def __init__(self, scripts: Scripts, prefix: str, timeout: float) -> None:
        self._scripts = scripts
        self._prefix = prefix
        self._timeout = timeout
        self._on_the_way = 0
        self._waiting: list[_Call] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, name: str, *args: Any) -> Any:
        """The script's reply; raises only errors of this project, within the time-out."""
        if self._on_the_way < _IN_FLIGHT:
            self._on_the_way += 1
            try:
                return await bounded(self._scripts.call(name, self._prefix, *args), self._timeout)
            finally:
                self._on_the_way -= 1
                self._next()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, args, future))
        return await bounded(future, self._timeout)

    def _next(self) -> None:
        """Send what waits, if the way is free. Callers that gave up have a done future."""
        batch = [call for call in self._waiting if not call[2].done()]
        self._waiting.clear()
        if not batch:
            return
        self._on_the_way += 1
        task = asyncio.create_task(self._send(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: list[_Call]) -> None:
        async def send() -> Any:
            pipe = self._scripts.client.pipeline(transaction=False)
            for name, args, _ in batch:
                pipe.execute_command(*self._scripts.command(name, self._prefix, args))
            return await pipe.execute(raise_on_error=False)

        try:
            replies = await bounded(read_again(send), self._timeout)
        except Exception as error:
            replies = [error] * len(batch)
        finally:
            self._on_the_way -= 1
            self._next()
        refused = []
        for call, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception):
                refused.append(self._repair(call, reply))
            elif not call[2].done():
                call[2].set_result(reply)
        await asyncio.gather(*refused)

    async def _repair(self, call: _Call, error: Exception) -> None:
        name, args, future = call
        try:
            reply = await bounded(self._scripts.repair(error, name, self._prefix, args), self._timeout)
        except Exception as final:
            if not future.done():
                future.set_exception(translate(final))
        else:
            if not future.done():
                future.set_result(reply)
