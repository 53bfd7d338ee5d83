"""Metric families from one picture of the node: no I/O, no state, no series twice, unknown = absent."""

from __future__ import annotations

import hashlib
import logging
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from training_exporter import __version__, catalogue
from training_exporter.catalogue import BY_NAME, CATALOGUE, MetricSpec
from training_exporter.model import PROCESS_STATES
from training_exporter.runs.view import CheckpointView, GpuView, LogView, NodeView, RunView

logger = logging.getLogger(__name__)

# Names come from command lines, logs and drivers; longer ones are cut, with a hash so that two stay two.
LABEL_CHARACTERS = 200
# Ten times what a run of 64 ranks on 16 GPUs needs; more is a fault of the job, and must not cost the whole scrape.
MOST_SERIES_PER_RUN = 5000
MOST_SERIES = 50_000


@dataclass(frozen=True, slots=True)
class ReloadState:
    """How the last load of the configuration went; the time is wall-clock Unix time."""

    successful: bool
    success_seconds: float | None


def label(value: object) -> str:
    """A label value that any scraper can take: valid UTF-8, bounded length."""
    text = str(value)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= LABEL_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: LABEL_CHARACTERS - 9]}~{digest}"


class _Sheet:
    """Values by metric and labels, filled in any order and read in the catalogue's."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._count = 0
        self._limit = MOST_SERIES
        self._dropped = 0

    def allow(self, more: int) -> None:
        """From now on only so many more series, and never over MOST_SERIES, are taken; the rest is counted."""
        self._limit = min(MOST_SERIES, self._count + more)

    def note_dropped(self) -> None:
        """Note how many were not taken, beyond every limit."""
        self._values["training_exporter_series_dropped"] = {(): float(self._dropped)}

    def put(self, name: str, value: float | None, *labels: object) -> None:
        """Note a value; None and what is no number leave the series absent."""
        if value is None or not math.isfinite(value):
            return
        series = self._values.setdefault(name, {})
        key = tuple(map(label, labels))
        if key in series:
            return  # a series that stands twice makes the scraper drop the whole scrape
        if self._count >= self._limit:
            self._dropped += 1
            return
        self._count += 1
        series[key] = float(value)

    def put_all(self, name: str, values: Mapping[str, float] | Mapping[str, int], *labels: object) -> None:
        """Note one value per key, which is the last label."""
        for key, value in values.items():
            self.put(name, value, *labels, key)

    def put_set(
        self,
        name: str,
        members: Iterable[str],
        values: Mapping[str, float] | Mapping[str, int],
        *labels: object,
    ) -> None:
        """Note a value for every member of a closed set, 0 where it has none; nothing if nothing is known."""
        if values:
            for member in members:
                self.put(name, values.get(member, 0), *labels, member)

    def families(self) -> Iterator[Metric]:
        for spec in CATALOGUE:
            if values := self._values.get(spec.name):
                family = _family(spec)
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family


def _family(spec: MetricSpec) -> CounterMetricFamily | GaugeMetricFamily:
    build = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    return build(spec.name, spec.help, labels=spec.labels)


def families(view: NodeView, reload_state: ReloadState | None = None) -> Iterator[Metric]:
    """Fresh families in the catalogue's order; those without a series are left out."""
    sheet = _Sheet()
    _put_exporter(sheet, view, reload_state)
    for gpu in view.gpus:
        _put_gpu(sheet, gpu, view.wall_shift_seconds)
    for run in view.runs:
        sheet.allow(MOST_SERIES_PER_RUN)
        _put_run(sheet, run, view)
    sheet.note_dropped()
    yield from sheet.families()


class ViewCollector:
    """What a registry of ours collects from: the newest view at each scrape."""

    def __init__(
        self,
        view: Callable[[], NodeView],
        reload_state: Callable[[], ReloadState | None] = lambda: None,
    ) -> None:
        self._view = view
        self._reload_state = reload_state
        self._dropping = False

    def describe(self) -> Iterator[Metric]:
        """Every family of the catalogue without samples, so that registering collects nothing."""
        return map(_family, BY_NAME.values())

    def collect(self) -> Iterator[Metric]:
        for family in families(self._view(), self._reload_state()):
            if family.name == "training_exporter_series_dropped":
                self._note_change(family.samples[0].value)
            yield family

    def _note_change(self, dropped: float) -> None:
        if dropped and not self._dropping:
            logger.warning("%d series are left out, because a run or the node has too many", dropped)
        self._dropping = dropped > 0


def _wall(seconds: float | None, shift: float) -> float | None:
    return None if seconds is None else seconds + shift


