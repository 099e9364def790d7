"""Container images without a registry: built by buildah, kept as OCI archives in the cache."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.chart import helm
from tests.cluster import binaries

HERE = Path(__file__).parent
# pip and apt must reach their indexes as they do here.
SETTINGS = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def pause() -> Path:
    """The image that holds a pod's namespaces; it also serves as a container that does nothing."""
    archive = binaries.cache() / "images" / "pause.tar"
    if not archive.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            context = Path(scratch)
            for name in ("main.go", "Containerfile"):
                shutil.copy(HERE / "pause" / name, context)
            (context / "go.mod").write_text("module pause\n\ngo 1.26\n")
            command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", "pause", "."]
            subprocess.run(command, cwd=context, env=binaries.environment(), check=True)
            build(context, "localhost/pause:1", archive)
    return archive


def ours(name: str) -> Path:
    """The project's image, of the code as it is now."""
    archive = binaries.cache() / "images" / "cache-indexer.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([helm.ROOT / "image" / "build.sh", name, archive], check=True)
    return archive


def on_debian(folder: str, name: str) -> Path:
    """The image of `folder`'s Containerfile, which builds on the base of `ours`: build that first."""
    archive = binaries.cache() / "images" / f"{name.partition('/')[2].replace(':', '-')}.tar"
    if not archive.is_file():
        buildah = ["buildah", "--storage-driver=overlay"]
        options = ["--isolation=chroot", "--network=host", "--pull-never", f"--tag={name}"]
        options += [f"--volume={path}:{path}:ro" for path in SETTINGS if Path(path).exists()]
        unfinished = archive.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        subprocess.run([*buildah, "bud", *options, str(HERE / folder)], check=True)
        subprocess.run([*buildah, "push", "--quiet", name, f"oci-archive:{unfinished}:{name}"], check=True)
        unfinished.rename(archive)
    return archive


def build(context: Path, name: str, archive: Path) -> None:
    """Build a Containerfile's image and write it to an OCI archive that carries its name."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    storage = binaries.cache() / "buildah"
    buildah = ["buildah", f"--root={storage}/root", f"--runroot={storage}/run", "--storage-driver=vfs"]
    options = ["--isolation=chroot", "--network=host", "--pull-never", f"--tag={name}"]
    unfinished = archive.with_suffix(".part")
    for arguments in (
        ["bud", *options, str(context)],
        ["push", "--quiet", name, f"oci-archive:{unfinished}:{name}"],
    ):
        # Its mounts stay out of our namespace.
        subprocess.run(["unshare", "--mount", *buildah, *arguments], check=True, stdout=subprocess.DEVNULL)
    unfinished.rename(archive)
