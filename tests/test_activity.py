"""`runs.activity` and `runs.gpus`: what of a run's work is a sign of life, and how much of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodes import START_SECONDS, discovered, record, sample
from training_exporter.model import GpuDevice, GpuSample, ProcessRecord, XidEvent
from training_exporter.runs.activity import HostWork, Rate
from training_exporter.runs.gpus import GpuTracker, is_working
from training_exporter.runs.roles import is_uncounted

RANK, CHILD, LAUNCHER = 10, 20, 5


def work_of(
    seconds: int = 30, tick: float = 1.0, context_pids: frozenset[int] = frozenset(), **per_second: dict[str, float]
) -> HostWork:
    """The work of a rank, its child and the launcher, each with so much of a counter a second."""
    host = HostWork(is_uncounted)
    pids = {"rank": RANK, "child": CHILD, "launcher": LAUNCHER}
    for number in range(int(seconds / tick)):
        time = number * tick

        def process(who: str, time: float = time, **changes: object) -> ProcessRecord:
            counters = {key: type_of(key)(value * time) for key, value in per_second.get(who, {}).items()}
            return record(pids[who], **{**changes, **counters})

        run = discovered(
            [process("rank")],
            launcher=process("launcher", name="torchrun"),
            others=(process("child", name="ptxas", parent_pid=RANK),),
        )
        host.observe(run, START_SECONDS + time, context_pids)
    return host


def type_of(counter: str) -> type[float | int]:
    """CPU seconds are a float, everything else counts."""
    return float if counter == "cpu_seconds" else int


class TestRate:
    def test_is_over_ten_seconds_whatever_the_ticks(self) -> None:
        """A late tick holds more and lasts longer."""
        rate = Rate()
        for seconds in (1.0, 1.0, 4.0, 2.0, 1.0, 6.0):
            rate.add(3.0 * seconds, seconds)
        assert rate.value() == pytest.approx(3.0)

    def test_is_none_before_five_seconds(self) -> None:
        """Clock ticks of 10 ms are no rate."""
        rate = Rate()
        rate.add(100.0, 1.0)
        assert rate.value() == 0.0

    def test_a_last_sample_without_any_is_no_move(self) -> None:
        """What moved eight seconds ago did not move now."""
        rate = Rate()
        for _ in range(8):
            rate.add(10.0, 1.0)
        rate.add(0.0, 1.0)
        assert (rate.value() > 5.0, rate.moved(5.0)) == (True, False)


class TestHostWork:
    @pytest.mark.parametrize(
        ("name", "counters", "moved"),
        [
            ("rank", {"read_bytes": 70_000}, True),
            ("rank", {"read_bytes": 60_000}, False),
            ("child", {"written_bytes": 70_000}, True),
            ("rank", {"read_bytes": 40_000, "storage_read_bytes": 40_000}, False),
            ("rank", {"storage_read_bytes": 70_000}, True),
            ("rank", {"major_faults": 17}, True),
            ("rank", {"major_faults": 15}, False),
            ("launcher", {"read_bytes": 1_000_000}, False),
        ],
    )
    def test_io(self, name: str, counters: dict[str, float], moved: bool) -> None:
        """64 KiB/s of the larger of syscall and storage bytes, or 16 faults; never the launcher's."""
        assert work_of(**{name: counters}).io_moved() is moved

    @pytest.mark.parametrize(
        ("name", "cores", "moved"),
        [
            ("child", 0.25, True),
            ("child", 0.15, False),
            ("rank", 1.3, True),
            ("rank", 1.1, False),
            ("launcher", 2.0, False),
        ],
    )
    def test_cpu(self, name: str, cores: float, moved: bool) -> None:
        """A fifth of a core of children, more than a spin of a rank."""
        assert work_of(**{name: {"cpu_seconds": cores}}).cpu_moved() is moved

    @pytest.mark.parametrize(("cores", "moved"), [(1.0, False), (1.3, True)])
    def test_a_child_with_a_gpu_context_is_judged_like_a_rank(self, cores: float, moved: bool) -> None:
        """One core of an inference engine is a spin."""
        host = work_of(context_pids=frozenset({CHILD}), child={"cpu_seconds": cores})
        assert host.cpu_moved() is moved

    def test_two_second_ticks_see_the_same(self) -> None:
        """The rate does not depend on how often the table is read."""
        assert work_of(tick=2.0, rank={"read_bytes": 70_000}).io_bytes_per_second() == pytest.approx(70_000)

    def test_counters_that_cannot_be_read_are_no_rate(self) -> None:
        """Somebody else's process shows no bytes: that is unknown, not 0."""
        hidden = record(RANK, read_bytes=None, written_bytes=None, storage_read_bytes=None, storage_written_bytes=None)
        host = HostWork(is_uncounted)
        for second in range(5):
            host.observe(discovered([hidden]), START_SECONDS + second, frozenset())
        assert host.io_bytes_per_second() is None

    def test_companions_do_not_count(self) -> None:
        """A tracker that uploads is no sign of the run's life."""
        host = HostWork(is_uncounted)
        for time in range(30):
            tracker = record(CHILD, name="wandb-service", cpu_seconds=float(time), written_bytes=time << 20)
            host.observe(discovered([record(RANK)], others=(tracker,)), START_SECONDS + time, frozenset())
        assert (host.io_moved(), host.cpu_moved()) == (False, False)

    def test_a_child_that_was_just_born_counts_whole(self) -> None:
        """Compilers live for seconds."""
        host = HostWork(is_uncounted)
        for time in range(0, 30, 2):
            compiler = record(100 + time, name="cc1plus", cpu_seconds=1.5, start_seconds=START_SECONDS + time - 1.5)
            host.observe(discovered([record(RANK)], others=(compiler,)), START_SECONDS + time, frozenset())
        assert host.cpu_moved() is True

    def test_an_old_process_that_is_seen_first_does_not(self) -> None:
        """A start of the exporter makes no activity."""
        host = HostWork(is_uncounted)
        for time in range(30):
            rank = record(RANK, cpu_seconds=9000.0, read_bytes=1 << 40, start_seconds=START_SECONDS - 9000.0)
            host.observe(discovered([rank]), START_SECONDS + time, frozenset())
        assert (host.io_moved(), host.cpu_moved(), host.read_bytes) == (False, False, 1 << 40)

    def test_totals_survive_the_death_of_a_process(self) -> None:
        """CPU of loaders that ended stays counted, one that is missing for a moment is not counted twice."""
        host = HostWork(is_uncounted)
        worker, other = record(30, cpu_seconds=5.0), record(31, cpu_seconds=2.0)
        for loaders in ((worker, other), (other,), (worker, other), (other,)):
            time = START_SECONDS + len(host.roles_seen) + host.cpu_seconds["worker"]
            host.observe(discovered([record(RANK, cpu_seconds=time - START_SECONDS + 1)], loaders=loaders), time, set())
        assert host.cpu_seconds["loader"] == 7.0

    def test_a_long_gap_is_not_spread(self) -> None:
        """What happened in ten minutes without a look is no rate of now."""
        host = work_of(rank={"read_bytes": 0})
        host.observe(discovered([record(RANK, read_bytes=10 << 30)]), START_SECONDS + 700.0, frozenset())
        assert host.io_moved() is False