def _put_run(sheet: _Sheet, run: RunView, view: NodeView) -> None:
    shift = view.wall_shift_seconds
    _put_run_identity(sheet, run, shift)
    _put_run_processes(sheet, run)
    _put_ranks(sheet, run)
    if run.log is not None:
        _put_log(sheet, run.name, run.log, shift)
    _put_progress(sheet, run, shift)
    _put_parsed(sheet, run, shift)
    if run.checkpoints is not None:
        _put_checkpoints(sheet, run.name, run.checkpoints, view)
    _put_judgement(sheet, run, shift)


def _put_run_identity(sheet: _Sheet, run: RunView, shift: float) -> None:
    sheet.put("training_run_info", 1, run.name, run.launcher, run.script, run.job_id, run.node_rank)
    sheet.put("training_run_paging", run.paging, run.name)
    sheet.put("training_run_start_time_seconds", _wall(run.start_seconds, shift), run.name)
    sheet.put("training_run_end_time_seconds", _wall(run.end_seconds, shift), run.name)
    observed = _wall(run.observed_since_seconds, shift)
    sheet.put("training_run_observed_since_timestamp_seconds", observed, run.name)
    for outcome in catalogue.OUTCOMES:
        sheet.put("training_run_outcome", outcome == run.outcome, run.name, outcome)


def _put_run_processes(sheet: _Sheet, run: RunView) -> None:
    sheet.put_set("training_run_processes", catalogue.ROLES, run.processes, run.name)
    sheet.put("training_run_workers_expected", run.workers_expected, run.name)
    sheet.put_set("training_run_process_state", PROCESS_STATES, run.process_states, run.name)
    sheet.put("training_run_disk_sleep_seconds", run.disk_sleep_seconds, run.name)
    sheet.put("training_run_stopped_seconds", run.stopped_seconds, run.name)
    sheet.put_all("training_run_cpu_seconds_total", run.cpu_seconds_total, run.name)
    sheet.put("training_run_read_bytes_total", run.read_bytes_total, run.name)
    sheet.put("training_run_written_bytes_total", run.written_bytes_total, run.name)
    sheet.put("training_run_restarts_total", run.restarts_total, run.name)
    sheet.put("training_run_restarts_without_progress", run.restarts_without_progress, run.name)


def _put_ranks(sheet: _Sheet, run: RunView) -> None:
    for rank in run.ranks:
        sheet.put("training_rank_info", 1, run.name, rank.rank, rank.local_rank, rank.gpu or "")
        sheet.put("training_rank_up", rank.up, run.name, rank.rank)
        sheet.put("training_rank_cpu_seconds_total", rank.cpu_seconds_total, run.name, rank.rank)
    for gpu in run.gpus:
        sheet.put("training_run_gpu_info", 1, run.name, gpu)
    sheet.put_all("training_run_gpu_memory_bytes", run.gpu_memory_bytes, run.name)


def _put_log(sheet: _Sheet, run: str, log: LogView, shift: float) -> None:
    sheet.put("training_log_lines_total", log.lines_total, run)
    sheet.put("training_log_bytes_total", log.bytes_total, run)
    sheet.put("training_log_redraws_total", log.redraws_total, run)
    sheet.put("training_log_last_line_timestamp_seconds", _wall(log.last_line_seconds, shift), run)
    sheet.put("training_log_unread_bytes", log.unread_bytes, run)
    sheet.put("training_log_dropped_bytes_total", log.dropped_bytes_total, run)
    sheet.put("training_log_opens_total", log.opens_total, run)
    sheet.put("training_log_rotations_total", log.rotations_total, run)
    sheet.put("training_log_truncations_total", log.truncations_total, run)
    for (message, severity), count in log.messages_total.items():
        sheet.put("training_log_messages_total", count, run, message, severity)
    for severity, seconds in log.last_message_seconds.items():
        sheet.put("training_log_last_message_timestamp_seconds", seconds + shift, run, severity)


def _put_progress(sheet: _Sheet, run: RunView, shift: float) -> None:
    if run.phase is not None:
        for phase in catalogue.PHASES:
            sheet.put("training_phase", phase == run.phase, run.name, phase)
        sheet.put("training_phase_start_time_seconds", _wall(run.phase_start_seconds, shift), run.name)
        sheet.put("training_phase_progress_ratio", run.phase_progress_ratio, run.name)
    sheet.put("training_step", run.step, run.name)
    sheet.put("training_steps_target", run.steps_target, run.name)
    sheet.put("training_steps_total", run.steps_total, run.name)
    sheet.put("training_epoch", run.epoch, run.name)
    sheet.put("training_epochs_target", run.epochs_target, run.name)
    sheet.put("training_step_interval_seconds", run.step_interval_seconds, run.name)
    sheet.put("training_loss_nonfinite_streak", run.loss_nonfinite_streak, run.name)


