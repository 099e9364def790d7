"""The fixture `node`: one real node for the whole run."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.node import images
from tests.cluster.node.node import Node, lacking
from tests.conftest import REQUIRED


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A running node. `node.kubectl`, `node.helm`, `node.load(image)`, `node.enter(command)`."""
    reason = ""
    if os.geteuid() != 0:
        reason = "a real node needs root"
    elif absent := lacking():
        reason = f"a real node lacks {', '.join(absent)}; run `make kube-node tools`"
    if reason and "node" in REQUIRED:
        pytest.fail(reason)
    elif reason:
        pytest.skip(reason)
    node = Node()
    try:
        node.start([images.pause()])
        yield node
    finally:
        node.close()
