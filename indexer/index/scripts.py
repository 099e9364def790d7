"""Loads the Lua scripts, calls them, and turns every failure into one of `indexer.errors`.

This is the only place that knows Redis's error replies.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from redis import exceptions as redis_errors

from indexer import errors

_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_READ_ONLY = frozenset({"lookup", "slots", "streams", "meta", "stats", "ready", "audit"})


class SlotsChangedError(errors.CacheIndexerError):
    """The slots that a lookup was built on are no longer current; never leaves `indexer.index`."""


_WORDS = {
    "FENCED": errors.FencedError,
    "LIFE": errors.LifeError,
    "GAP": errors.GapError,
    "SCHEMA": errors.SchemaError,
    "SLOTS": SlotsChangedError,
}
# Of a command inside a script; these two have no error code before them.
_MAY_NOT_IN_SCRIPT = ("ACL failure in script", "The user executing the script")
# Redis answers, but cannot serve now; the same call may succeed later or on another node.
_UNAVAILABLE = frozenset(
    ["LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF"]
)


def _folder() -> Path:
    """`lua/` as it lies in a wheel (indexer/lua) or in a checkout (beside indexer/)."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "lua", package.parent / "lua"):
        if (folder / "lookup.lua").is_file():
            return folder
    raise errors.CacheIndexerError(f"the Lua scripts are missing: no lua/ in or beside {package}")


@cache
def source(name: str) -> str:
    """The text of a script, with its includes in place."""
    folder = _folder()

    def lib(match: re.Match[str]) -> str:
        body = (folder / "lib" / f"{match[1]}.lua").read_text()
        return f"local {match[1]} = (function()\n{body}\nend)()"

    return _INCLUDE.sub(lib, (folder / f"{name}.lua").read_text())


@cache
def sha(name: str) -> str:
    """The SHA-1 by which Redis knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def translate(error: BaseException) -> Exception:
    """The error of this project that a client library's error stands for."""
    if isinstance(error, errors.CacheIndexerError):
        return error
    text = str(error) or type(error).__name__
    word, _, rest = text.partition(" ")
    if word in _WORDS:
        return _WORDS[word](rest)
    if word == "POLICY":
        return errors.ConfigError(
            f"Redis has maxmemory-policy {rest}: it would evict the index. Set maxmemory-policy noeviction"
        )
    if isinstance(error, redis_errors.OutOfMemoryError) or word == "OOM":
        return errors.IndexFullError("Redis is out of memory: raise maxmemory")
    refused = isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError)
    if refused or text.startswith(_MAY_NOT_IN_SCRIPT):
        return errors.IndexUnavailableError(f"Redis refuses this user or its redis.password: {text}")
    if isinstance(error, redis_errors.MovedError | redis_errors.AskError):
        return errors.IndexUnavailableError(
            f"Redis is a cluster: write redis.url as redis+cluster://... (it says: {text})"
        )
    if isinstance(error, redis_errors.InvalidResponse):
        return errors.IndexUnavailableError(f"what answers at redis.url is no Redis: {text}")
    if isinstance(error, TimeoutError | redis_errors.TimeoutError):
        return errors.IndexUnavailableError("Redis did not answer in time")
    unavailable = (
        OSError
        | redis_errors.ConnectionError
        | redis_errors.BusyLoadingError
        | redis_errors.ReadOnlyError
        | redis_errors.ClusterDownError
        | redis_errors.TryAgainError
        | redis_errors.RedisClusterException
    )
    if isinstance(error, unavailable) or word in _UNAVAILABLE:
        return errors.IndexUnavailableError(f"Redis is not available: {text}")
    return errors.CacheIndexerError(f"Redis refused a command: {text}")


async def bounded(awaitable: Awaitable[Any], seconds: float) -> Any:
    """Await a call to Redis for at most `seconds`; raises only errors of this project.

    The call gets a task of its own, which is left behind when time is over or the caller is cancelled:
    redis-py sends within `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes at the
    wrong moment, so a call can't be relied upon to end because it was told to.
    """
    call = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait((call,), timeout=seconds)
        if call.done():
            return call.result()
    except Exception as error:
        raise translate(error) from error
    finally:
        if not call.done():
            call.add_done_callback(_forget)
            call.cancel()
    raise errors.IndexUnavailableError("Redis did not answer in time")


def _forget(call: "asyncio.Future[Any]") -> None:
    # Nobody waits for its error any more; a look at it keeps asyncio from reporting it.
    if not call.cancelled():
        call.exception()


async def read_again(read: Callable[[], Awaitable[Any]]) -> Any:
    """Read, a second time when the connection broke: it may have been dead since Redis restarted."""
    try:
        return await read()
    except redis_errors.ConnectionError:
        return await read()


class Scripts:
    """Calls scripts on one client. Read-only ones go by EVALSHA_RO where the server has it (Redis >= 7)."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._has_read_only = True

    def command(self, name: str, prefix: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The command that calls a script by its SHA."""
        verb = "EVALSHA_RO" if name in _READ_ONLY and self._has_read_only else "EVALSHA"
        return (verb, sha(name), 1, prefix, *args)

    async def call(self, name: str, prefix: str, *args: Any) -> Any:
        """Call a script; raises the client library's errors, see `bounded` and `translate`."""

        async def send() -> Any:
            return await self.client.execute_command(*self.command(name, prefix, args))

        try:
            return await (read_again(send) if name in _READ_ONLY else send())
        except redis_errors.ResponseError as error:
            return await self.repair(error, name, prefix, args)

    async def repair(self, error: Exception, name: str, prefix: str, args: tuple[Any, ...]) -> Any:
        """Call again where the server did not run the script at all, else raise `error`.

        Scripts are not replicated, and may be flushed at any time, so a node that does not know one is
        normal: EVAL brings the text along, to the right node of a cluster too.
        """
        if isinstance(error, redis_errors.NoScriptError) or str(error).startswith("NOSCRIPT"):
            verb = "EVAL_RO" if name in _READ_ONLY and self._has_read_only else "EVAL"
            return await self.client.execute_command(verb, source(name), 1, prefix, *args)
        if self._has_read_only and name in _READ_ONLY and "unknown command" in str(error).lower():
            self._has_read_only = False
            return await self.call(name, prefix, *args)
        raise error
