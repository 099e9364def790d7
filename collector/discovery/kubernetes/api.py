"""The two requests that discovery makes: list pods, watch pods. `get`, `list`, `watch` on pods suffice."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import msgspec
from kubernetes_asyncio.client import ApiClient, CoreV1Api

from collector.discovery.kubernetes import wire

PAGE = 500
CONNECT_SECONDS = 5.0
LIST_SECONDS = 30.0
# How much later than asked for the server may end a watch before the connection counts as dead.
WATCH_SLACK_SECONDS = 5.0

# Everything that a connection may die of.
BROKEN = (aiohttp.ClientError, TimeoutError, ssl.SSLError, OSError)


class ApiError(Exception):
    """The API answered with a failure. `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ExpiredError(ApiError):
    """The version to go on from is too old: list anew."""


class Pods:
    """Pods of one namespace. Owns the client: `close` it."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self._core = CoreV1Api(client)
        self.namespace = namespace

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def list(self, selector: str, at_least: str | None) -> tuple[list[wire.Pod], str]:
        """All pods that match, and the version of that list.

        `at_least`: a version; the API server may then answer from its memory if that is no older, which
        spares etcd. None: the newest. Raises ApiError and what is in BROKEN.
        """
        found: list[wire.Pod] = []
        page = ""
        while True:
            query: dict[str, Any] = {"limit": PAGE}
            if page:
                query["_continue"] = page
            elif at_least is not None:
                query |= {"resource_version": at_least, "resource_version_match": "NotOlderThan"}
            timeout = aiohttp.ClientTimeout(total=LIST_SECONDS, sock_connect=CONNECT_SECONDS)
            async with await self._request(selector, timeout, query) as answer:
                pods = wire.pods.decode(await answer.read())
            found += pods.items or ()
            page = pods.metadata.continue_
            if not page:
                return found, pods.metadata.resource_version

    @asynccontextmanager
    async def watch(self, selector: str, version: str, seconds: float) -> AsyncIterator["Watch"]:
        """Events after `version`; the server ends it after `seconds`. Raises as `list`, and ExpiredError."""
        seconds = max(1, round(seconds))
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=seconds + WATCH_SLACK_SECONDS)
        query = {
            "watch": True,
            "allow_watch_bookmarks": True,
            "resource_version": version,
            "timeout_seconds": seconds,
        }
        async with await self._request(selector, timeout, query) as answer:
            yield Watch(answer)

    async def _request(
        self, selector: str, limits: aiohttp.ClientTimeout, query: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        raw: dict[str, Any] = {"_preload_content": False, "_request_timeout": limits}
        answer = cast(
            aiohttp.ClientResponse,
            await self._core.list_namespaced_pod(self.namespace, label_selector=selector, **raw, **query),
        )
        if answer.status != 200:
            async with answer:
                raise _error(answer.status, await answer.read())
        return answer


class Watch:
    """An open watch; iterate over its events as (type, pod). `version` is where another one may go on."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.version: str | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[str, wire.Pod]]:
        async for line in self._answer.content:
            event = wire.event.decode(line)
            if event.type == "ERROR":
                raise _error(0, event.object)
            pod = wire.pod.decode(event.object)
            self.version = pod.metadata.resource_version
            if event.type != "BOOKMARK":
                yield event.type, pod


def _error(status: int, body: bytes | msgspec.Raw) -> ApiError:
    try:
        told = wire.failure.decode(body)
    except msgspec.MsgspecError:  # not the API itself but something before it
        told = wire.Failure(message=f"HTTP {status}")
    status = told.code or status
    return (ExpiredError if status == 410 else ApiError)(status, told.message or told.reason)
