"""One event stream while this process leads: says what to write next.

The writer asks each stream that may have something to do for an entry (`take`) and tells what became of it
(`settle`). What takes longer than a step (opening a new life, asking the replay socket) runs as a task of its
own; the stream's batches wait in its buffer meanwhile, and the other streams go on.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import structs

from collector.ingest.entries import SUSPICION, Entry, build
from collector.ingest.listener import Listener
from collector.ingest.plans import Open, Recover, Take
from collector.ingest.recovery import Recovery
from collector.ingest.sequence import Cursor
from collector.ingest.tools import Tools
from collector.leadership import Reign
from collector.selfcheck import SelfCheck
from indexer import log
from indexer.blocks import WIDTH
from indexer.errors import (
    CacheIndexerError,
    FencedError,
    IndexUnavailableError,
    LifeError,
)
from indexer.index.state import STAMP_NONE, Apply, Outcome, StreamState

RETRY_SECONDS = 0.1

_log = log.get(__name__)


class Stream:
    """Writes what `listener` hears. `state`: the stream in Redis, None when it has none."""

    def __init__(
        self,
        listener: Listener,
        state: StreamState | None,
        reign: Reign,
        tools: Tools,
        wake: Callable[["Stream"], None],
    ) -> None:
        self.key = listener.key
        self.listener = listener
        self.check = SelfCheck(tools.engine, tools.metrics, tools.pool, self.key)
        self._tracker = listener.tracker
        self._reign = reign
        self._tools = tools
        self._log = _log.bind(pool=tools.pool, ip=self.key.ip, rank=self.key.rank)
        self._wake = wake
        self._task: asyncio.Task[None] | None = None
        self._opening = False
        self._doubt = ""
        self._written: tuple[str, str] | None = None
        self._sized = False
        self._refused: Cursor | None = None
        self._recovery = Recovery(self._tracker, tools, self.key, self.wake)
        listener.wake = self.wake
        if state is None:
            self._open(Open(STAMP_NONE, 0, "first contact"), None)
        else:
            self._attach(state)

    def close(self) -> None:
        """Stop writing; the listener goes on."""
        if self._task is not None:
            self._task.cancel()
        self.listener.wake = lambda: None
        self._tracker.detach()

    def wake(self) -> None:
        """Something may have to be done."""
        self._wake(self)

    @property
    def life(self) -> str | None:
        """The life being written; None when there is none yet."""
        return None if self._tracker.cursor is None else self._tracker.cursor.life

    @property
    def state(self) -> str:
        """What to show, see the project's list of stream states."""
        heard = self._tracker.cursor is not None and self._tracker.cursor.next > 0
        if not self._tracker.linked:
            return "lost" if heard else "connecting"
        if self.check.cause:
            return "mismatch"
        if self._doubt:
            return "suspect"
        return "live" if heard else "connecting"

    def take(self, budget: int) -> Entry | None:
        """What to write next, of about `budget` blocks; None: nothing now, it wakes the writer later."""
        cursor = self._tracker.cursor
        if cursor is None or self._opening:
            return None
        plan = self._tracker.plan()
        if isinstance(plan, Take):
            if (plan.skip_from is not None or plan.unproven) and self._hand_over(cursor):
                return None
            entry = build(self.key, cursor, plan, self._tools.engine.dialect, budget)
            self._doubt = self._doubt or entry.doubt
            return self._marked(entry, cursor)
        if isinstance(plan, Open):
            self._open(plan, cursor.life)
        elif isinstance(plan, Recover):
            self._spawn(self._recovery.run(plan.start, self.listener.feed.replay or ""))
        elif self._written != (self.state, self._cause):
            return self._marked(Entry(Apply(self.key, cursor.life, cursor.next, cursor.next)), cursor)
        return None

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """What became of an entry."""
        apply = entry.apply
        if outcome.code in ("OK", "DUP") and outcome.life == apply.life:
            self._written = (str(apply.fields["state"]), str(apply.fields["cause"]))
            self._sized = self._sized or "block_size" in apply.fields
            self._refused = None
            self._tracker.settle(Cursor(outcome.life, outcome.next, outcome.stamp))
            for stored in entry.stored:
                self.check.see(stored)
        elif outcome.code == "NONE":
            self._log.warning("the stream is gone from Redis")
            self._open(Open(STAMP_NONE, 0, "gone from Redis"), None)
        else:
            self._disagree(apply, outcome)
        self.wake()

    def without_stores(self, entry: Entry) -> Entry:
        """The entry as it can be written while Redis is out of memory; it leaves the stream in doubt."""
        if not entry.apply.ops:
            return entry
        ops = tuple(op for op in entry.apply.ops if op.kind != "store")
        self._doubt = self._doubt or f"{SUSPICION}Redis was out of memory at batch {entry.apply.start}"
        fields = {**entry.apply.fields, "state": self.state, "cause": self._cause}
        return entry._replace(
            apply=structs.replace(entry.apply, ops=ops, fields=fields),
            blocks=sum(len(op.blocks) for op in ops) // WIDTH,
            stored=(),
        )

    def _disagree(self, apply: Apply, outcome: Outcome) -> None:
        cursor = Cursor(outcome.life, outcome.next, outcome.stamp)
        self._log.warning(
            "Redis has the stream elsewhere", code=outcome.code, ours=apply.start, next=outcome.next
        )
        again = cursor == self._refused
        self._tracker.attach(cursor)
        self._refused = cursor
        if again:
            self._tracker.restart(f"Redis holds other batches before {outcome.next}")

    @property
    def _cause(self) -> str:
        return self.check.cause or self._doubt

    def _marked(self, entry: Entry, cursor: Cursor) -> Entry:
        """With the state and its cause as they are once the entry is applied."""
        state = self.state
        if state == "connecting" and self._tracker.linked and entry.apply.stop > cursor.next:
            state = "live"
        fields = {**entry.apply.fields, "state": state, "cause": self._cause}
        if not self._sized and (size := next((s.block_size for s in entry.stored if s.block_size > 0), 0)):
            fields["block_size"] = str(size)  # once a life: an engine never changes it
        return entry._replace(apply=structs.replace(entry.apply, fields=fields))

    def _hand_over(self, cursor: Cursor) -> bool:
        """Whether a standby, which may have heard what we did not, is to lead instead."""
        mark = (self.key, cursor)
        if not self._reign.warm_standbys or mark in self._tools.offered:
            return False
        self._tools.offered.add(mark)
        self._reign.end(f"{self.key.name} has a gap at {cursor.next} that a standby may fill", release=True)
        return True

    def _attach(self, state: StreamState) -> None:
        self._opening = False
        self._tracker.attach(Cursor(state.life, state.next, state.stamp))
        self._written = (state.state, state.cause)
        self._sized = state.block_size is not None
        if state.cause.startswith(SUSPICION) or state.state == "suspect":
            self._doubt = state.cause or SUSPICION + "told before"
        elif state.cause:
            self.check.cause = state.cause
        now = self.listener.feed.incarnation
        if state.incarnation and now and state.incarnation != now:
            self._tracker.restart(f"incarnation {state.incarnation} was followed by {now}")
        self.wake()

    def _open(self, plan: Open, life: str | None) -> None:
        self._opening = True
        self._spawn(self._open_until_done(plan, life))

    async def _open_until_done(self, plan: Open, life: str | None) -> None:
        new = secrets.token_hex(8)
        incarnation = self.listener.feed.incarnation or ""
        reign, index = self._reign, self._tools.index
        while True:
            before = reign.rev
            try:
                rev, state = await index.open(
                    reign.token, self.key, life, new, incarnation, 0, plan.floor, "connecting"
                )
                break
            except LifeError:
                states = {state.key: state for state in await index.streams()}
                if (found := states.get(self.key)) is not None:
                    self._attach(found)
                    return
                life = None
            except IndexUnavailableError:
                await asyncio.sleep(RETRY_SECONDS)
        reign.saw(before, rev)
        self._opening = False
        self._doubt = ""
        self.check.reset()
        self._written = (state.state, state.cause)
        self._sized = state.block_size is not None
        self._tracker.opened(plan, Cursor(new, 0, plan.floor))
        if life is not None:
            self._tools.metrics.restarts.labels(self._tools.pool).inc()
        self._log.info("stream opened", life=new, why=plan.why, incarnation=incarnation)
        self.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """What fails here must not pass unseen: the reign ends, and the next one starts from Redis."""
        try:
            await work
        except FencedError:
            self._reign.end("another collector leads")
        except CacheIndexerError as error:
            self._reign.end(f"{self.key.name}: {error}")
        except Exception as error:
            self._log.exception("stream failed")
            self._reign.end(f"{self.key.name}: {error!r}")
