"""The table of values in docs/operations.md says what values.yaml says."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from indexer.config.schema import keys
from indexer.config.tree import File
from tests.chart import helm

DOCUMENTED = dict(
    re.findall(
        r"^\| `([\w.]+)` \| `(.*?)` \|", (helm.ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
    )
)


def _leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        here = f"{path}{name}"
        if here in DOCUMENTED or not isinstance(value, dict) or not value:
            yield here, value
        else:
            yield from _leaves(value, f"{here}.")


def test_every_value_is_documented_with_its_default() -> None:
    values = dict(_leaves(yaml.safe_load((helm.CHART / "values.yaml").read_text())))
    configuration = {key.path for key in keys(File)}
    assert {key: yaml.safe_load(text) for key, text in DOCUMENTED.items()} == {
        key: value for key, value in values.items() if key in DOCUMENTED or key not in configuration
    }
