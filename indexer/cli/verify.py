"""`cache-indexer verify`: does the index agree with itself?"""

import typer

from indexer.cli.common import (
    ConfigOption,
    JsonOption,
    RedisOption,
    console,
    fail_with,
    load_config,
    print_json,
)
from indexer.config import Config
from indexer.errors import CacheIndexerError
from indexer.index.connect import connect
from indexer.index.verify import Report, verify
from indexer.runtime import run


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(name="verify")
    def command(config: ConfigOption = None, redis_url: RedisOption = None, json: JsonOption = False) -> None:
        """Check that sets and bitmaps agree and that no slot is lost; status 1 when something is wrong.

        Reads the whole index, beside running writers if need be.
        """
        settings = load_config(config, redis_url)
        try:
            reports = run(_verify(settings))
        except CacheIndexerError as error:
            fail_with(error)
        if json:
            print_json(reports)
        else:
            for report in reports:
                _show(report)
        if not all(report.ok for report in reports):
            raise typer.Exit(1)


async def _verify(config: Config) -> list[Report]:
    client = await connect(config.redis)
    try:
        return [await verify(client, pool.name) for pool in config.pools]
    finally:
        await client.aclose()


def _show(report: Report) -> None:
    output = console()
    verdict = "agrees with itself" if report.ok else f"{report.finding_count} findings"
    output.print(
        f"pool {report.pool}: {report.blocks} blocks, {report.bits} bits, "
        f"{report.members} set members: {verdict}",
        markup=False,
        highlight=False,
    )
    for finding in report.findings:
        output.print(f"  {finding}", markup=False, highlight=False)
    if report.finding_count > len(report.findings):
        output.print(f"  ... and {report.finding_count - len(report.findings)} more", highlight=False)
