"""The reference page of the configuration, made from the Structs: `python -m indexer.config.reference`."""

from itertools import groupby

from indexer.config import schema
from indexer.config.environment import variable
from indexer.config.load import DEFAULT_FILE
from indexer.config.tree import File

_INTRO = f"""\
# Configuration

<!-- Made by `make docs` from indexer/config; a test compares. Change the descriptions there. -->

One YAML file (JSON is YAML too), by default `{DEFAULT_FILE}`, or the one that `--config` or
`CACHE_INDEXER_CONFIG` names. Every key has a default, so the file names only what differs; without a file
all defaults hold. It is read once, at the start. What is wrong is refused then, with the key, the value and
what is allowed: an unknown key, a key that stands twice, a wrong type or range, keys that contradict each
other.

- **Durations** are text with units: `10s`, `500ms`, `1m30s`, `1.5h`. A bare number is refused.
- **Addresses** to listen on are `:28080` (every interface), `127.0.0.1:28080` or `[::1]:28080`.
- **Seeds** are text: `pythonHashSeed: "0"`. Engines hash the characters, so `0`, `00` and `+0` differ.
- **Environment variables** come after the file: `{{VARIABLE}}` is `{{KEY}}`,
  and so for every key below that is not inside a list. Text is taken as it is; anything else is read as
  YAML; `null` unsets a key that may be null; an empty variable counts as absent. A `CACHE_INDEXER_` variable
  that means nothing is refused, except those that Kubernetes itself sets for Services. Command-line options
  come last.
- **`POD_NAMESPACE`** is the namespace to look for pods in, where `discovery.namespace` is empty.
- **Secrets** belong in `redis.passwordFile`; wherever they stand, they are kept out of logs and messages.
- **Several pools**: `pools` is a list of mappings with `name`, `blockKey` and `discovery`. What a pool does
  not say itself it takes from `blockKey` and `discovery` at the top. No two pools may claim the same engines.
"""


def markdown() -> str:
    """The whole page."""
    keys = [
        key for key in schema.keys(File) if not key.path.startswith("pools[].") or key.path == "pools[].name"
    ]
    example = next(key for key in keys if key.path == "ingest.l1.onGap")
    parts = [_INTRO.format(VARIABLE=variable(example), KEY=example.path).rstrip()]
    for section, members in groupby(keys, key=lambda key: key.path.split(".")[0].removesuffix("[]")):
        rows = [
            f"| `{key.path}` | {_cell(key.allowed)} | {_default(key)} | {_cell(key.doc)} |" for key in members
        ]
        parts.append(
            f"## {section}\n\n| key | values | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(key: schema.Key) -> str:
    text = schema.default_text(key.default)
    return f"`{text}`" if text else "must be given"


if __name__ == "__main__":
    print(markdown(), end="")
