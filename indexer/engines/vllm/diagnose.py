"""Why an engine's hashes differ from ours: the closest other configuration that yields them.

One block is hashed under every algorithm, dialect and usual seed, nearest to the configured ones first; then
under finer block sizes. 64 equal bits leave no doubt.
"""

from collections.abc import Sequence

from msgspec import Struct

from indexer.engines.vllm.algorithms import NAMES, Algorithm, algorithm, as_ids
from indexer.engines.vllm.extra_keys import Extra, Form
from indexer.engines.vllm.hashing import DEFAULT_SEED, VllmHashRule
from indexer.errors import HashError

USUAL_SEEDS = ("0", None, "1", "42", "123", "1234", "2024", "2025", "", "random")
"""PYTHONHASHSEED values worth a try; None: unset, since vLLM 0.29."""

_FINER = (2, 3, 4, 8, 16, 32, 64)


class Guess(Struct, frozen=True):
    """A configuration that an engine may have; `distance` counts what differs from the configured one."""

    algorithm: Algorithm
    form: Form
    seed: str | None
    none_hash: bytes
    distance: int


class Puzzle(Struct, frozen=True):
    """One block that an engine hashed: what went in, as far as it is told, and what came out."""

    parent: bytes | None
    """Full digest of the block before; None for a prompt's first block."""
    token_ids: Sequence[int]
    keys: dict[Form, Extra]
    """Its extra key in each form that can be told."""
    block: str
    """The low 64 bits of its hash."""


class Diagnosis:
    """Explains puzzles for one configured rule."""

    def __init__(self, rule: VllmHashRule) -> None:
        self._rule = rule
        self._guesses = sorted(_guesses(rule), key=lambda guess: guess.distance)

    def explain(self, puzzle: Puzzle) -> Guess | None:
        """The nearest configuration that solves the puzzle, maybe the configured one (distance 0)."""
        ids = as_ids(puzzle.token_ids)
        for guess in self._guesses:
            if guess.form not in puzzle.keys or (puzzle.parent is not None and guess.seed != self._rule.seed):
                continue
            parent = guess.none_hash if puzzle.parent is None else puzzle.parent
            digest = guess.algorithm.chain(parent, ids, len(ids), [puzzle.keys[guess.form]])[0]
            if digest[-8:].hex() == puzzle.block:
                return guess
        return None

    def finer_block_size(self, puzzle: Puzzle) -> int | None:
        """The smaller block size at which the configured rule solves a puzzle without extra keys."""
        parent = self._rule.none_hash if puzzle.parent is None else puzzle.parent
        ids = as_ids(puzzle.token_ids)
        if any(key is not None for key in puzzle.keys.values()):
            return None
        for parts in _FINER:
            if len(ids) % parts == 0:
                size = len(ids) // parts
                if self._rule.algorithm.chain(parent, ids, size, None)[-1][-8:].hex() == puzzle.block:
                    return size
        return None

    def cause(self, guess: Guess) -> str:
        """What differs between a guess and the configuration, for people."""
        rule = self._rule
        told = [
            ("algorithm: engine hashes with", guess.algorithm.name, rule.algorithm.name),
            ("seed: engine hashes follow PYTHONHASHSEED", named(guess.seed), named(rule.seed)),
        ]
        if guess.form not in rule.forms:
            told.append(("dialect: engine hashes extra keys as", guess.form.value, rule.forms[0].value))
        return "; ".join(
            f"{what} {theirs}, configured is {ours}" for what, theirs, ours in told if theirs != ours
        )


def named(seed: str | None) -> str:
    """A seed for people."""
    return "unset" if seed is None else f'"{seed}"'


def _guesses(rule: VllmHashRule) -> list[Guess]:
    guesses = []
    for name in NAMES:
        try:
            algo = algorithm(name)
        except HashError:  # its package is not installed
            continue
        for seed in dict.fromkeys((rule.seed, *USUAL_SEEDS)):
            if seed == rule.seed and name == rule.algorithm.name:
                none_hash = rule.none_hash
            elif seed is None and not algo.cryptographic:
                continue
            else:
                none_hash = algo.none_hash(DEFAULT_SEED if seed is None else seed)
            for form in Form:
                distance = (name != rule.algorithm.name) + (form not in rule.forms) + (seed != rule.seed)
                guesses.append(Guess(algo, form, seed, none_hash, distance))
    return guesses
