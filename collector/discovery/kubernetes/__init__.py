"""Discovery through the Kubernetes API. Needs the extra `kubernetes`."""

from collector.discovery.kubernetes.source import KubernetesSource

__all__ = ["KubernetesSource"]
