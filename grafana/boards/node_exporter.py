"""The runs on one node, and the health of the exporter there."""

from __future__ import annotations

from boards.board import run_link
from boards.panels import (
    ACT,
    CALM,
    NOT_AVAILABLE,
    PLAIN,
    Field,
    Head,
    Json,
    bands,
    column,
    now,
    series,
    stat,
    state_mappings,
    table,
    target,
    value_mappings,
)
from boards.queries import NODE, SCRAPED

SCRAPE = SCRAPED.removesuffix("}") + ', instance="$node"}'
NO_TARGET = -1
STUCK = 2
NO_RUN = "No run on this node"


def reachable() -> Json:
    """Whether the exporter answers."""
    return stat(
        Head(
            4,
            "Exporter",
            "Whether the last scrape of this node's exporter succeeded. If not, nothing below is of now.",
            "Prometheus does not answer",
        ),
        [now(f"min({SCRAPE}) or vector({NO_TARGET})")],
        Field(mappings=value_mappings((1, "Answers", CALM), (0, "DOWN", ACT), (NO_TARGET, "No longer a target", ACT))),
        fill=True,
    )


def runs_here() -> Json:
    """How many runs are alive on the node."""
    return stat(
        Head(5, "Runs alive here", "Runs with a launcher or rank on this node.", NO_RUN),
        [now(f"count(sum by (run) (training_run_processes{NODE}) > 0) or count(training_run_info{NODE}) * 0")],
        Field(),
    )


def states() -> Json:
    """The runs as this node sees them, over time."""
    return bands(
        Head(
            10,
            "Runs on this node, as it sees them",
            "The verdict from this node alone; that on the whole run is on its own dashboard. A click opens the run.",
            NO_RUN,
        ),
        [target(f"max by (run) (training_run_state_code{NODE})", "{{run}}")],
        Field(mappings=state_mappings(), links=[run_link("${__field.labels.run:percentencode}")]),
    )


def processes() -> Json:
    """Processes by run and role over time."""
    return series(
        Head(40, "Processes", "Of each run on this node, by role.", "The process table cannot be read"),
        [target(f"max by (run, role) (training_run_processes{NODE})", "{{run}} {{role}}")],
        Field(least=0),
        step=True,
    )


def cores() -> Json:
    """CPU by run over time."""
    return series(
        Head(41, "CPU cores in use", "By all processes of each run on this node.", "/proc may not be read"),
        [target(f"sum by (run) (rate(training_run_cpu_seconds_total{NODE}[$__rate_interval]))", "{{run}}")],
        Field("suffix: cores", least=0),
    )


def collectors() -> Json:
    """Health of each source over time."""
    return bands(
        Head(
            50,
            "Sources",
            "Stuck: the running call is past its deadline, as on a driver or a file system that does not answer. A "
            "source that fails publishes no data instead of its last.",
            "No answer from this exporter in this time",
        ),
        [
            target(
                f"max by (collector) (training_exporter_collector_stuck{NODE} == 1) * {STUCK}"
                f" or max by (collector) (training_exporter_collector_success{NODE})",
                "{{collector}}",
            )
        ],
        Field(mappings=value_mappings((1, "Works", CALM), (0, "FAILS", ACT), (STUCK, "STUCK", ACT))),
    )


def staleness() -> Json:
    """How old the newest success of each source is, over time."""
    return series(
        Head(
            51,
            "Age of the last success",
            "Per source. A line that rises is a source that publishes nothing.",
            "No answer from this exporter in this time",
        ),
        [
            target(
                "min by (collector) (max by (job, instance) (training_exporter_time_seconds) - on (job, instance)"
                f" group_right () training_exporter_collector_last_success_timestamp_seconds{NODE})",
                "{{collector}}",
            )
        ],
        Field("s", least=0),
    )


def durations() -> Json:
    """How long the calls of each source take, over time."""
    return series(
        Head(52, "Duration of the last call", "Per source.", "No answer from this exporter in this time"),
        [target(f"max by (collector) (training_exporter_collector_duration_seconds{NODE})", "{{collector}}")],
        Field("s", least=0),
    )


def log_backlog() -> Json:
    """What of the logs was not read, over time."""
    return series(
        Head(
            53,
            "Log bytes not read",
            "Waiting to be read, per run, and bytes a second that were skipped. Both are near 0 in normal use.",
            "No log is readable",
        ),
        [
            target(f"max by (run) (training_log_unread_bytes{NODE})", "{{run}} waiting"),
            target(
                f"max by (run) (rate(training_log_dropped_bytes_total{NODE}[$__rate_interval]))", "{{run}} skipped/s"
            ),
        ],
        Field("bytes", least=0),
    )


def version() -> Json:
    """What runs here."""
    return table(
        Head(54, "Version", "Of the exporter and its Python.", "No answer from this exporter"),
        [column(f"max by (version, python_version) (training_exporter_build_info{NODE})")],
        names={"version": "Exporter", "python_version": "Python", "Value": ""},
    )


def reload_state() -> Json:
    """Whether the configuration is the one asked for."""
    return stat(
        Head(
            55,
            "Configuration",
            "Whether the last reload of the configuration succeeded; after a failed one the old stays in force.",
            "No answer from this exporter",
        ),
        [
            now(
                f"min(training_exporter_config_last_reload_successful{NODE})"
                f" or max(training_exporter_build_info{NODE}) * {NOT_AVAILABLE}"
            )
        ],
        Field(
            mappings=value_mappings(
                (1, "As asked for", CALM), (0, "Last reload FAILED", ACT), (NOT_AVAILABLE, "No reload told", PLAIN)
            )
        ),
    )
