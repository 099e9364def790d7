"""Keeps one table of pods current: list, then watch, and from the start again whenever that breaks."""

import asyncio
import random
from collections.abc import Callable

import msgspec

from collector.discovery.kubernetes.api import BROKEN, ApiError, ExpiredError, Pods, Watch
from collector.discovery.kubernetes.table import Table
from indexer import log

# A watch is renewed at least so often: a connection that died without a word is found out by then.
WATCH_SECONDS = 60.0
BACKOFF_FIRST = 0.1
BACKOFF_MAX = 5.0
# A watch that lived so long is no sign of trouble, however it ended.
GOOD_SECONDS = 1.0

logger = log.get(__name__)


class Feed:
    """One selector's pods. `changed` is called after every change of the table or of `error`.

    `error` tells why the table may be out of date: None while a watch is open or has only just ended.
    """

    def __init__(
        self, api: Pods, selector: str, table: Table, refresh: float, changed: Callable[[], None]
    ) -> None:
        self._api, self._selector, self._table, self._refresh = api, selector, table, refresh
        self._changed = changed
        self._version: str | None = None
        self._listed_at = float("-inf")
        self.error: str | None = None
        self.known = False
        """True from the first list, or the first failure to get it, on."""

    async def run(self) -> None:
        """Never ends by itself and raises nothing that may pass by itself."""
        now = asyncio.get_running_loop().time
        pause = BACKOFF_FIRST
        while True:
            started = now()
            try:
                if self._version is None or now() - self._listed_at >= self._refresh:
                    await self._list()
                await self._watch(self._listed_at + self._refresh - now())
            except ExpiredError as error:
                # Ordinary after a long silence; what was deleted meanwhile is not told any more.
                logger.info("listing pods anew", selector=self._selector, why=str(error))
                self._version = None
            except (ApiError, msgspec.MsgspecError, *BROKEN) as error:
                self._fail(self._advice(error))
            if now() - started >= GOOD_SECONDS and self.error is None:
                pause = BACKOFF_FIRST
                continue
            # Every collector loses the same API server at the same moment: they must not come back as one.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, BACKOFF_MAX)

    async def _list(self) -> None:
        try:
            pods, version = await self._api.list(self._selector, self._version)
        except ApiError as error:
            if error.status == 504:
                # The server is behind the version that we know, perhaps for good: its etcd was restored.
                self._version = None
            raise
        self._listed_at = asyncio.get_running_loop().time()
        self._table.replace(pods, version, fresh=self._version is None)
        # The watch goes on from where it was, for the deletions that the list can't tell.
        self._version = self._version or version
        self._well()

    async def _watch(self, seconds: float) -> None:
        assert self._version is not None
        async with self._api.watch(self._selector, self._version, min(seconds, WATCH_SECONDS)) as watch:
            if self.error is not None:
                self._well()
            try:
                await self._follow(watch)
            except BROKEN as error:
                # Not being able to come back would be an error; that a connection ends is none.
                logger.debug("watch of pods broke", selector=self._selector, why=_words(error))
            finally:
                self._version = watch.version or self._version

    async def _follow(self, watch: Watch) -> None:
        async for kind, pod in watch:
            self._table.apply(kind, pod)
            self._changed()

    def _well(self) -> None:
        if self.error is not None:
            logger.info("pods are in sight again", selector=self._selector)
        self.error, self.known = None, True
        self._changed()

    def _fail(self, message: str) -> None:
        if message != self.error:
            logger.warning("pods are out of sight", selector=self._selector, why=message)
        self.error, self.known = message, True
        self._changed()

    def _advice(self, error: Exception) -> str:
        if not isinstance(error, ApiError):
            return f"the API server can't be reached: {_words(error)}"
        if error.status == 401:
            return f"the API server does not know our token: {error}"
        if error.status == 403:
            role = f"a Role in namespace {self._api.namespace} with get, list and watch on pods"
            return f"{error}: bind {role} to this service account"
        return f"the API server answered {error.status}: {error}"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
