"""What the demonstration prints: rich on a terminal, plain lines elsewhere."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SHOWN = 8
"""Lines of a long Redis reply that are shown."""


class Advance(Protocol):
    """Call it once for each request done."""

    def __call__(self) -> None: ...


class Show:
    """Writes to stdout."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True, highlight=False)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._console.print(f"\n[bold cyan]{text}[/]" if self._console.is_terminal else f"\n== {text}")

    def line(self, text: str = "") -> None:
        """Print as is."""
        self._console.print(text, markup=False)

    def command(self, text: str) -> None:
        """Something that can be typed into a shell."""
        self._console.print(f"$ {text}", markup=False, style="bold")

    def verdict(self, text: str, good: bool) -> None:
        """The result."""
        self._console.print(text, markup=False, style="bold green" if good else "bold red")

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[Advance]:
        """A bar on a terminal, now and then a line elsewhere."""
        if self._console.is_terminal:
            columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=self._console) as bar:
                task = bar.add_task(name, total=total)
                yield lambda: bar.advance(task)
            return
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            if done % 50 == 0 or done == total:
                self.line(f"{name}: {done} of {total}")

        yield advance

    def answer(self, answer: Mapping[str, Any]) -> None:
        """A JSON answer, one candidate a line."""
        scores = ",\n".join(f"    {json.dumps(score)}" for score in answer["server_score_list"])
        rest = {key: value for key, value in answer.items() if key != "server_score_list"}
        self.line(f'{{"server_score_list": [\n{scores}],\n {json.dumps(rest)[1:]}')

    def redis_reply(self, reply: Any) -> None:
        """A reply as redis-cli prints it on a terminal."""
        for text in _as_redis_cli(reply):
            self.line(text)


def _as_redis_cli(reply: Any) -> list[str]:
    if isinstance(reply, int):
        return [f"(integer) {reply}"]
    if isinstance(reply, bytes):
        return [_quoted(reply)]
    if isinstance(reply, Mapping):
        return _as_redis_cli([part for pair in sorted(reply.items()) for part in pair])
    if isinstance(reply, Sequence):
        lines = [f"{n}) {_quoted(value)}" for n, value in enumerate(reply[:SHOWN], 1)]
        return lines + ([f"... {len(reply) - SHOWN} more"] if len(reply) > SHOWN else [])
    return ["(nil)"]


def _quoted(value: bytes) -> str:
    printable = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in value)
    return f'"{printable}"'
