"""Ways to the API server."""

from pathlib import Path

import pytest

from collector.discovery.kubernetes import access
from collector.discovery.kubernetes.api import ApiError
from indexer.errors import ConfigError
from tests.cluster.kube import Namespace, engine_pod


async def test_the_environment_names_a_kubeconfig(kube: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", kube.kubeconfig())
    pods = await access.connect("", "")
    assert pods.namespace == kube.name
    await kube.run(engine_pod("a"), "10.0.0.1")
    assert len((await pods.list("", None))[0]) == 1
    await pods.close()
    elsewhere = await access.connect("", "another")
    await elsewhere.close()
    assert elsewhere.namespace == "another"


async def test_a_service_account_is_read_anew(
    real_kube: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes replaces the token in the file and lets the old one expire."""
    from kubernetes_asyncio.config import incluster_config

    kube = real_kube
    token, namespace = tmp_path / "token", tmp_path / "namespace"
    token.write_text("expired")
    namespace.write_text(f"{kube.name}\n")
    assert kube.backend.ca is not None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube.backend.port))
    loader = incluster_config.InClusterConfigLoader
    monkeypatch.setattr(
        access,
        "load_incluster_config",
        lambda client_configuration: loader(str(token), str(kube.backend.ca)).load_and_set(
            client_configuration
        ),
    )
    monkeypatch.setattr(access, "NAMESPACE_FILE", namespace)
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", incluster_config.datetime.timedelta(0))
    pods = await access.connect("", "")
    assert pods.namespace == kube.name
    with pytest.raises(ApiError, match="Unauthorized"):
        await pods.list("", None)
    token.write_text(kube.backend.token)
    assert await pods.list("", None)
    await pods.close()


async def test_no_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    missing = str(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"none\.yaml can't be used \(.*\)\. Name .*kubeconfig.*--engine"):
        await access.connect(missing, "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        await access.connect("", "")
