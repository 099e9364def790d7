"""Finding engines and Mooncake masters: a source for each way to do it, chosen by `discovery.source`."""

from collector.discovery.base import EngineTarget, Gone, Master, Rank, Snapshot, Source
from indexer.config import Discovery
from indexer.errors import ConfigError

__all__ = ["EngineTarget", "Gone", "Master", "Rank", "Snapshot", "Source", "source"]


def source(cfg: Discovery, scheme: str = "http") -> Source:
    """The source that `cfg` names; raises ConfigError when it can't be had here.

    `scheme` (`ingest.l3.scheme`) is for masters of which only the address is discovered.
    """
    # Imported where chosen: a Kubernetes client is not needed for a list in a file.
    if cfg.source == "static":
        from collector.discovery.static import StaticSource

        return StaticSource(cfg.static)
    if cfg.source == "file":
        from collector.discovery.file import FileSource

        return FileSource(cfg.file, cfg.refresh_interval)
    try:
        from collector.discovery.kubernetes import KubernetesSource
    except ImportError as error:
        raise ConfigError(
            f'discovery.source "kubernetes" needs an extra ({error.name} is missing): '
            "pip install 'cache-indexer[kubernetes]', or choose static, file, or give --engine"
        ) from None
    return KubernetesSource(cfg, scheme)
