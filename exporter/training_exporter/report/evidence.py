"""What each witness says about a run, in one line each with its age, for the page and `status` alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from training_exporter import redact
from training_exporter.model import SourceName
from training_exporter.report.history import Rates
from training_exporter.runs.verdict import seconds_to_stall
from training_exporter.runs.view import CheckpointView, GpuView, LogView, NodeView, RunView
from training_exporter.words import duration, percent, plural, size

_JUDGED_SOURCES: tuple[SourceName, ...] = ("gpu", "logs", "checkpoints")

# Phases that are expected to end.
_PASSING_PHASES = ("starting", "validating", "checkpointing")


@dataclass(frozen=True, slots=True)
class Witness:
    """One line of evidence; the age is that of the last sign of life it tells of, None where there was none."""

    name: str
    text: str
    age_seconds: float | None = None


def witnesses(run: RunView, view: NodeView, rates: Rates, *, private: bool) -> tuple[Witness, ...]:
    """All that speaks for or against a run. Words of the job itself (log text, paths) only if `private`."""
    return tuple(_witnesses(run, view, rates, private=private))


def expectation(run: RunView, now: float) -> str | None:
    """How long its phase may be expected to last, how silent it is and may be; None if nothing is expected of it."""
    if not run.alive or unseen(run):
        return None
    parts = [_phase(run, now)] if run.phase in _PASSING_PHASES and run.phase_start_seconds is not None else []
    for budget, spent, what in (
        ("idle", run.idle_seconds, "no sign of life"),
        ("progress", run.no_progress_seconds, "no progress"),
    ):
        allowed = run.budgets_seconds.get(budget)
        if allowed is not None and spent is not None:
            parts.append(f"{what} for {duration(spent)} ({duration(allowed)} allowed)")
    return "; ".join(parts).capitalize() + "." if parts else None


def _phase(run: RunView, now: float) -> str:
    words = f"{run.phase} for {duration(now - (run.phase_start_seconds or now))}"
    return words if run.last_phase_seconds is None else f"{words}, the last took {duration(run.last_phase_seconds)}"


def unseen(run: RunView) -> bool:
    """Whether nothing but the mere existence of its processes is known of a living run: somebody else's, say."""
    return run.alive and all(run.absent.get(name) or run.blind.get(name) for name in _JUDGED_SOURCES)


def page_time_seconds(run: RunView, view: NodeView) -> float | None:
    """Steady time at which the run stalls if nothing moves until then; None if it does, or may not page."""
    allowed = run.budgets_seconds.get("idle")
    if not run.alive or not run.paging or allowed is None or run.idle_seconds is None:
        return None
    if run.absent.get("processes") or (run.absent.get("gpu") and run.absent.get("logs")):  # as in the verdict
        return None
    left = seconds_to_stall(run.idle_seconds, allowed, run.stopped_seconds or 0.0, run.disk_sleep_seconds or 0.0)
    return view.time_seconds + left if left > 0 else None


def risk(run: RunView, view: NodeView) -> str | None:
    """What would be lost if the run were ended now; None if that is unknown."""
    found = run.checkpoints
    if not run.alive or found is None:
        return None
    if _older(found, run):
        return f"{duration(view.time_seconds - (run.start_seconds or 0.0))} of work: the checkpoints are from before it"
    if found.last_seconds is not None:
        return f"{duration(view.time_seconds - found.last_seconds)} of work since the last complete checkpoint"
    if run.start_seconds is None:
        return "the whole run: no checkpoint was written yet"
    return f"the whole run of {duration(view.time_seconds - run.start_seconds)}: no checkpoint was written yet"


def _older(found: CheckpointView, run: RunView) -> bool:
    """Whether all checkpoints are from before the present start: the run may have been resumed from one."""
    return found.last_seconds is not None and run.start_seconds is not None and found.last_seconds < run.start_seconds


def _witnesses(run: RunView, view: NodeView, rates: Rates, *, private: bool) -> Iterator[Witness]:
    now = view.time_seconds
    yield from _progress(run, now)
    yield from _processes(run, rates, now)
    mine = [gpu for gpu in view.gpus if gpu.device.gpu in run.gpus]
    for gpu in mine:
        yield _gpu(gpu, now)
    yield from _log(run.log, rates, now, private=private)
    yield from _results(run, now)
    if run.checkpoints is not None:
        yield _checkpoints(run.checkpoints, now, before=_older(run.checkpoints, run))
        if private and run.checkpoints.not_checkpoints:
            names = ", ".join(map(redact.text, run.checkpoints.not_checkpoints[:8]))
            yield Witness("no checkpoint", f"also in the directory: {names}")
    for words in run.weak_evidence:
        yield Witness("weak evidence", redact.text(words))


def _age(now: float, seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, now - seconds)


