"""What a node's programs read: settings, certificates, tokens."""

import secrets
import string
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ADDRESS = "10.250.0.1"
# Token owners: component -> (user, group).
USERS = {
    "admin": ("admin", "system:masters"),
    "kubelet": ("system:node:node-1", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", "system:authenticated"),
    "coredns": ("coredns", "system:authenticated"),
}
SUFFIXES = ("", ".default", ".default.svc", ".default.svc.cluster.local")
API_NAMES = (
    *(f"DNS:kubernetes{suffix}" for suffix in SUFFIXES),
    *(f"IP:{address}" for address in ("127.0.0.1", "10.96.0.1", ADDRESS)),
)


def write(run: Path) -> None:
    """All of it, below the node's directory."""
    conf = HERE / "conf"
    for file in (path for path in conf.rglob("*") if path.is_file() and path.name != "kubeconfig.yaml"):
        target = run / "conf" / file.relative_to(conf)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(string.Template(file.read_text()).substitute(run=run, here=HERE))
    kubeconfig = string.Template((conf / "kubeconfig.yaml").read_text())
    lines = []
    for name, (user, group) in USERS.items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{group}"\n')
        text = kubeconfig.substitute(run=run, address=ADDRESS, token=token)
        (run / f"{name}.kubeconfig").write_text(text)
    (run / "tokens.csv").write_text("".join(lines))
    (run / "pki").mkdir()
    _certify(run / "pki")


def _certify(pki: Path) -> None:
    def openssl(command: str) -> None:
        subprocess.run(["openssl", *command.split()], cwd=pki, check=True, capture_output=True)

    def issue(authority: str, name: str, subject: str, extension: str) -> None:
        (pki / f"{name}.ext").write_text(extension)
        openssl(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj {subject}")
        signer = f"-CA {authority}.crt -CAkey {authority}.key -CAcreateserial"
        openssl(f"x509 -req -in {name}.csr {signer} -out {name}.crt -days 365 -extfile {name}.ext")

    for authority in ("ca", "front-ca"):
        key = f"-newkey rsa:2048 -nodes -keyout {authority}.key"
        openssl(f"req -x509 {key} -out {authority}.crt -subj /CN={authority}")
    issue("ca", "apiserver", "/CN=kube-apiserver", f"subjectAltName={','.join(API_NAMES)}")
    issue("ca", "kubelet-client", "/O=system:masters/CN=apiserver", "extendedKeyUsage=clientAuth")
    issue("front-ca", "front", "/CN=front-proxy-client", "extendedKeyUsage=clientAuth")
    openssl("genrsa -out sa.key 2048")
    openssl("rsa -in sa.key -pubout -out sa.pub")
