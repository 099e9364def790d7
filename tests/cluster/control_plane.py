"""A real Kubernetes control plane on free loopback ports, as child processes of the test run.

    python -m tests.cluster.control_plane     # until Ctrl-C; prints the kubeconfig

etcd and kube-apiserver are enough for tests of discovery; `run_controllers` adds what a Helm release needs:
kube-controller-manager, kube-scheduler, and kwok, which plays a node and the life of the pods on it.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import binaries
from tests.ports import free_port

READY_SECONDS = 60.0
NODE = "node-1"


class ControlPlane:
    """One cluster. `start` it, `close` it; the API server may be killed and started again in between."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ci-kube-"))
        self.kubeconfig = self.directory / "kubeconfig"
        self.port = free_port()
        self._etcd_port = free_port()
        self.token = secrets.token_hex(16)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        """What the API server's certificate is to be checked against."""
        return self.directory / "pki" / "apiserver.crt"

    def start(self) -> None:
        """etcd and the API server, until it is ready."""
        pki = self.directory / "pki"
        pki.mkdir()
        for command in (
            ["openssl", "genrsa", "-out", "sa.key", "2048"],
            ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            subprocess.run(command, cwd=pki, check=True, capture_output=True)
        (pki / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        self._spawn(
            "etcd",
            "--data-dir=etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self.start_api()
        self.kubeconfig.write_text(self.kubeconfig_for(self.token))

    def start_api(self) -> None:
        """The API server alone, after `kill_api`: same address, same data."""
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            # A loopback address can't be advertised to pods; nothing here runs in a pod.
            "--endpoint-reconciler-type=none",
            "--cert-dir=pki",
            "--service-account-key-file=pki/sa.pub",
            "--service-account-signing-key-file=pki/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--token-auth-file=pki/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
        )
        self._wait("kube-apiserver", lambda: self.request("GET", "/readyz") == b"ok")

    def run_controllers(self) -> None:
        """Controllers, scheduler, kwok and one ready node: Deployments get running pods. Idempotent."""
        if "kwok" in self._children:
            return
        common = [
            *(f"--{purpose}kubeconfig=kubeconfig" for purpose in ("", "authentication-", "authorization-")),
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--cert-dir=pki",
        ]
        self._spawn(
            "kube-controller-manager",
            *common,
            f"--secure-port={free_port()}",
            "--service-account-private-key-file=pki/sa.key",
            # No kubelet renews the node's lease, so nothing may judge it by that.
            "--controllers=*,-node-lifecycle-controller",
        )
        self._spawn("kube-scheduler", *common, f"--secure-port={free_port()}")
        self._spawn(
            "kwok",
            "--kubeconfig=kubeconfig",
            f"--config={binaries.stages()}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--enable-crds=",
        )
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        }
        self.request("POST", "/api/v1/nodes", node)
        self._wait("kwok", self._node_ready)
        # The taint of a new node is lifted by the controller that is off.
        self.request("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
        self._wait(
            "kube-controller-manager",
            lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"),
        )

    def _node_ready(self) -> bool:
        status = json.loads(self.request("GET", f"/api/v1/nodes/{NODE}"))["status"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))

    def kill_api(self) -> None:
        """End the API server as a crash does."""
        self._end("kube-apiserver", signal.SIGKILL)

    def compact(self) -> None:
        """Make etcd forget every revision but the newest: old watches can't go on from where they were."""
        etcd = f"http://127.0.0.1:{self._etcd_port}/v3/kv/"

        def call(method: str, body: dict[str, Any]) -> dict[str, Any]:
            with urllib.request.urlopen(etcd + method, json.dumps(body).encode(), timeout=10) as answer:
                told: dict[str, Any] = json.load(answer)
                return told

        revision = call("range", {"key": "AA=="})["header"]["revision"]
        call("compaction", {"revision": revision, "physical": True})

    def kubeconfig_for(self, token: str, namespace: str = "default", server: str | None = None) -> str:
        """Text of a kubeconfig for a bearer token; `server` when it goes through a proxy."""
        cluster = {"server": server or self.url, "certificate-authority": str(self.certificate)}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": token}}],
                "contexts": [
                    {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
                ],
                "current-context": "test",
            }
        )

    def request(self, method: str, path: str, body: Any = None, *, content_type: str | None = None) -> bytes:
        """One request to the API as administrator. Raises urllib.error.HTTPError and OSError."""
        kind = content_type or ("application/merge-patch+json" if method == "PATCH" else "application/json")
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": kind},
            method=method,
        )
        context = ssl.create_default_context(cafile=str(self.certificate))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=10) as answer:
            return bytes(answer.read())

    def exists(self, path: str) -> bool:
        """Whether there is an object at that path."""
        try:
            self.request("GET", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def log(self, name: str) -> str:
        """The end of what a program wrote."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End every process, clients first, and remove the directory."""
        for name in reversed(list(self._children)):
            self._end(name, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                [binaries.program(name), *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "NO_PROXY": "127.0.0.1,localhost"},
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if (code := self._children[name].poll()) is not None:
                raise RuntimeError(f"{name} ended with status {code}:\n{self.log(name)}")
            # Not listening yet, no certificate yet, or 403 and 404 until its own objects are there.
            with contextlib.suppress(OSError):
                if ready():
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{name} was not ready in {READY_SECONDS:.0f} s:\n{self.log(name)}")

    def _end(self, name: str, how: signal.Signals) -> None:
        child = self._children.pop(name)
        child.send_signal(how)
        child.wait()


def main() -> None:
    """Run a cluster until interrupted, for a person to try things in."""
    plane = ControlPlane()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plane.start()
        plane.run_controllers()
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        plane.close()


if __name__ == "__main__":
    main()
