"""The collector's metrics in docs/operations.md are those that it has."""

import re
from pathlib import Path

from prometheus_client import Metric

from collector.metrics import Metrics
from collector.mooncake.duty import MooncakeMetrics

PREFIX = "cache_indexer_collector_"
DOCS = Path(__file__).parents[2] / "docs"


def _name(metric: Metric) -> str:
    return metric.name.removeprefix(PREFIX) + ("_total" if metric.type == "counter" else "")


def test_every_metric_of_the_collector_is_documented() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text.split(f"| metric `{PREFIX}...` |")[1].split("\n\n")[0]
    first_cells = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    documented = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    collected = [*Metrics().registry.collect(), *MooncakeMetrics().collect()]
    assert sorted(documented) == sorted(map(_name, collected))
