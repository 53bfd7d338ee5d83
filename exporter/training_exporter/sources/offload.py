"""Reads that may block for ever, done by a thread that can be left behind."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_Task = Callable[[], Callable[[], None]]  # reads; its answer keeps what was read, if it is still wanted
_Tasks = deque[tuple[K, _Task]]

MAX_STUCK = 32  # threads left behind at one time; past it nothing risky is read any more
# This process has no descriptor or memory left: that says nothing about what was to be read.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Offload(Generic[K]):
    """A helper thread for batches of reads, each with a deadline.

    A read past its deadline is given up: its key stays in `stuck` until the read returns by itself, its thread is
    left behind (daemon), and a new thread goes on with the rest of the batch. Used from one thread at a time.
    """

    def __init__(self, name: str, *, deadline_seconds: float) -> None:
        self._name = name
        self._deadline_seconds = deadline_seconds
        self._changed = threading.Condition()
        self._stuck: set[K] = set()
        self._helper: _Helper[K] | None = None

    @property
    def stuck(self) -> frozenset[K]:
        """Keys whose read has not returned yet."""
        with self._changed:
            return frozenset(self._stuck)

    def run(self, jobs: Iterable[tuple[K, Callable[[], T]]], *, until_stuck: bool = False) -> dict[K, T]:
        """Run the jobs in order; the answers of those that ended in time and without OSError, by key.

        A key that is stuck is skipped; `until_stuck`: the jobs behind one that gets stuck now are not run. An exception
        other than OSError comes out here, and so does an EXHAUSTED one.
        """
        answers: dict[K, T] = {}

        def task(key: K, job: Callable[[], T]) -> Callable[[], None]:
            return partial(answers.__setitem__, key, job())

        stuck = self.stuck
        tasks: _Tasks[K] = deque((key, partial(task, key, job)) for key, job in jobs if key not in stuck)
        while tasks and len(self.stuck) < MAX_STUCK:
            if not self._work(tasks) and until_stuck:
                break
        return answers

    def _work(self, tasks: _Tasks[K]) -> bool:
        """Have them done; False where one got stuck, and the others are still to be done."""
        if self._helper is None:
            self._helper = _Helper(self._name, self._changed, self._stuck)
        helper = self._helper
        with self._changed:
            helper.tasks = tasks
            self._changed.notify_all()
            while helper.busy():
                left = self._deadline_seconds - helper.busy_seconds()
                if left <= 0:
                    self._leave_behind(helper)
                    return False
                self._changed.wait(left)
            helper.raise_failure()
        return True

    def _leave_behind(self, helper: _Helper[K]) -> None:
        if helper.key is not None:
            self._stuck.add(helper.key)
        helper.left_behind = True
        helper.tasks = None
        self._helper = None


class _Helper(Generic[K]):
    """One thread and what it is at; its fields are guarded by the condition it shares with its owner."""

    def __init__(self, name: str, changed: threading.Condition, stuck: set[K]) -> None:
        self.tasks: _Tasks[K] | None = None
        self.key: K | None = None
        self.failure: Exception | None = None
        self.left_behind = False
        self._began: float | None = None
        self._changed = changed
        self._stuck = stuck
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def busy(self) -> bool:
        """Whether tasks are left or running."""
        return self.tasks is not None

    def raise_failure(self) -> None:
        """Let out what a task raised."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def busy_seconds(self) -> float:
        """How long the running read has taken by now."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _run(self) -> None:
        while (task := self._next()) is not None:
            commit: Callable[[], None] | None = None
            failure: Exception | None = None
            try:
                commit = task()
            except OSError as exc:  # the process is gone or not ours to read: no answer
                failure = exc if exc.errno in EXHAUSTED else None
            except Exception as exc:  # noqa: BLE001  re-raised in the thread that asked
                failure = exc
            self._finish(commit, failure)

    def _next(self) -> _Task | None:
        """The next task; waits for one. None once this thread was left behind."""
        with self._changed:
            while not self.left_behind:
                if self.tasks:
                    self.key, task = self.tasks.popleft()
                    self._began = time.monotonic()
                    return task
                if self.tasks is not None:
                    self.tasks = None
                    self._changed.notify_all()
                self._changed.wait()
            return None

    def _finish(self, commit: Callable[[], None] | None, failure: Exception | None) -> None:
        with self._changed:
            key, self.key, self._began = self.key, None, None
            if self.left_behind:
                if key is not None:
                    self._stuck.discard(key)
                return
            if commit is not None:
                commit()
            if failure is not None:
                self.failure = failure
                self.tasks = None
                self._changed.notify_all()
