"""Alerts and the dashboard ask for metrics, labels and label values that the programs have."""

import json
import re
from typing import Any

import prometheus_client
import yaml

import indexer.api.metrics  # noqa: F401 - registers the query service's
from collector.metrics import Metrics
from collector.pool import STATES
from tests.chart import helm

SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
RULES = yaml.safe_load((helm.CHART / "files" / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((helm.CHART / "files" / "dashboard.json").read_text())


def _metrics() -> dict[str, set[str]]:
    """Labels of every time series that the two programs expose, by its name."""
    known = {}
    for registry in (prometheus_client.REGISTRY, Metrics().registry):
        for collector in list(registry._collector_to_names):
            labels = set(getattr(collector, "_labelnames", ()))
            for family in getattr(collector, "describe", list)():
                for suffix in SUFFIXES.get(family.type, []):
                    known[family.name + suffix] = labels
    return known


def _expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in RULES] + panels


def test_every_metric_and_label_exists() -> None:
    known = _metrics()
    own = {"namespace", "le"}  # of the scrape, and of histograms
    for expression in _expressions():
        names = re.findall(r"cache_indexer_\w+", expression)
        assert names, expression
        assert set(names) <= set(known), expression
        labels = own.union(*(known[name] for name in names))
        used = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        used |= {
            label
            for group in re.findall(r"\{([^}]*)\}", expression)
            for label in re.findall(r"(\w+)=", group)
        }
        assert used <= labels, expression


def test_states_in_alerts_are_states_of_streams() -> None:
    named = {state for rule in RULES for state in re.findall(r'state="(\w+)"', rule["expr"])}
    assert named
    assert named <= set(STATES)


def test_panels_and_alerts_have_their_texts() -> None:
    titles: list[Any] = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles) > 0
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
