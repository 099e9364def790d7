"""One stream's batches against its cursor: what to do next. Pure: no sockets, no Redis, no clock.

Fed with connections and live batches all the time, also on a standby. A leader attaches the cursor that
Redis has, asks `plan()` for the next thing to do, does it, and reports back. Whatever goes wrong in between
(takeover, a write whose outcome is unknown, another writer, Redis going back in time) has one answer: attach
the cursor again, and it is looked up among the buffered batches.
"""

from collections.abc import Sequence
from itertools import chain

from collector.ingest.buffer import Buffer
from collector.ingest.frames import Batch, Frame
from collector.ingest.hearing import Hearing
from collector.ingest.plans import Open, Plan, Recover, Take
from collector.ingest.refill import Answer, Refill
from collector.ingest.sequence import Cursor, Verdict, judge


class Tracker(Hearing):
    """`replay`: the engine has a replay socket. `wipe`: a gap that can't be filled starts a new life.
    `vouched`: engine restarts are told by discovery, so a new connection alone raises no doubt."""

    def __init__(self, buffer: Buffer, *, replay: bool, wipe: bool = False, vouched: bool = False) -> None:
        super().__init__(buffer)
        self.replay = replay
        self.wipe = wipe
        self.vouched = vouched
        self.cursor: Cursor | None = None
        self.stale = 0
        self._refill = Refill()
        self._trusted: int | None = None
        self._check = False
        self._doubt = False
        self._restart: str | None = None

    def connected(self) -> None:
        """The connection that was tried stands; a leader verifies what it is with."""
        super().connected()
        self._check = True

    # Leading.

    def attach(self, cursor: Cursor) -> None:
        """Lead from `cursor` on: find it among the buffered batches."""
        self._reset(cursor)
        self._trusted = None
        waiting = self.buffer.waiting
        for back, frame in enumerate(reversed(waiting)):
            if frame.seq == cursor.next - 1 and frame.stamp == cursor.stamp:
                self._trusted = frame.epoch
                for _ in range(len(waiting) - back):
                    self.buffer.done()
                return
        if self._vouched_for == (cursor.life, self.epoch):
            self._trusted = self.epoch

    def opened(self, plan: Open, cursor: Cursor) -> None:
        """The new life that was planned has begun."""
        if plan.forget:
            self.buffer.forget()
        self._reset(cursor)
        self._trusted = self._vouched_for = None
        while self.buffer.waiting and self.buffer.waiting[0].epoch < plan.epoch:
            self.buffer.drop()

    def detach(self) -> None:
        """No longer leading; what is buffered stays."""
        self._reset(None)

    def _reset(self, cursor: Cursor | None) -> None:
        self.cursor = cursor
        if cursor is not None:
            self._known = cursor
        self._refill.reset()
        self._restart = None
        self._check, self._doubt = self.linked, False
        self.buffer.rewind()

    def restart(self, why: str) -> None:
        """The engine that the newest connection is with is not the cursor's."""
        self._restart = why

    def settle(self, cursor: Cursor) -> None:
        """What was taken is applied, and Redis stands at `cursor`, in the same life as before."""
        if refill := self._refill.waiting:
            while refill and refill[0].seq < cursor.next:
                self.buffer.keep(refill.popleft())
        else:
            waiting = self.buffer.waiting
            while waiting and waiting[0].epoch == self._trusted and waiting[0].seq < cursor.next:
                self.buffer.done()
        self._doubt = False
        self.cursor = self._known = cursor
        if self.proven:
            self._vouched_for = (cursor.life, self.epoch)

    @property
    def proven(self) -> bool:
        """Whether the newest connection is known to be with the cursor's life."""
        return self._trusted == self.epoch

    def plan(self, limit: int = 256) -> Plan:
        """The next thing to do; None: wait for batches, a connection or the running recovery."""
        cursor = self.cursor
        if cursor is None:
            return None
        if self._restart is not None:
            return self._open(cursor, self.epoch, self._restart)
        if refill := self._refill.waiting:
            if refill[0].seq > cursor.next > 0 and self.wipe:
                return self._forget(cursor, refill[0].seq)
            return self._take(cursor, refill, limit)
        if self._refill.asked is not None:
            return None
        return self._plan_live(cursor, limit)

    def _plan_live(self, cursor: Cursor, limit: int) -> Plan:
        waiting = self.buffer.waiting
        while waiting:
            frame = waiting[0]
            verdict = self._judge(cursor, frame)
            if verdict in (Verdict.DUPLICATE, Verdict.PROOF):
                if verdict is Verdict.PROOF:
                    self._trusted = frame.epoch
                elif self._refill.contradicts(frame):
                    self.buffer.forget_replayed()
                    self._refill.disown()
                    self.restart("the replay socket is not this engine's")
                    return self.plan(limit)
                self.duplicates += 1
                self.buffer.done()
            elif verdict is Verdict.STALE:
                self.stale += 1
                self.buffer.drop()
            elif verdict is Verdict.RESTART:
                return self._open(cursor, frame.epoch, f"batch {frame.seq} came where {cursor.next} was due")
            elif verdict is Verdict.APPLY and (self._trusted is not None or not self._recoverable(cursor)):
                self._trusted = frame.epoch
                return self._take(cursor, waiting, limit)
            elif self._recoverable(cursor):
                return self._recover(cursor)
            elif verdict is Verdict.UNPROVEN:
                self._doubt = self._doubt or not self.vouched
                self._trusted = frame.epoch
            elif self.wipe and cursor.next > 0:
                return self._forget(cursor, frame.seq)
            else:
                self._trusted = frame.epoch
                return self._take(cursor, waiting, limit)
        if self._check and self.linked and not self.proven and self._recoverable(cursor):
            return self._recover(cursor)
        return None

    def _judge(self, cursor: Cursor, frame: Frame) -> Verdict:
        if self._trusted is not None and frame.epoch < self._trusted:
            return Verdict.STALE
        newest = frame.epoch == self.epoch
        known = 0
        if newest and self._known_at_start.life == cursor.life:
            known = self._known_at_start.next
        if self._trusted is not None:
            # All of an older connection was heard before a newer one was tried.
            known = max(known, self._ends.get(self._trusted, 0))
        return judge(
            cursor,
            frame.seq,
            frame.stamp,
            trusted=frame.epoch == self._trusted or self._vouched_for == (cursor.life, frame.epoch),
            newest=newest,
            known=known,
        )

    def _take(self, cursor: Cursor, source: Sequence[Frame], limit: int) -> Take:
        frames: list[Frame] = []
        for frame in source:
            if frames and (len(frames) == limit or frame[:2] != (frames[-1].epoch, frames[-1].seq + 1)):
                break
            frames.append(frame)
        skip = cursor.next if frames[0].seq > cursor.next else None
        return Take(tuple(frames), skip, self._doubt)

    def _open(self, cursor: Cursor, epoch: int, why: str) -> Open:
        # The floor covers what the older connections still had to say, so that none of it counts later.
        older = (f.stamp for f in self.buffer.waiting if f.epoch < epoch)
        return Open(max(chain(older, (cursor.stamp,))), epoch, why)

    def _forget(self, cursor: Cursor, seq: int) -> Open:
        epoch = self.buffer.waiting[0].epoch if self.buffer.waiting else self.epoch
        return Open(cursor.stamp, epoch, f"batches {cursor.next} to {seq - 1} are lost", forget=True)

    # Recovery from the replay socket.

    def _recoverable(self, cursor: Cursor) -> bool:
        return self.replay and not self._refill.hopeless(cursor)

    def _recover(self, cursor: Cursor) -> Plan:
        if not self.linked:
            # What answers at the engine's address now is unknown; the next connection will tell.
            return None
        self._refill.ask(self.epoch)
        return Recover(max(cursor.next - 1, 0))

    def replayed(self, batches: Sequence[Batch]) -> bool:
        """Consecutive batches of the answer, in order. False: want no more."""
        cursor = self.cursor
        if cursor is None or self._refill.asked is None:
            return False
        heard = (f for f in self.buffer.waiting if f.epoch == self.epoch)
        answer = self._refill.judge(cursor, batches, heard, proven=self.proven)
        if answer is Answer.RESTARTED:
            self.restart(f"the engine's batch {cursor.next - 1} is not the one that was applied")
            return False
        if answer is Answer.FOREIGN:
            self.give_up()
            return False
        if answer is Answer.SILENT and not self.proven:
            self._doubt = self._doubt or not self.vouched
        self._refill.add(cursor, batches)
        return True

    def unpublished(self) -> None:
        """The engine answered that it never published the batch before `next` (nor any later one)."""
        if self.cursor is not None and self.cursor.next > 0 and not self.proven:
            self.restart(f"the engine never published batch {self.cursor.next - 1}")

    def recovered(self, complete: bool) -> None:
        """The answer is over; `complete`: up to its end marker and without a hole."""
        asked = self._refill.over()
        hopeless = self._refill.hopeless(self.cursor)
        if complete and not hopeless and self._restart is None and self.linked and asked == self.epoch:
            self._trusted = self.epoch
            self._check = False

    def give_up(self) -> None:
        """The replay socket does not help at this cursor: do without."""
        self._refill.give_up(self.cursor)
        self._check = False
