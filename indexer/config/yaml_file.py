"""YAML as it should be: one document, and no key twice."""

from collections.abc import Hashable
from typing import Any

import yaml

from indexer.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Of a key that stands twice, plain YAML loaders silently take the last."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if isinstance(text, str) and not text.isascii():
            # JSON writes a character beyond U+FFFF as two halves, which YAML leaves apart.
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(content: bytes, where: str) -> object:
    """The content as plain data, None when there is none; raises ConfigError that names the line.

    The message never quotes the line, which may hold a secret.
    """
    try:
        return yaml.load(content, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        raise ConfigError(f"{place}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = getattr(error, "reason", type(error).__name__)
        raise ConfigError(f"{where}: not valid YAML: {reason}") from None
