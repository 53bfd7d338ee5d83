"""The document of `/api/v1/runs` and `status --json`, from which the page and the terminal are drawn too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from training_exporter import __version__, redact
from training_exporter.model import Health
from training_exporter.report import advice
from training_exporter.report.evidence import Witness, expectation, page_time_seconds, risk, unseen, witnesses
from training_exporter.report.history import History, Moment, Rates, between
from training_exporter.runs.view import CheckpointView, GpuView, LogView, NodeView, RunView, Verdict

# Raised when a key changes its meaning or goes; new keys may come at any time. The schema is docs/api.md.
SCHEMA_VERSION = 1

Document = dict[str, Any]


def document(view: NodeView, history: History, *, private: bool) -> Document:
    """Everything known of this node, as JSON values: Unix times and seconds, null where nothing is known.

    Without `private` the job's own words (log text, arguments, paths, names of files) are left out.
    """
    shift = view.wall_shift_seconds
    return {
        "version": SCHEMA_VERSION,
        "exporter_version": __version__,
        "time": view.time_seconds + shift,
        "private": private,
        "sources": {name: _health(health, view) for name, health in view.health.items()},
        "gpus": [_gpu(gpu, view) for gpu in view.gpus],
        "runs": [_run(run, view, history, private=private) for run in view.runs],
    }


def _wall(seconds: float | None, view: NodeView) -> float | None:
    return None if seconds is None else seconds + view.wall_shift_seconds


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON knows no NaN


def _health(health: Health, view: NodeView) -> Document:
    return {
        "success": health.success,
        "stuck": health.stuck,
        "duration_seconds": health.duration_seconds,
        "last_success": _wall(health.last_success_seconds, view),
        "error": None if health.error is None else redact.text(health.error),
    }


def _gpu(gpu: GpuView, view: NodeView) -> Document:
    return {
        "gpu": gpu.device.gpu,
        "uuid": gpu.device.uuid,
        "name": gpu.device.name,
        "lost": gpu.lost,
        "runs": [redact.printable(run.name) for run in view.runs if gpu.device.gpu in run.gpus],
        "utilization_ratio": gpu.utilization_ratio,
        "memory_utilization_ratio": gpu.memory_utilization_ratio,
        "power_watts": gpu.power_watts,
        "power_limit_watts": gpu.power_limit_watts,
        "effort_ratio": gpu.effort_ratio,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_celsius": gpu.temperature_celsius,
        "last_working": _wall(gpu.last_working_seconds, view),
        "clock_events": sorted(reason for reason, active in gpu.clock_events.items() if active),
        "xid_errors": {str(xid): count for xid, count in gpu.xid_errors_total.items()},
    }


def _run(run: RunView, view: NodeView, history: History, *, private: bool) -> Document:
    rates = history.rates(run.name) if run.alive else Rates()  # the minute before an end says nothing of now
    return {
        **_judgement(run, view),
        "evidence": [_witness(found) for found in witnesses(run, view, rates, private=private)],
        "hints": [redact.text(hint) for hint in run.hints],
        "next": list(advice.steps(run)),
        **_facts(run, view),
        "progress": _progress(run, view),
        "metrics": [
            {"split": split, "metric": metric, "value": _number(found.value), "time": _wall(found.time_seconds, view)}
            for (split, metric), found in run.metrics.items()
        ],
        "log": None if run.log is None else _log(run.log, view, private=private),
        "checkpoints": None if run.checkpoints is None else _checkpoints(run.checkpoints, view, private=private),
        "rates": {
            "lines_per_second": rates.lines_per_second,
            "read_bytes_per_second": rates.read_bytes_per_second,
            "written_bytes_per_second": rates.written_bytes_per_second,
            "cpu_cores": rates.cpu_cores,
            "gpu_working_ratio": rates.gpu_working_ratio,
        },
        "history": _history(history.moments(run.name), view),
    }


def _witness(found: Witness) -> Document:
    return {"witness": found.name, "text": found.text, "age_seconds": found.age_seconds}


def _history(moments: tuple[Moment, ...], view: NodeView) -> list[Document]:
    return [_moment(before, moment, view) for before, moment in zip(moments[:1] + moments, moments, strict=False)]


def _moment(before: Moment, moment: Moment, view: NodeView) -> Document:
    rates = between(before, moment)
    return {
        "time": _wall(moment.time_seconds, view),
        "state": moment.state,
        "gpu_working_ratio": rates.gpu_working_ratio,
        "lines_per_second": rates.lines_per_second,
    }


def _verdict(verdict: Verdict, view: NodeView) -> Document:
    return {
        "state": verdict.state,
        "code": verdict.code,
        "cause": verdict.cause or None,
        "since": _wall(verdict.since_seconds, view),
        "sentence": redact.text(verdict.sentence),
    }


def _judgement(run: RunView, view: NodeView) -> Document:
    return {
        "name": redact.printable(run.name),
        "verdict": _verdict(run.verdict, view),
        "alive": run.alive,
        "paging": run.paging,
        "outcome": run.outcome,
        "idle_seconds": run.idle_seconds,
        "no_progress_seconds": run.no_progress_seconds,
        "budgets_seconds": dict(run.budgets_seconds),
        "activity": {signal: _wall(seconds, view) for signal, seconds in run.activity_seconds.items()},
        "blind": sorted(source for source, blind in run.blind.items() if blind),
        "absent": sorted(source for source, absent in run.absent.items() if absent),
        "unseen": unseen(run),
        "expected": expectation(run, view.time_seconds),
        "pages_at": _wall(page_time_seconds(run, view), view),
        "at_risk": risk(run, view),
    }


def _facts(run: RunView, view: NodeView) -> Document:
    return {
        "launcher": redact.printable(run.launcher),
        "script": redact.printable(run.script),
        "job_id": redact.printable(run.job_id),
        "node_rank": redact.printable(run.node_rank),
        "start": _wall(run.start_seconds, view),
        "end": _wall(run.end_seconds, view),
        "observed_since": _wall(run.observed_since_seconds, view),
        "processes": dict(run.processes),
        "process_states": dict(run.process_states),
        "workers_expected": run.workers_expected,
        "restarts": run.restarts_total,
        "restarts_without_progress": run.restarts_without_progress,
        "gpus": list(run.gpus),
        "gpu_memory_bytes": dict(run.gpu_memory_bytes),
        "ranks": [
            {
                "rank": rank.rank,
                "local_rank": rank.local_rank,
                "gpu": rank.gpu,
                "up": rank.up,
                "pid": rank.pid,
                "state": rank.state,
                "wait_channel": rank.wait_channel,
            }
            for rank in run.ranks
        ],
    }


def _progress(run: RunView, view: NodeView) -> Document:
    return {
        "phase": run.phase,
        "phase_start": _wall(run.phase_start_seconds, view),
        "phase_ratio": run.phase_progress_ratio,
        "last_phase_seconds": run.last_phase_seconds,
        "step": run.step,
        "steps_target": run.steps_target,
        "steps_total": run.steps_total,
        "epoch": run.epoch,
        "epochs_target": run.epochs_target,
        "step_interval_seconds": run.step_interval_seconds,
        "loss_nonfinite_streak": run.loss_nonfinite_streak,
        "validations": run.validations_total,
    }


def _log(log: LogView, view: NodeView, *, private: bool) -> Document:
    words: Mapping[str, Any] = {}
    if private:
        words = {
            "last_line": None if log.last_line is None else redact.text(log.last_line),
            "files": [redact.text(path) for path in log.files],
        }
    return {
        "lines": log.lines_total,
        "bytes": log.bytes_total,
        "redraws": log.redraws_total,
        "unread_bytes": log.unread_bytes,
        "dropped_bytes": log.dropped_bytes_total,
        "last_line_time": _wall(log.last_line_seconds, view),
        "messages": [
            {"message": message, "class": severity, "count": count}
            for (message, severity), count in log.messages_total.items()
            if count
        ],
        **words,
    }


def _checkpoints(found: CheckpointView, view: NodeView, *, private: bool) -> Document:
    words: Mapping[str, Any] = {}
    if private:
        words = {
            "last_name": None if found.last_name is None else redact.text(found.last_name),
            "directories": [redact.text(path) for path in found.directories],
            "not_checkpoints": [redact.text(name) for name in found.not_checkpoints],
        }
    return {
        "count": found.count,
        "last": found.last_wall_seconds if found.last_wall_seconds is not None else _wall(found.last_seconds, view),
        "age_seconds": None if found.last_seconds is None else max(0.0, view.time_seconds - found.last_seconds),
        "last_bytes": found.last_bytes,
        "last_step": found.last_step,
        "in_progress": found.in_progress,
        "in_progress_bytes": found.in_progress_bytes,
        "interval_seconds": found.interval_seconds,
        **words,
    }
