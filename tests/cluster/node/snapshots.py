"""Runs discovery and writes each snapshot as a line of JSON: `python -m ... KUBECONFIG NAMESPACE`.

The node's API server can only be reached inside of the node's namespaces, so that this has to run there.
"""

import asyncio
import sys

import msgspec

from collector.discovery.kubernetes import KubernetesSource
from indexer.config.pool import Discovery


async def main(kubeconfig: str, namespace: str) -> None:
    """Until it is ended."""
    discovery = Discovery(kubeconfig=kubeconfig, namespace=namespace)
    async for snapshot in KubernetesSource(discovery, "http").snapshots():
        print(msgspec.json.encode(snapshot).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
