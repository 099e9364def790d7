"""A namespace of pods on either API server, real or fake, and what a kubelet would do in it."""

import uuid
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml

from tests.proxy import Proxy

Json = dict[str, Any]
NODE = "without-kubelet"
STARTED = "2026-01-01T00:00:00Z"


class Refused(Exception):
    """The API server's answer was a failure."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Backend(Protocol):
    """An API server that can be ended, started again and made forget what happened."""

    url: str
    port: int
    ca: Path | None
    token: str

    async def prepare(self, namespace: str) -> None: ...
    async def stop(self) -> None: ...
    async def start(self) -> None: ...
    async def forget(self) -> None:
        """Afterwards no watch can go on from before. The server may be started anew for it."""


class Namespace:
    """A namespace and its pods. The test talks to the server itself; `link` is the reader's way to it."""

    def __init__(self, backend: Backend, link: Proxy, directory: Path) -> None:
        self.backend, self.link = backend, link
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.directory = directory

    def kubeconfig(self, token: str | None = None) -> str:
        """Path of a kubeconfig that leads through the link."""
        cluster: Json = {"server": self.backend.url.replace(str(self.backend.port), str(self.link.port))}
        if self.backend.ca is not None:
            cluster["certificate-authority"] = str(self.backend.ca)
        context = {"cluster": "c", "user": "u", "namespace": self.name}
        path = self.directory / f"{uuid.uuid4().hex}.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": token or self.backend.token}}],
                    "contexts": [{"name": "x", "context": context}],
                    "current-context": "x",
                }
            )
        )
        return str(path)

    async def request(self, method: str, path: str = "", body: Json | None = None) -> Json:
        """One request below `/api/v1/namespaces/<name>/pods`. Raises Refused."""
        return await self.call(method, f"/api/v1/namespaces/{self.name}/pods{path}", body)

    async def call(self, method: str, path: str, body: Json | None = None, token: str = "") -> Json:
        """One request, past the link. Raises Refused."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token or self.backend.token}", "Content-Type": kind}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, self.backend.url + path, json=body, headers=headers, ssl=tls(self.backend.ca)
            ) as answer,
        ):
            told: Json = await answer.json()
            if answer.status >= 300:
                raise Refused(answer.status, told.get("message", ""))
            return told

    async def run(self, pod: Json, ip: str, restarts: int = 0, started: str = STARTED) -> str:
        """Create a pod and let it run, as scheduler and kubelet would. Answers its UID."""
        created = await self.request("POST", "", pod)
        await self.status(pod["metadata"]["name"], running(pod, ip, restarts, started))
        return str(created["metadata"]["uid"])

    async def status(self, name: str, status: Json) -> None:
        """Write what a kubelet would report."""
        await self.request("PATCH", f"/{name}/status", {"status": status})

    async def label(self, name: str, **labels: str | None) -> None:
        """Change labels; None takes one away."""
        await self.request("PATCH", f"/{name}", {"metadata": {"labels": labels}})

    async def delete(self, name: str) -> None:
        """Ask for a deletion; the pod stays, terminating, until it is `buried`."""
        await self.request("DELETE", f"/{name}")

    async def bury(self, name: str) -> None:
        """Delete for good, as a kubelet does once the containers have ended."""
        await self.request("DELETE", f"/{name}", {"gracePeriodSeconds": 0})


def tls(ca: Path | None) -> Any:
    """As aiohttp wants it."""
    import ssl

    return True if ca is None else ssl.create_default_context(cafile=str(ca))


def engine_pod(name: str, *, labels: Json | None = None, ports: Json | None = None, **spec: Any) -> Json:
    """An engine pod as the users' guide has it; `ports`: name -> number."""
    ports = {"http": 8000, "zmq-pub": 5557} if ports is None else ports
    return {
        "metadata": {
            "name": name,
            "labels": {"openfuyao.com/engine": "vllm", "openfuyao.com/pdRole": "aggregate"} | (labels or {}),
        },
        "spec": {
            "nodeName": NODE,
            "containers": [
                {"name": "proxy", "image": "proxy"},
                {
                    "name": "engine",
                    "image": "vllm",
                    "ports": [{"name": n, "containerPort": p} for n, p in ports.items()],
                },
            ],
            **spec,
        },
    }


def running(pod: Json, ip: str, restarts: int = 0, started: str = STARTED) -> Json:
    """The status of a pod whose containers run; `restarts` and `started` are its engine container's."""
    statuses = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": restarts if container["name"] == "engine" else 0,
            "state": {"running": {"startedAt": started if container["name"] == "engine" else STARTED}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "containerStatuses": statuses}
