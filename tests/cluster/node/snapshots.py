"""Runs discovery and writes each snapshot as a line of JSON: `python -m ... KUBECONFIG NAMESPACE`.

The node's API server can only be reached inside of the node's namespaces, so that this has to run there.
"""

import asyncio
import sys

import msgspec

from collector.discovery.kubernetes import KubernetesSource
from indexer.config.pool import Discovery


async def main(kubeconfig: str, namespace: str) -> None:
    """Until standard input ends: a signal would only reach the program that leads into the namespaces."""
    discovery = Discovery(kubeconfig=kubeconfig, namespace=namespace)

    async def write() -> None:
        async for snapshot in KubernetesSource(discovery, "http").snapshots():
            print(msgspec.json.encode(snapshot).decode(), flush=True)

    writing = asyncio.create_task(write())
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([writing, reading], return_when=asyncio.FIRST_COMPLETED)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