class TestIsWorking:
    @pytest.mark.parametrize(
        ("utilization", "memory", "effort", "working"),
        [
            (1.0, 0.0, 0.10, False),
            (1.0, 0.0, 0.29, False),
            (1.0, 0.0, 0.30, True),
            (1.0, 0.05, 0.15, True),
            (1.0, 0.05, 0.14, False),
            (0.04, 0.50, 0.90, False),
            (0.05, 0.02, None, True),
            (1.0, 0.01, None, False),
            (1.0, None, None, True),
            (None, 0.50, 0.90, False),
        ],
    )
    def test_needs_a_kernel_and_power_or_memory_traffic(
        self, utilization: float | None, memory: float | None, effort: float | None, working: bool
    ) -> None:
        """A resident kernel alone is a wait."""
        assert is_working(utilization, memory, effort) is working


class TestGpuTracker:
    def watch(self, seconds: int, tick: float = 1.0, **changes: object) -> GpuTracker:
        tracker = GpuTracker(GpuDevice("0", "GPU-0"))
        for number in range(int(seconds / tick) + 1):
            tracker.observe(sample(START_SECONDS + number * tick, **changes), holds_memory=True, trains=True)
        return tracker

    def test_busy_without_working_is_spinning(self) -> None:
        """A collective that waits."""
        tracker = self.watch(60, utilization_ratio=1.0, power_watts=90.0)
        assert (tracker.busy_seconds, tracker.working_seconds, tracker.worked_at) == (60.0, 0.0, None)

    def test_work_is_busy_too(self) -> None:
        """By the share of the second in which the kernel was there."""
        tracker = self.watch(60, utilization_ratio=0.5, memory_utilization_ratio=0.3)
        assert (tracker.busy_seconds, tracker.working_seconds) == (30.0, 30.0)

    def test_a_gap_counts_for_five_seconds_at_most(self) -> None:
        """What was not looked at was not work."""
        tracker = self.watch(120, tick=60.0, utilization_ratio=1.0, memory_utilization_ratio=0.3)
        assert tracker.busy_seconds == 10.0

    @pytest.mark.parametrize(("worked", "signal"), [(2, False), (3, True)])
    def test_the_signal_needs_three_samples_of_ten(self, worked: int, signal: bool) -> None:
        """Two spikes are noise."""
        tracker = GpuTracker(GpuDevice("0", "GPU-0"))
        for number in range(20):
            busy = number >= 10 and number % 3 == 0 and number < 10 + 3 * worked
            changes = {"utilization_ratio": 0.9, "memory_utilization_ratio": 0.2} if busy else {}
            tracker.observe(sample(START_SECONDS + number, **changes), holds_memory=True, trains=True)
        assert (tracker.worked_at is not None) is signal

    def test_a_repeated_sample_is_nothing_new(self) -> None:
        """The driver was slower than the exporter."""
        tracker = self.watch(10, utilization_ratio=1.0)
        tracker.observe(sample(START_SECONDS + 10, utilization_ratio=1.0), holds_memory=True, trains=True)
        assert tracker.busy_seconds == 10.0

    def test_rest_before_any_kernel_teaches_nothing(self) -> None:
        """A context that was never used draws less than one that was."""
        assert self.watch(60).idle.watts is None

    def test_rest_after_a_kernel_is_idle_power(self) -> None:
        """With the run's memory on it."""
        tracker = self.watch(10, utilization_ratio=0.9, power_watts=300.0)
        for number in range(11, 40):
            tracker.observe(sample(START_SECONDS + number, power_watts=64.0), holds_memory=True, trains=True)
        assert tracker.idle.watts == 64.0

    def test_a_lost_gpu_publishes_that_and_its_errors_only(self) -> None:
        """Everything else is unknown."""
        tracker = self.watch(10, utilization_ratio=0.9)
        lost = GpuSample(
            START_SECONDS + 11, GpuDevice("0", "GPU-0"), lost=True, xids=(XidEvent(79, START_SECONDS + 11),)
        )
        tracker.observe(lost, holds_memory=True, trains=True)
        view = tracker.view(None)
        assert (view.lost, view.power_watts, view.busy_seconds_total, view.xid_errors_total) == (
            True,
            None,
            None,
            {79: 1},
        )

    def test_ratios_are_means_of_a_few_seconds(self) -> None:
        """A single sample says little."""
        tracker = GpuTracker(GpuDevice("0", "GPU-0"))
        for number, ratio in enumerate([0.0, 1.0, 0.0, 1.0, 0.5]):
            tracker.observe(sample(START_SECONDS + number, utilization_ratio=ratio), holds_memory=True, trains=True)
        assert tracker.view(None).utilization_ratio == 0.5

    def test_what_the_driver_cannot_say_is_absent(self) -> None:
        """Never 0."""
        tracker = self.watch(10, utilization_ratio=None, power_watts=None, memory_utilization_ratio=None)
        view = tracker.view(None)
        assert (view.utilization_ratio, view.busy_seconds_total, view.power_watts) == (None, None, None)

    def test_throttle_reasons_that_are_known_and_not_active_are_false(self) -> None:
        """So that a rule sees them clear."""
        tracker = GpuTracker(GpuDevice("0", "GPU-0"))
        events = {"clock_events": frozenset({"hw_slowdown"}), "clock_events_known": frozenset({"hw_slowdown", "x"})}
        tracker.observe(replace(sample(START_SECONDS), **events), holds_memory=True, trains=True)
        assert tracker.view(None).clock_events == {"hw_slowdown": True, "x": False}
