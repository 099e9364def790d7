"""Fixtures: a real control plane, and pods on it or on the fake."""

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import NODE, Backend, Namespace
from tests.conftest import REQUIRED
from tests.fakes.kube_api import FakeKubeApi
from tests.proxy import Proxy


@pytest.fixture(scope="session")
def _plane() -> Iterator[ControlPlane]:
    if absent := binaries.missing():
        reason = f"no real control plane here: {', '.join(absent)} not built; run `make kube` (needs Go)"
        if "kube" in REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    plane = ControlPlane()
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


@pytest.fixture(scope="session")
def control_plane(_plane: ControlPlane) -> ControlPlane:
    """A whole control plane for a test process: API server, controllers, scheduler, one node played by kwok.

    `control_plane.kubeconfig` is an administrator's. Pods of Deployments become Ready at once, with an
    address that leads nowhere.
    """
    _plane.run_controllers()
    return _plane


class FakeBackend:
    """The fake, as a Backend."""

    def __init__(self) -> None:
        self.token = "letmein"
        self._api = FakeKubeApi(self.token)
        self.url, self.port, self.ca = self._api.url, self._api.port, None
        self.start, self.stop = self._api.start, self._api.stop

    async def prepare(self, namespace: str) -> None:
        """Nothing: any namespace is there."""

    async def forget(self) -> None:
        """See Backend."""
        self._api.forget()


class RealBackend:
    """The real API server, as a Backend."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.url, self.port, self.ca, self.token = plane.url, plane.port, plane.certificate, plane.token

    async def prepare(self, namespace: str) -> None:
        """A namespace with what pods need, and a node that nobody runs."""
        for path, name in (
            ("nodes", NODE),
            ("namespaces", namespace),
            (f"namespaces/{namespace}/serviceaccounts", "default"),
        ):
            try:
                self._plane.request("POST", f"/api/v1/{path}", {"metadata": {"name": name}})
            except urllib.error.HTTPError as error:
                if error.code != 409 or json.load(error)["reason"] != "AlreadyExists":
                    raise

    async def stop(self) -> None:
        """A crash."""
        await asyncio.to_thread(self._plane.kill_api)

    async def start(self) -> None:
        """After `stop`."""
        await asyncio.to_thread(self._plane.start_api)

    async def forget(self) -> None:
        """Compaction alone is not enough: the server remembers a while of its own."""
        await self.stop()
        await asyncio.to_thread(self._plane.compact)
        await self.start()


@pytest.fixture(params=["fake", "real"])
async def kube(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Namespace]:
    """A namespace of its own, on the fake API server and on the real one in turn."""
    backend: Backend
    if request.param == "fake":
        backend = FakeBackend()
        await backend.start()
    else:
        backend = RealBackend(request.getfixturevalue("_plane"))
    async with Proxy(backend.port).running() as link:
        namespace = Namespace(backend, link, tmp_path)
        await backend.prepare(namespace.name)
        yield namespace
    if request.param == "fake":
        await backend.stop()


@pytest.fixture
async def real_kube(_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Namespace]:
    """A namespace of its own on the real API server."""
    backend = RealBackend(_plane)
    async with Proxy(backend.port).running() as link:
        namespace = Namespace(backend, link, tmp_path)
        await backend.prepare(namespace.name)
        yield namespace