def _put_parsed(sheet: _Sheet, run: RunView, shift: float) -> None:
    for (split, metric), newest in run.metrics.items():
        sheet.put("training_metric_value", newest.value, run.name, split, metric)
    for split, seconds in run.metrics_updated_seconds.items():
        sheet.put("training_metric_last_update_timestamp_seconds", seconds + shift, run.name, split)
    sheet.put_all("training_metric_nonfinite_total", run.metrics_nonfinite_total, run.name)
    sheet.put("training_validations_total", run.validations_total, run.name)
    if run.log is not None:
        sheet.put("training_metric_dropped_total", run.metrics_dropped_total, run.name)


def _put_checkpoints(sheet: _Sheet, run: str, found: CheckpointView, view: NodeView) -> None:
    sheet.put("training_checkpoints", found.count, run)
    modified = found.last_wall_seconds
    if modified is None:
        modified = _wall(found.last_seconds, view.wall_shift_seconds)
    sheet.put("training_checkpoint_last_timestamp_seconds", modified, run)
    if found.last_seconds is not None:
        sheet.put("training_checkpoint_age_seconds", max(0.0, view.time_seconds - found.last_seconds), run)
    sheet.put("training_checkpoint_last_bytes", found.last_bytes, run)
    sheet.put("training_checkpoint_last_step", found.last_step, run)
    sheet.put("training_checkpoint_in_progress", found.in_progress, run)
    sheet.put("training_checkpoint_in_progress_bytes", found.in_progress_bytes, run)
    sheet.put("training_checkpoint_interval_seconds", found.interval_seconds, run)


def _put_judgement(sheet: _Sheet, run: RunView, shift: float) -> None:
    for signal, seconds in run.activity_seconds.items():
        sheet.put("training_activity_timestamp_seconds", seconds + shift, run.name, signal)
    sheet.put_all("training_budget_seconds", run.budgets_seconds, run.name)
    for source, blind in run.blind.items():
        sheet.put("training_run_blind", blind, run.name, source)
    for source, absent in run.absent.items():
        sheet.put("training_run_absent", absent, run.name, source)
    sheet.put("training_run_state_code", run.verdict.code, run.name)


def _put_gpu(sheet: _Sheet, gpu: GpuView, shift: float) -> None:
    device = gpu.device
    known = (device.name or "", device.pci_bus_id or "", device.driver_version or "")
    sheet.put("training_gpu_info", 1, device.gpu, device.uuid, *known)
    for name, value in _gpu_values(gpu, shift):
        sheet.put(name, value, device.gpu)
    for reason, active in gpu.clock_events.items():
        sheet.put("training_gpu_clock_event_active", active, device.gpu, reason)
    for xid, count in gpu.xid_errors_total.items():
        sheet.put("training_gpu_xid_errors_total", count, device.gpu, xid)


def _gpu_values(gpu: GpuView, shift: float) -> tuple[tuple[str, float | None], ...]:
    return (
        ("training_gpu_utilization_ratio", gpu.utilization_ratio),
        ("training_gpu_memory_utilization_ratio", gpu.memory_utilization_ratio),
        ("training_gpu_busy_seconds_total", gpu.busy_seconds_total),
        ("training_gpu_working_seconds_total", gpu.working_seconds_total),
        ("training_gpu_power_watts", gpu.power_watts),
        ("training_gpu_power_limit_watts", gpu.power_limit_watts),
        ("training_gpu_energy_joules_total", gpu.energy_joules_total),
        ("training_gpu_effort_ratio", gpu.effort_ratio),
        ("training_gpu_memory_used_bytes", gpu.memory_used_bytes),
        ("training_gpu_memory_total_bytes", gpu.memory_total_bytes),
        ("training_gpu_temperature_celsius", gpu.temperature_celsius),
        ("training_gpu_sm_clock_hertz", gpu.sm_clock_hertz),
        ("training_gpu_xid_last_timestamp_seconds", _wall(gpu.xid_last_seconds, shift)),
        ("training_gpu_last_working_timestamp_seconds", _wall(gpu.last_working_seconds, shift)),
        ("training_gpu_unowned_memory_bytes", gpu.unowned_memory_bytes),
        ("training_gpu_lost", gpu.lost),
    )


def _put_exporter(sheet: _Sheet, view: NodeView, reload_state: ReloadState | None) -> None:
    shift = view.wall_shift_seconds
    sheet.put("training_exporter_build_info", 1, __version__, platform.python_version())
    sheet.put("training_exporter_time_seconds", view.time_seconds + shift)
    for source, health in view.health.items():
        sheet.put("training_exporter_collector_success", health.success, source)
        sheet.put("training_exporter_collector_stuck", health.stuck, source)
        sheet.put("training_exporter_collector_duration_seconds", health.duration_seconds, source)
        last = _wall(health.last_success_seconds, shift)
        sheet.put("training_exporter_collector_last_success_timestamp_seconds", last, source)
    if reload_state is not None:
        sheet.put("training_exporter_config_last_reload_successful", reload_state.successful)
        last = reload_state.success_seconds
        sheet.put("training_exporter_config_last_reload_success_timestamp_seconds", last)
