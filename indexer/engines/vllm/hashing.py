"""vLLM's prefix-cache block hash, bit for bit: HASH((parent, tokens, extra keys)) along the chain."""

from collections.abc import Sequence

from indexer.engines.base import Prompt
from indexer.engines.vllm.algorithms import Algorithm, algorithm, as_ids
from indexer.engines.vllm.extra_keys import Extra, Form, Version, extras, forms
from indexer.errors import HashError

DEFAULT_SEED = "vllm-none-hash"
"""What vLLM >= 0.29 hashes for sha256 algorithms when PYTHONHASHSEED is unset."""


class VllmHashRule:
    """The hash rule of vLLM engines of one configuration."""

    def __init__(
        self, algo: str, seed: str | None, dialect: str = "auto", none_hash: bytes | None = None
    ) -> None:
        """`seed` is the raw PYTHONHASHSEED, None when unset; `none_hash`, of any length, overrides it.

        Raises HashError: unknown algorithm or dialect, missing package, or a seed that is random.
        """
        self.algorithm: Algorithm = algorithm(algo)
        version = None if dialect == "auto" else Version.parse(dialect)
        self.forms: tuple[Form, ...] = forms(version)
        self.seed = seed
        self.none_hash: bytes = none_hash if none_hash is not None else self._seeded(seed, version)

    def _seeded(self, seed: str | None, version: Version | None) -> bytes:
        if seed is None:
            if not self.algorithm.cryptographic:
                raise HashError(
                    "seed",
                    f"unset is random in every engine process with {self.algorithm.name}: "
                    "set PYTHONHASHSEED there and here",
                )
            if version is not None and version < (0, 29):
                raise HashError(
                    "seed",
                    "unset is random in every engine process before vLLM 0.29: "
                    "set PYTHONHASHSEED there and here",
                )
            seed = DEFAULT_SEED
        return self.algorithm.none_hash(seed)

    def chains(self, prompt: Prompt) -> list[str]:
        """See HashRule. Without a LoRA path, `auto` asks only the forms that hash none."""
        _check(prompt)
        keys: list[Sequence[Extra] | None] = []
        refused: HashError | None = None
        for form in self.forms:
            try:
                key = extras(form, prompt)
            except HashError as error:
                refused = refused or error
                continue
            if key not in keys:
                keys.append(key)
        if not keys and refused:
            raise refused
        ids = as_ids(prompt.token_ids)
        size = prompt.block_size
        runs = (self.algorithm.chain(self.none_hash, ids, size, key) for key in keys)
        return [b"".join([digest[-8:] for digest in run]).hex() for run in runs]

    def digests(self, prompt: Prompt) -> list[bytes]:
        """See HashRule."""
        _check(prompt)
        ids = as_ids(prompt.token_ids)
        key = extras(self.forms[0], prompt)
        return self.algorithm.chain(self.none_hash, ids, prompt.block_size, key)


def _check(prompt: Prompt) -> None:
    if prompt.block_size < 1:
        raise HashError("block_size", f"{prompt.block_size} is not at least 1")
    for item in prompt.mm:
        if item.offset < 0 or item.length < 1:
            raise HashError("mm", f"{item.identifier!r} needs offset >= 0 and length >= 1")
