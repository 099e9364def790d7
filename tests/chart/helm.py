"""The real helm, and what it renders."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "cache-indexer"
VALUES = Path(__file__).parent / "values"
SETS = ("defaults", "external", "sentinel", "everything")
"""Named sets of values: none, and the files of `VALUES`."""

Object = dict[str, Any]


def program() -> Path | None:
    """The helm to use: the one of `make tools`, or the system's."""
    own = ROOT / ".tools" / "bin" / "helm"
    if own.is_file():
        return own
    found = shutil.which("helm")
    return Path(found) if found else None


def absent() -> str | None:
    """Why there is no helm here."""
    return None if program() else "helm is not here: `make tools` puts it into .tools/bin"


def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run helm; it may fail."""
    helm = program()
    assert helm is not None, absent()
    return subprocess.run([helm, *arguments], capture_output=True, text=True, env=env, timeout=100)


def render(*arguments: str | Path, chart: Path = CHART) -> str:
    """What `helm template` of release `kv` in namespace `inference` writes. AssertionError if it refuses."""
    done = run("template", "kv", chart, "--namespace", "inference", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(name: str) -> list[str | Path]:
    """The options for a named set of values."""
    return [] if name == "defaults" else ["--values", VALUES / f"{name}.yaml"]


def objects(manifest: str) -> list[Object]:
    """The objects in a manifest."""
    return [found for found in yaml.safe_load_all(manifest) if found]


def pods(manifest: str) -> dict[str, Object]:
    """Every pod spec in it, by `Kind/name`."""
    found = {}
    for o in objects(manifest):
        spec = o["spec"] if o["kind"] == "Pod" else o.get("spec", {}).get("template", {}).get("spec")
        if spec is not None:
            found[f"{o['kind']}/{o['metadata']['name']}"] = spec
    return found


def one(manifest: str, kind: str, name: str) -> Object:
    """The object of that kind and name."""
    (found,) = (o for o in objects(manifest) if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def config(manifest: str, release: str = "kv-cache-indexer") -> str:
    """The text of config.yaml."""
    text: str = one(manifest, "ConfigMap", release)["data"]["config.yaml"]
    return text


def without_chance(manifest: str) -> str:
    """The manifest with the passwords, new in each rendering, masked."""
    return re.sub(r'(-password: )"[A-Za-z0-9+/=]{56}"', r"\1(40 random characters)", manifest)
