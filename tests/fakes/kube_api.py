"""The part of the Kubernetes API that has to do with pods, in memory.

Lists, pages, watches with bookmarks and expiry, label selectors, versions, graceful deletion, bearer tokens.
`tests/cluster/test_pods_api.py` holds it to what the real API server does.
"""

import asyncio
import contextlib
import copy
import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.ports import free_port

Json = dict[str, Any]
Selector = Callable[[dict[str, str]], bool]
PODS = "/api/v1/namespaces/{namespace}/pods"


class FakeKubeApi:
    """Serves on a loopback port until `close`. `tokens`: those it knows, all of them with every right."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.port = free_port()
        self._pods: dict[tuple[str, str], Json] = {}
        self._history: list[tuple[int, Json | None, Json | None]] = []
        self._version, self._oldest = 1, 1
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Serve (again), with all that was there before `stop`."""
        app = web.Application(middlewares=[self._authenticate])
        app.router.add_get(PODS, self._get_all)
        app.router.add_post(PODS, self._create)
        app.router.add_get(PODS + "/{name}", self._get)
        app.router.add_patch(PODS + "/{name}", self._patch)
        app.router.add_patch(PODS + "/{name}/{part:status}", self._patch)
        app.router.add_delete(PODS + "/{name}", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        """Cut every connection and listen no more."""
        if self._runner is not None:
            for watch in self._watches:
                watch.cancel()
            await self._runner.cleanup()
            self._runner = None

    def forget(self) -> None:
        """Drop the history: a watch can only go on from now."""
        self._history.clear()
        self._oldest = self._version

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or token not in self.tokens:
            return _failure(401, "Unauthorized", "Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    async def _get_all(self, request: web.Request) -> web.StreamResponse:
        namespace, query = request.match_info["namespace"], request.query
        matches = _selector(query.get("labelSelector", ""))
        if query.get("watch") in ("true", "True", "1"):
            task = asyncio.current_task()
            assert task is not None
            self._watches.add(task)
            try:
                return await self._watch(request, namespace, matches)
            finally:
                self._watches.discard(task)
        if int(query.get("resourceVersion") or 0) > self._version:
            return _failure(504, "Timeout", "Too large resource version")
        names = sorted(
            name
            for (where, name), pod in self._pods.items()
            if where == namespace and matches(_labels(pod)) and name > query.get("continue", "")
        )
        limit = int(query.get("limit") or len(names) + 1)
        return web.json_response(
            {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": str(self._version),
                    **({"continue": names[limit - 1]} if len(names) > limit else {}),
                },
                "items": [self._pods[namespace, name] for name in names[:limit]],
            }
        )

    async def _watch(self, request: web.Request, namespace: str, matches: Selector) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(kind: str, item: Json) -> None:
            await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")

        if seen < self._oldest:
            await send("ERROR", _status(410, "Expired", f"too old resource version: {seen} ({self._oldest})"))
            return response
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", 1800))):
                while True:
                    for version, before, after in list(self._history):
                        if version > seen:
                            for event in _events(namespace, matches, version, before, after):
                                await send(*event)
                            seen = version
                    async with self._news:
                        while self._version == seen:
                            await self._news.wait()
        if request.query.get("allowWatchBookmarks") in ("true", "True", "1"):
            await send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self._version)}})
        return response

    async def _get(self, request: web.Request) -> web.Response:
        pod = self._pods.get(_key(request))
        return web.json_response(pod) if pod else _failure(404, "NotFound", "not found")

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        key = (request.match_info["namespace"], pod["metadata"]["name"])
        if key in self._pods:
            return _failure(409, "AlreadyExists", f'pods "{key[1]}" already exists')
        pod["metadata"] |= {"namespace": key[0], "uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        pod["status"] = {"phase": "Pending"}
        return web.json_response(await self._put(key, pod), status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        key = _key(request)
        if key not in self._pods:
            return _failure(404, "NotFound", "not found")
        patch = await request.json()
        # As in the real one, each of the two writes only its own part.
        part = {"status"} if "part" in request.match_info else {"metadata", "spec"}
        pod = _merged(self._pods[key], {name: value for name, value in patch.items() if name in part})
        return web.json_response(await self._put(key, pod))

    async def _delete(self, request: web.Request) -> web.Response:
        key = _key(request)
        if key not in self._pods:
            return _failure(404, "NotFound", "not found")
        grace = (await request.json()).get("gracePeriodSeconds") if request.can_read_body else None
        pod = copy.deepcopy(self._pods[key])
        pod["metadata"]["deletionTimestamp"] = _now()
        pod = await self._put(key, pod)
        if grace == 0 or not pod["spec"].get("nodeName"):  # no kubelet has to agree
            await self._put(key, None)
        return web.json_response(pod)

    async def _put(self, key: tuple[str, str], pod: Json | None) -> Json:
        before = self._pods.pop(key, None)
        self._version += 1
        if pod is not None:
            pod["metadata"]["resourceVersion"] = str(self._version)
            self._pods[key] = pod
        self._history.append((self._version, before, copy.deepcopy(pod)))
        async with self._news:
            self._news.notify_all()
        return pod or {}


def _events(
    namespace: str, matches: Selector, version: int, before: Json | None, after: Json | None
) -> list[tuple[str, Json]]:
    """What a watcher is told of a change: a pod that leaves the selector is DELETED for it, as it was."""
    was = before is not None and matches(_labels(before))
    is_now = after is not None and matches(_labels(after))
    if ((after or before) or {})["metadata"]["namespace"] != namespace or not (was or is_now):
        return []
    if after is not None and is_now:
        return [("MODIFIED" if was else "ADDED", after)]
    last = copy.deepcopy(before or {})
    last["metadata"]["resourceVersion"] = str(version)
    return [("DELETED", last)]


def _selector(text: str) -> Selector:
    """Of the kinds `key=value` and `key in (a,b)`, joined by commas."""
    wanted = []
    for key, one, several in re.findall(r"([^,=\s]+)(?:=([^,]*)| in \(([^)]*)\))", text):
        wanted.append((key, several.split(",") if several else [one]))
    return lambda labels: all(labels.get(key) in values for key, values in wanted)


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    merged = {key: value for key, value in base.items() if key not in patch}
    return merged | {k: _merged(base.get(k), v) for k, v in patch.items() if v is not None}


def _labels(pod: Json) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _failure(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_status(code, reason, message), status=code)
