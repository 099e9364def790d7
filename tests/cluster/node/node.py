"""A whole one-node Kubernetes in namespaces of its own, with real containers. Needs root and Linux.

    python -m tests.cluster.node.node     # until Ctrl-C; prints how to get in

Everything, the API server too, runs inside a box of namespaces (see box.sh). Ending the box ends all of it,
and nothing of the machine's own network, mounts, cgroups or settings is changed. There is no way out of the
box and there is no registry: images come from files.
"""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import binaries, tools
from tests.cluster.node import files
from tests.cluster.node.files import ADDRESS

HERE = Path(__file__).parent
READY_SECONDS = 120.0
PROGRAMS = ("crun", "nft", "iptables", "conntrack", "ip", "unshare", "nsenter", "openssl", "buildah")


def lacking() -> list[str]:
    """What of the system is missing here."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not Path("/usr/lib/cni/bridge").exists():
        absent.append("/usr/lib/cni/bridge (containernetworking-plugins)")
    absent += [
        f"{name} (make kube-node)" for name in binaries.missing((*binaries.CONTROL_PLANE, *binaries.NODE))
    ]
    return absent if tools.installed() else [*absent, "helm, kubectl (make tools)"]


class Node:
    """One node and its control plane. `start` it, `close` it."""

    def __init__(self) -> None:
        self.run = Path(tempfile.mkdtemp(prefix="node-", dir=binaries.cache()))
        self._box: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self, images: Sequence[Path]) -> None:
        """Until the node is Ready and names resolve. `images`: OCI archives, the pause image among them."""
        files.write(self.run)
        self._open_box()
        self._spawn("containerd", f"--config={self.run}/conf/containerd.toml")
        self._spawn_etcd()
        self._spawn_api()
        self._wait("containerd", lambda: self._ok(self.ctr("version")))
        for image in images:
            self.load(image)
        self._wait("kube-apiserver", lambda: self._ok([*self._kubectl(), "get", "--raw=/readyz"]))
        self._spawn_controllers()
        self._spawn(
            "kubelet",
            f"--config={self.run}/conf/kubelet.yaml",
            f"--kubeconfig={self.run}/kubelet.kubeconfig",
            "--root-dir=/var/lib/kubelet",
            "--hostname-override=node-1",
            f"--node-ip={ADDRESS}",
        )
        self._spawn("kube-proxy", f"--config={self.run}/conf/kube-proxy.yaml", "--hostname-override=node-1")
        self.kubectl("apply", "-f", str(HERE / "conf" / "dns.yaml"))
        self._spawn("coredns", "-conf", f"{self.run}/conf/Corefile")
        ready = [*self._kubectl(), "wait", "--for=condition=Ready", "node/node-1", "--timeout=1s"]
        self._wait("kubelet", lambda: self._ok(ready))
        account = [*self._kubectl(), "get", "serviceaccount", "default"]
        self._wait("kube-controller-manager", lambda: self._ok(account))
        self._wait("coredns", lambda: self._ok(["curl", "-sf", "http://10.250.0.10:8181/ready"]))

    def load(self, image: Path) -> None:
        """Import an OCI archive, under the names that stand in it."""
        self.enter(*self.ctr("-n", "k8s.io", "images", "import", "--local", str(image)))

    def kubectl(self, *arguments: str) -> str:
        """kubectl as administrator. Raises subprocess.CalledProcessError."""
        return self.enter(*self._kubectl(), *arguments)

    def helm(self, *arguments: str) -> str:
        """helm as administrator. Raises subprocess.CalledProcessError."""
        return self.enter(str(tools.FOLDER / "helm"), f"--kubeconfig={self.run}/admin.kubeconfig", *arguments)

    def enter(self, *command: str) -> str:
        """Run a command inside; its standard output. Raises subprocess.CalledProcessError."""
        done = subprocess.run(self.inside(command), capture_output=True, text=True)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def log(self, name: str) -> str:
        """The end of what a program wrote."""
        return (self.run / f"{name}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End the box, and so everything in it."""
        if self._box is not None:
            self._box.kill()
            self._box.wait()
        shutil.rmtree(self.run, ignore_errors=True)

    def _open_box(self) -> None:
        for mount_point in ("/var/lib/kubelet", "/var/lib/cni"):
            Path(mount_point).mkdir(exist_ok=True)
        kinds = [f"--{kind}" for kind in ("net", "mount", "pid", "uts", "ipc", "cgroup")]
        with (self.run / "box.log").open("wb") as log:
            self._box = subprocess.Popen(
                ["unshare", *kinds, "--fork", "--kill-child", "bash", str(HERE / "box.sh"), str(self.run)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait("box", (self.run / "ready").exists)
        children = Path(f"/proc/{self._box.pid}/task/{self._box.pid}/children").read_text()
        self._pid = int(children.split()[0])

    def _spawn_etcd(self) -> None:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self._spawn(
            "etcd",
            f"--data-dir={self.run}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _spawn_api(self) -> None:
        pki = self.run / "pki"
        self._spawn(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={pki}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/front-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki}/front.crt",
            f"--proxy-client-key-file={pki}/front.key",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--token-auth-file={self.run}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-cluster-ip-range=10.96.0.0/16",
        )

    def _spawn_controllers(self) -> None:
        admin = f"{self.run}/admin.kubeconfig"
        common = [f"--{purpose}kubeconfig={admin}" for purpose in ("", "authentication-", "authorization-")]
        common += ["--leader-elect=false", "--bind-address=127.0.0.1", f"--cert-dir={self.run}/pki"]
        self._spawn(
            "kube-controller-manager",
            *common,
            f"--service-account-private-key-file={self.run}/pki/sa.key",
            f"--root-ca-file={self.run}/pki/ca.crt",
            "--use-service-account-credentials=true",
        )
        self._spawn("kube-scheduler", *common)

    def _kubectl(self) -> list[str]:
        return [str(tools.FOLDER / "kubectl"), f"--kubeconfig={self.run}/admin.kubeconfig"]

    def ctr(self, *arguments: str) -> list[str]:
        """Command line of containerd's client, to be run inside."""
        return [str(binaries.program("ctr")), "--address=/run/containerd/containerd.sock", *arguments]

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command inside."""
        kinds = [f"--{kind}" for kind in ("net", "mount", "pid", "uts", "ipc", "cgroup")]
        return ["nsenter", f"--target={self._pid}", *kinds, f"--wd={Path.cwd()}", "--", *command]

    def _spawn(self, name: str, *arguments: str) -> None:
        # containerd looks for its shim, and everything for its helpers, on the PATH.
        path = f"PATH={binaries.program('containerd').parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        with (self.run / f"{name}.log").open("wb") as log:
            subprocess.Popen(
                self.inside(["env", path, str(binaries.program(name)), *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ok(self, command: Sequence[str]) -> bool:
        return subprocess.run(self.inside(command), capture_output=True).returncode == 0

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self._box is not None
            if self._box.poll() is not None:
                raise RuntimeError(f"the box could not be made:\n{self.log('box')}")
            if ready():
                return
            time.sleep(0.1)
        raise RuntimeError(f"{name} was not ready in {READY_SECONDS:.0f} s:\n{self.log(name)}")


def main() -> None:
    """Run a node until interrupted, for a person to try things in."""
    from tests.cluster.node.images import pause

    node = Node()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            node.start([pause()])
            print(" ".join(node.inside([*node._kubectl(), "get", "pods", "-A"])), flush=True)
            signal.pause()
        finally:
            node.close()


if __name__ == "__main__":
    main()
