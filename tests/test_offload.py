"""Reads that block cost one thread and one key."""

from __future__ import annotations

import threading
import time

import pytest

from training_exporter.sources import offload as module
from training_exporter.sources.offload import Offload


def _wait_for_release(offload: Offload[str]) -> None:
    deadline = time.monotonic() + 5
    while offload.stuck and time.monotonic() < deadline:
        threading.Event().wait(0.005)


class TestOffload:
    def test_answers_by_key(self) -> None:
        """Jobs run in order; one that may not read has no answer."""
        order: list[str] = []

        def refuse() -> int:
            order.append("b")
            raise PermissionError

        jobs = [("a", lambda: order.append("a") or 1), ("b", refuse), ("c", lambda: order.append("c") or 3)]
        assert Offload[str]("test", deadline_seconds=5).run(jobs) == {"a": 1, "c": 3}
        assert order == ["a", "b", "c"]

    def test_a_stuck_job_delays_the_others_by_the_deadline_only(self) -> None:
        """The rest of the batch is answered, later batches skip the key until its read returns."""
        release = threading.Event()
        offload = Offload[str]("test", deadline_seconds=0.05)
        jobs = [("a", lambda: 1), ("b", lambda: int(release.wait(30))), ("c", lambda: 3)]
        began = time.monotonic()
        assert offload.run(jobs) == {"a": 1, "c": 3}
        assert offload.stuck == {"b"}
        assert offload.run([("b", lambda: 2), ("d", lambda: 4)]) == {"d": 4}
        assert time.monotonic() - began < 2.0
        release.set()
        _wait_for_release(offload)
        assert offload.run([("b", lambda: 2)]) == {"b": 2}

    def test_a_batch_may_end_with_the_first_stuck_job(self) -> None:
        """What stands behind it on a dead mount is not tried as well."""
        release = threading.Event()
        offload = Offload[str]("test", deadline_seconds=0.05)
        jobs = [("a", lambda: 1), ("b", lambda: int(release.wait(30))), ("c", lambda: int(release.wait(30)))]
        assert offload.run(jobs, until_stuck=True) == {"a": 1}
        assert offload.stuck == {"b"}
        assert offload.run([("d", lambda: 4)], until_stuck=True) == {"d": 4}
        release.set()
        _wait_for_release(offload)

    def test_a_late_answer_is_dropped(self) -> None:
        """What a read left behind brings home belongs to another moment."""
        release = threading.Event()
        offload = Offload[str]("test", deadline_seconds=0.05)
        answers = offload.run([("a", lambda: int(release.wait(30)))])
        release.set()
        _wait_for_release(offload)
        assert answers == {}

    def test_the_number_of_threads_left_behind_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """When everything blocks, risky reads stop instead of eating threads."""
        monkeypatch.setattr(module, "MAX_STUCK", 2)
        release = threading.Event()
        offload = Offload[str]("test", deadline_seconds=0.02)
        offload.run([(key, lambda: int(release.wait(30))) for key in "abcd"])
        assert offload.stuck == {"a", "b"}
        assert offload.run([("z", lambda: 1)]) == {}
        release.set()
        _wait_for_release(offload)
        assert offload.run([("z", lambda: 1)]) == {"z": 1}

    def test_other_exceptions_come_out(self) -> None:
        """A fault of the program is not taken for an unreadable file, and the helper lives on."""
        offload = Offload[str]("test", deadline_seconds=5)
        with pytest.raises(ZeroDivisionError):
            offload.run([("a", lambda: 1 // 0), ("b", lambda: 2)])
        assert offload.run([("b", lambda: 2)]) == {"b": 2}