def _progress(run: RunView, now: float) -> Iterator[Witness]:
    if run.step is None and run.epoch is None:
        return
    words = []
    if run.epoch is not None:
        target = f" of {run.epochs_target:g}" if run.epochs_target is not None else ""
        words.append(f"epoch {run.epoch:g}{target} (from 0)")
    if run.step is not None:
        words.append(f"step {run.step:,}" + (f" of {run.steps_target:,}" if run.steps_target is not None else ""))
    if run.phase_progress_ratio is not None:
        words.append(f"{percent(run.phase_progress_ratio)} of this phase")
    if run.step_interval_seconds is not None:
        words.append(f"typically {run.step_interval_seconds:.3g} s a step")
    last = [seconds for signal in ("step", "validation") if (seconds := run.activity_seconds.get(signal)) is not None]
    yield Witness("progress", ", ".join(words), _age(now, max(last, default=None)))


def _processes(run: RunView, rates: Rates, now: float) -> Iterator[Witness]:
    if run.processes:
        words = [plural(count, role) for role, count in run.processes.items() if count and role != "other"]
        if run.alive and run.workers_expected is not None:
            words.append(f"{plural(run.workers_expected, 'worker')} expected")
        words += [f"{count} {state.replace('_', ' ')}" for state, count in run.process_states.items() if count]
        yield Witness("processes", ", ".join(words) or "none left")
    for signal, rate in (("cpu", _cpu(rates)), ("io", _io(rates))):
        if run.alive and (rate or signal in run.activity_seconds):
            yield Witness(signal, rate or "no rate yet", _age(now, run.activity_seconds.get(signal)))
    for name, seconds in (("disk sleep", run.disk_sleep_seconds), ("stopped", run.stopped_seconds)):
        if seconds:
            yield Witness(name, f"a process for {duration(seconds)} without a break")


def _cpu(rates: Rates) -> str:
    return "" if rates.cpu_cores is None else f"{rates.cpu_cores:.1f} cores{_window(rates)}"


def _io(rates: Rates) -> str:
    words = (("read", rates.read_bytes_per_second), ("written", rates.written_bytes_per_second))
    said = ", ".join(f"{size(rate)}/s {what}" for what, rate in words if rate is not None)
    return said and f"{said}{_window(rates)}"


def _window(rates: Rates) -> str:
    return "" if rates.seconds is None else f" over {duration(rates.seconds)}"


def _gpu(gpu: GpuView, now: float) -> Witness:
    name = f"gpu {gpu.device.gpu}"
    if gpu.lost:
        return Witness(name, "lost: the driver cannot reach it")
    words = []
    if gpu.utilization_ratio is not None:
        words.append(f"{percent(gpu.utilization_ratio)} busy")
    if gpu.power_watts is not None:
        words.append(f"{gpu.power_watts:.0f} W{_scale(gpu)}")
    if gpu.memory_used_bytes is not None:
        total = f" of {size(gpu.memory_total_bytes)}" if gpu.memory_total_bytes else ""
        words.append(f"{size(gpu.memory_used_bytes)}{total}")
    words += [
        f"slowed by {reason.replace('_', ' ')}" for reason, on in gpu.clock_events.items() if on and "slow" in reason
    ]
    return Witness(name, ", ".join(words) or "the driver tells nothing", _age(now, gpu.last_working_seconds))


def _scale(gpu: GpuView) -> str:
    if gpu.idle_watts is not None and gpu.train_watts is not None:
        effort = f", effort {percent(gpu.effort_ratio)}" if gpu.effort_ratio is not None else ""
        return f" (at rest {gpu.idle_watts:.0f}, training {gpu.train_watts:.0f}{effort})"
    return f" of {gpu.power_limit_watts:.0f} W" if gpu.power_limit_watts else ""


def _log(log: LogView | None, rates: Rates, now: float, *, private: bool) -> Iterator[Witness]:
    if log is None:
        yield Witness("log", "none that can be read")
        return
    words = plural(log.lines_total, "line") + " since it is watched"
    if rates.lines_per_second is not None:
        words += f", {60 * rates.lines_per_second:.0f} a minute"
    if private and log.last_line:
        words += f"; last: {redact.text(log.last_line)}"
    yield Witness("log", words, _age(now, log.last_line_seconds))
    bad = {name: count for (name, kind), count in log.messages_total.items() if count and kind != "benign"}
    if bad:
        yield Witness("messages", ", ".join(f"{name} x {count}" for name, count in bad.items()))


def _results(run: RunView, now: float) -> Iterator[Witness]:
    for split, seconds in run.metrics_updated_seconds.items():
        values = [f"{name} {found.value:.4g}" for (of, name), found in run.metrics.items() if of == split]
        yield Witness(f"{split} metrics", ", ".join(values[:8]) or "none kept", _age(now, seconds))


def _checkpoints(found: CheckpointView, now: float, *, before: bool) -> Witness:
    words = plural(found.count, "complete checkpoint")
    last = [
        "" if found.last_step is None else f" of step {found.last_step:,}",
        "" if found.last_bytes is None else f" with {size(found.last_bytes)}",
    ]
    if any(last):
        words += f", the last{''.join(last)}"
    if before:
        words += ", from before this start"
    if found.in_progress:
        words += f"; writing one, {size(found.in_progress_bytes or 0)} so far"
    if found.interval_seconds is not None:
        words += f"; typically every {duration(found.interval_seconds)}"
    return Witness("checkpoints", words, _age(now, found.last_seconds))
