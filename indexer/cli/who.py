"""`cache-indexer who`: which instances hold a block, or a prompt's prefix."""

import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from indexer import blocks
from indexer.api.decode import decode_question
from indexer.api.errors import BadRequestError
from indexer.api.lookup import lay_out
from indexer.api.messages import InstanceMatch, LookupResponse, TierMatch
from indexer.api.server import open_query
from indexer.cli.common import (
    ConfigOption,
    JsonOption,
    RedisOption,
    console,
    fail,
    fail_with,
    load_config,
    print_json,
)
from indexer.config import Config
from indexer.errors import CacheIndexerError
from indexer.holders import Holder, parse
from indexer.query import Question
from indexer.runtime import run

TokensOption = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        help="File (- for stdin) with a JSON list of token ids, or an object as POST /v1/lookup takes it.",
    ),
]
BlockSizeOption = Annotated[
    int | None, typer.Option("--block-size", min=1, help="Tokens a block, where the file does not tell.")
]
BlockArgument = Annotated[str | None, typer.Argument(help="16 hex digits, or the engine's integer hash.")]


class PoolHolders(msgspec.Struct, frozen=True):
    """Who holds a block in one pool."""

    pool: str
    holders: list[Holder]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"ignore_unknown_options": True})
    def who(
        block: BlockArgument = None,
        tokens: TokensOption = None,
        block_size: BlockSizeOption = None,
        config: ConfigOption = None,
        redis_url: RedisOption = None,
        json: JsonOption = False,
    ) -> None:
        """Show who holds BLOCK, or how much of a prompt's prefix each instance holds (--tokens)."""
        if (block is None) == (tokens is None):
            fail("give either BLOCK or --tokens FILE", 2)
        settings = load_config(config, redis_url)
        try:
            if block is not None:
                name = _block(block)
                held = run(_holders(settings, name))
                print_json({"block": name, "pools": held}) if json else _show_holders(held)
            elif tokens is not None:
                found = run(_lookup(settings, _question(tokens, block_size)))
                print_json(found) if json else _show_prefixes(found)
        except CacheIndexerError as error:
            fail_with(error)


def _block(text: str) -> str:
    decimal = not blocks.is_block(text.lower()) and re.fullmatch(r"-?[0-9]{1,20}", text)
    try:
        return blocks.parse(int(text) if decimal else text)
    except ValueError as error:
        fail(f"BLOCK: {error}", 2)


def _question(path: Path, block_size: int | None) -> Question:
    try:
        body = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        if body.lstrip()[:1] == b"[":
            size = b'"block_size":%d,' % block_size if block_size else b""
            body = b"{%s" % size + b'"token_ids":' + body + b"}"
        return decode_question(body)
    except OSError as error:
        fail(f"--tokens {path}: {error.strerror}", 2)
    except BadRequestError as error:
        fail(f"--tokens {path}: {error}", 2)


async def _holders(config: Config, block: str) -> list[PoolHolders]:
    async with open_query(config) as query:
        return [
            PoolHolders(pool.name, [parse(name) for name in await pool.reader.holders(block)])
            for pool in query.pools
        ]


async def _lookup(config: Config, question: Question) -> LookupResponse:
    async with open_query(config) as query:
        return lay_out(await query.lookup(question), question.tiers)


def _show_holders(pools: list[PoolHolders]) -> None:
    table = Table("pool", "tier", "instance", "rank", "group")
    for held in pools:
        for holder in held.holders:
            rank = "" if holder.rank is None else str(holder.rank)
            table.add_row(held.pool, holder.tier, holder.instance, rank, str(holder.group or ""))
    console().print(table if table.row_count else "nobody holds it")


def _show_prefixes(found: LookupResponse) -> None:
    table = Table("instance", "l1", "l2", "l3", "streams", title=f"{found.blocks} blocks, pool {found.pool}")
    for instance in found.instances:
        tiers = [_tier(tier) for tier in (instance.l1, instance.l2, instance.l3)]
        table.add_row(instance.ip, *tiers, _streams(instance))
    output = console()
    output.print(table)
    if isinstance(found.l3_pool, TierMatch):
        output.print(f"Mooncake memory on any host: {_tier(found.l3_pool)}")
    for warning in found.warnings:
        output.print(f"warning: {warning}", style="yellow", markup=False)


def _tier(match: TierMatch | msgspec.UnsetType) -> str:
    return f"{match.blocks} ({match.ratio:.0%})" if isinstance(match, TierMatch) else ""


def _streams(instance: InstanceMatch) -> str:
    return ", ".join(f"{stream.rank} {stream.state}" for stream in instance.streams)
