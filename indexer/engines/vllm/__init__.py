"""vLLM (and vllm-ascend): hash rule, event dialect and self-check."""

from indexer.engines.base import BlockKey, Engine
from indexer.engines.vllm.checker import VllmChecker
from indexer.engines.vllm.events import VllmDialect
from indexer.engines.vllm.hashing import VllmHashRule


def build(key: BlockKey) -> Engine:
    """The engine of `key`. Raises HashError."""
    rule = VllmHashRule(key.prefix_caching_hash_algo, key.python_hash_seed, key.dialect)
    return Engine("vllm", rule, VllmDialect(), lambda: VllmChecker(rule))
