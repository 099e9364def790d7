"""How to reach the API server: as a pod of the cluster, or with a kubeconfig."""

import os
from pathlib import Path

from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME

from collector.discovery.kubernetes.api import Pods
from indexer.errors import ConfigError

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def connect(kubeconfig: str, namespace: str) -> Pods:
    """The pods of `namespace`. Nothing is sent yet.

    A given `kubeconfig` wins, then the pod's own service account (its token is read again every minute), then
    the file that KUBECONFIG names, then `~/.kube/config`. An empty namespace is the service account's, or the
    one of the kubeconfig's context. Raises ConfigError when there is no way in.
    """
    configuration = Configuration()
    if not kubeconfig and os.environ.get(SERVICE_HOST_ENV_NAME):
        own = _service_account(configuration)
    else:
        own = await _kubeconfig(kubeconfig, configuration)
    return Pods(ApiClient(configuration), namespace or own or "default")


def _service_account(configuration: Configuration) -> str:
    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else ""
    except (ConfigException, OSError) as error:
        raise ConfigError(
            f"discovery.source \"kubernetes\": the pod's service account can't be used ({error}): "
            "its pod needs automountServiceAccountToken: true"
        ) from None


async def _kubeconfig(path: str, configuration: Configuration) -> str:
    path = path or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        loader = await load_kube_config(path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError) as error:
        raise ConfigError(
            f'discovery.source "kubernetes": outside of a cluster it needs a kubeconfig, and {path} '
            f"can't be used ({error}). Name one by discovery.kubeconfig or KUBECONFIG, "
            'let discovery.source be "static" or "file", or give --engine'
        ) from None
    context = loader.current_context or {}
    return str(context.get("context", {}).get("namespace") or "")
