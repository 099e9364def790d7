"""Builds the real Kubernetes control plane from source, once, into a cache outside the tree.

    python tests/cluster/binaries.py            # what the tests need: etcd, the control plane, kwok
    python tests/cluster/binaries.py node       # also what a real node needs

Each program lies in `<cache>/<project>-<version>/`, so that a step is skipped when its file is there and a
new version is built beside the old one. The cache is `$KVI_KUBE_CACHE` or `~/.cache/cache-indexer/kube`.
Standard library only: it runs before anything is installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The control plane's own go.mod asks for at least this; an older `go` would try to fetch a newer one.
GO = (1, 26)


@dataclass(frozen=True)
class Project:
    """A Go module with the programs to build from it (package path -> file name)."""

    module: str
    version: str
    programs: dict[str, str]
    # The version of modules that lie in the project's own repository, where its go.mod does not say it.
    siblings: str = ""
    linker: str = ""
    tags: str = ""
    # A main package of ours that is built from the project's packages, as the only program.
    main: str = ""

    @property
    def folder(self) -> Path:
        """Where its programs lie."""
        return cache() / f"{self.module.split('/')[1]}-{self.version}"


def _kubernetes(*programs: str) -> Project:
    version = ("gitVersion=v1.37.2", "gitMajor=1", "gitMinor=37", "gitTreeState=clean")
    return Project(
        "k8s.io/kubernetes",
        "v1.37.2",
        {f"./cmd/{name}": name for name in programs},
        siblings="v0.37.2",
        linker=" ".join(f"-X k8s.io/component-base/version.{part}" for part in version),
    )


KWOK = Project("sigs.k8s.io/kwok", "v0.8.0", {"./cmd/kwok": "kwok"})
CONTROL_PLANE = (
    Project("go.etcd.io/etcd/server/v3", "v3.6.16", {".": "etcd"}),
    KWOK,
    _kubernetes("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
)
_COREDNS = """package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
"""
NODE = (
    _kubernetes("kubelet", "kube-proxy"),
    Project(
        "github.com/containerd/containerd/v2",
        "v2.3.7",
        {f"./cmd/{name}": name for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        linker="-X github.com/containerd/containerd/v2/version.Version=v2.3.7",
        tags="no_btrfs,no_zfs,no_devmapper",
    ),
    Project(
        "github.com/coredns/coredns",
        "v1.15.0",
        {".": "coredns"},
        # All of its plugins take three times as long to build, for clients of a dozen clouds.
        main=_COREDNS,
    ),
)


class CannotBuildError(Exception):
    """Says what is missing and what to do about it."""


def cache() -> Path:
    return Path(os.environ.get("KVI_KUBE_CACHE") or "~/.cache/cache-indexer/kube").expanduser()


def missing(projects: tuple[Project, ...] = CONTROL_PLANE) -> list[str]:
    """Names of the programs that are not built yet."""
    return [name for p in projects for name in p.programs.values() if not (p.folder / name).is_file()]


def program(name: str) -> Path:
    """Where a built program lies."""
    return next(p.folder / name for p in (*CONTROL_PLANE, *NODE) if name in p.programs.values())


def source(project: Project) -> Path:
    """The project's source in Go's module cache, downloaded when it is not there."""
    return Path(_download(project.module, project.version)["Dir"])


def stages() -> Path:
    """What kwok does to nodes and pods: the rules that come with it, in one file."""
    return KWOK.folder / "stages.yaml"


def build(projects: tuple[Project, ...] = CONTROL_PLANE) -> None:
    """Build what is missing. Minutes, and a few GB of Go's build cache, the first time."""
    if missing(projects):
        _check_go()
    for project in projects:
        if missing((project,)):
            _build(project)
    if KWOK in projects and not stages().is_file():
        _collect_stages()


def _build(project: Project) -> None:
    started = time.monotonic()
    origin = source(project)
    project.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=project.folder) as scratch:
        # The module cache is read-only, hence a go.mod of our own beside it. A published module can't see
        # its siblings at ../x or ./staging/x: they are pointed at their published versions.
        modfile = Path(scratch, "go.mod")
        for name in ("go.mod", "go.sum"):
            Path(scratch, name).write_bytes((origin / name).read_bytes())
        local = re.findall(r"^\s*(?:replace )?(\S+) => \.", modfile.read_text(), re.MULTILINE)
        edits = [
            f"-replace={name}={name}@{project.siblings}" if project.siblings else f"-dropreplace={name}"
            for name in local
        ]
        if edits:
            subprocess.run(["go", "mod", "edit", *edits, modfile], check=True)
        command = ["go", "build", "-mod=mod", f"-modfile={modfile}", "-trimpath"]
        command += [f"-ldflags=-s -w {project.linker}", f"-tags={project.tags}"]
        if project.main:
            requirement = f"-require={project.module}@{project.version}"
            subprocess.run(["go", "mod", "edit", "-module=main", requirement, modfile], check=True)
            Path(scratch, "main.go").write_text(project.main)
            origin = Path(scratch)
        for package, name in project.programs.items():
            if (project.folder / name).is_file():
                continue
            built = Path(scratch, name)
            subprocess.run([*command, "-o", str(built), package], cwd=origin, env=environment(), check=True)
            built.rename(project.folder / name)
            print(f"built {name} {project.version}, {time.monotonic() - started:.0f} s", flush=True)


def _collect_stages() -> None:
    folder = source(KWOK) / "kustomize" / "stage"
    files = sorted(f for kind in ("node", "pod") for f in (folder / kind / "fast").glob("*-*.yaml"))
    stages().write_text("\n---\n".join(file.read_text() for file in files))


def environment() -> dict[str, str]:
    """For `go`: its own version, our settings."""
    fixed = {"GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    return os.environ | fixed


def _download(module: str, version: str) -> dict[str, str]:
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotBuildError(f"{module} {version} did not come from GOPROXY: {done.stdout}{done.stderr}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _check_go() -> None:
    need = ".".join(map(str, GO))
    if shutil.which("go") is None:
        raise CannotBuildError(f"building Kubernetes needs Go >= {need}, and there is no `go` on the PATH")
    told = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if tuple(int(n) for n in re.findall(r"\d+", told)[:2]) < GO:
        raise CannotBuildError(f"building Kubernetes needs Go >= {need}; `go` is {told}")


if __name__ == "__main__":
    try:
        build((*CONTROL_PLANE, *NODE) if sys.argv[1:] == ["node"] else CONTROL_PLANE)
    except CannotBuildError as error:
        sys.exit(str(error))
    print(f"ready in {cache()}")
