"""`cache-indexer hash`: the block hashes of token ids, for people and, line by line, for scripts."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from indexer.blocks import block_of_digest
from indexer.engines.base import MmItem, Prompt
from indexer.engines.vllm.hashing import VllmHashRule
from indexer.errors import HashError


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of `hash -`."""

    token_ids: list[int]
    block_size: int
    algo: str = "sha256_cbor"
    seed: str | None = "0"
    dialect: str = "auto"
    cache_salt: str | None = None
    lora_name: str | None = None
    lora_path: str | None = None
    mm: tuple[MmItem, ...] = ()
    none_hash: str | None = None


class Hashes(Struct, frozen=True):
    """The answer to one line: 16 hex digits and the full digest of each block."""

    block_hashes: list[str]
    full: list[str]


class Refusal(Struct, frozen=True):
    """The answer to a line that cannot be hashed."""

    error: str


_question = msgspec.json.Decoder(Question)
_encode = msgspec.json.Encoder().encode


def answer(question: Question) -> Hashes:
    """The hashes that `question` asks for. Raises HashError."""
    rule = _rule(question.algo, question.seed, question.dialect, question.none_hash)
    prompt = Prompt(
        question.token_ids,
        question.block_size,
        question.cache_salt,
        question.lora_name,
        question.lora_path,
        question.mm,
    )
    digests = rule.digests(prompt)
    return Hashes([block_of_digest(digest) for digest in digests], [digest.hex() for digest in digests])


@lru_cache(maxsize=64)
def _rule(algo: str, seed: str | None, dialect: str, none_hash: str | None) -> VllmHashRule:
    if none_hash is None:
        return VllmHashRule(algo, seed, dialect)
    if not re.fullmatch(r"([0-9a-fA-F]{2})*", none_hash):
        raise HashError("none_hash", f"{none_hash!r} is not a hex string of whole bytes")
    return VllmHashRule(algo, seed, dialect, bytes.fromhex(none_hash))


def answer_line(line: bytes) -> Hashes | Refusal:
    """The answer to one JSON line; never raises for what the line holds."""
    try:
        return answer(_question.decode(line))
    except (HashError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Refusal(str(error))


def stream(lines: Iterable[bytes], out: BinaryIO) -> bool:
    """Answer each line at once, in order; whether all of them could be hashed."""
    good = True
    for line in lines:
        reply = answer_line(line)
        good = good and isinstance(reply, Hashes)
        out.write(_encode(reply) + b"\n")
        out.flush()
    return good


def hash_command(
    tokens: Annotated[
        list[str] | None,
        typer.Argument(help="Token ids, or - to read one JSON object a line from stdin.", show_default=False),
    ] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens a block.", show_default=False)] = None,
    tokens_file: Annotated[
        Path | None,
        typer.Option(
            "--tokens", help="File of token ids: a JSON array, or separated by blanks.", show_default=False
        ),
    ] = None,
    algo: Annotated[str, typer.Option(help="The engine's --prefix-caching-hash-algo.")] = "sha256_cbor",
    seed: Annotated[str, typer.Option(help="The engine's PYTHONHASHSEED.")] = "0",
    unset_seed: Annotated[
        bool, typer.Option("--unset-seed", help="PYTHONHASHSEED is unset there (vLLM >= 0.29).")
    ] = False,
    dialect: Annotated[str, typer.Option(help="Engine version such as 0.18.0; auto: the newest.")] = "auto",
    cache_salt: Annotated[
        str | None, typer.Option(help="The request's cache_salt.", show_default=False)
    ] = None,
    lora_name: Annotated[str | None, typer.Option(help="The adapter's name.", show_default=False)] = None,
    lora_path: Annotated[
        str | None, typer.Option(help="Where the engine loaded it from (vLLM >= 0.31).", show_default=False)
    ] = None,
    none_hash: Annotated[
        str | None, typer.Option(help="Hex of the engine's NONE_HASH, instead of a seed.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, as for a line of -.")] = False,
) -> None:
    """Block hashes of token ids, as the engine computes them.

    With - every line of stdin is an object with token_ids and block_size, and optionally algo, seed (null: it
    is unset), dialect, cache_salt, lora_name, lora_path, mm (a list of {identifier, offset, length}) and
    none_hash; options do not apply. A line that cannot be hashed is answered {"error": ...}, and the exit
    status is 1.
    """
    if tokens == ["-"]:
        if not stream(sys.stdin.buffer, sys.stdout.buffer):
            raise typer.Exit(1)
        return
    if tokens is None and tokens_file is None:
        raise typer.BadParameter("give token ids, --tokens FILE, or - for JSON lines")
    if block_size is None:
        raise typer.BadParameter("the engine's block size is needed", param_hint="--block-size")
    question = Question(
        _token_ids(tokens or [], tokens_file),
        block_size,
        algo,
        None if unset_seed else seed,
        dialect,
        cache_salt,
        lora_name,
        lora_path,
        none_hash=none_hash,
    )
    try:
        reply = answer(question)
    except HashError as error:
        raise typer.BadParameter(str(error)) from None
    console = Console()
    if json or not console.is_terminal:
        typer.echo(_encode(reply))
    else:
        console.print(_table(reply, block_size))


def _token_ids(arguments: list[str], file: Path | None) -> list[int]:
    texts = arguments
    if file is not None:
        if arguments:
            raise typer.BadParameter("token ids and --tokens exclude each other")
        try:
            content = file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"cannot read {file}: {error}", param_hint="--tokens") from None
        texts = re.sub(r"[\[\],]", " ", content).split()
    for text in texts:
        if not re.fullmatch(r"[0-9]{1,20}", text):
            raise typer.BadParameter(f"{text!r} is not a token id")
    return [int(text) for text in texts]


def _table(hashes: Hashes, block_size: int) -> Table:
    table = Table("block", "tokens", "hash", "full digest")
    for index, (block, full) in enumerate(zip(hashes.block_hashes, hashes.full, strict=True)):
        start = index * block_size
        table.add_row(str(index), f"{start}-{start + block_size - 1}", block, full)
    return table


def register(app: typer.Typer) -> None:
    """Add `hash` to the command line."""
    app.command("hash")(hash_command)
