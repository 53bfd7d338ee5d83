"""One node: its GPUs, the runs on it, and the health of its exporter."""

from __future__ import annotations

from boards import node_exporter, node_gpus
from boards.board import Band, Identity, Section, annotation, band, board_link, dashboard, datasource_variable, variable
from boards.panels import ACT, Json
from boards.queries import FIRING

IDENTITY = Identity(
    uid="training-node",
    title="Training / Node",
    about="The GPUs of one node with their clocks, errors and memory, the runs that use them, and whether the exporter "
    "that says so is well.",
    since="6h",
)


def build() -> Json:
    """The dashboard `training-node`."""
    return dashboard(
        IDENTITY,
        (
            Section(0, "", _top()),
            Section(101, "GPUs", _gpus()),
            Section(102, "Clocks and errors", _faults()),
            Section(103, "Processes of runs", _processes()),
            Section(104, "Exporter", _exporter()),
        ),
        variables=(
            datasource_variable(),
            variable("job", "Scrape job", "training_exporter_build_info", "job", many=True),
            variable("node", "Node", 'training_exporter_build_info{job=~"$job"}', "instance", many=False),
            variable("gpu", "GPU", 'training_gpu_info{job=~"$job", instance="$node"}', "gpu", many=True),
        ),
        annotations=(
            annotation(
                "Alert",
                f'max by (alertname, severity) ({FIRING.removesuffix("}")}, instance="$node"}} == 1)',
                ACT,
                "{{alertname}} ({{severity}}) is firing",
            ),
        ),
        links=(board_link("Fleet", "training-fleet"), board_link("Run", "training-run")),
    )


def _top() -> tuple[Band, ...]:
    return (
        band(
            4,
            (5, node_exporter.reachable()),
            (4, node_exporter.runs_here()),
            (5, node_gpus.lost()),
            (5, node_gpus.slowed()),
            (5, node_gpus.unowned()),
        ),
        band(6, (24, node_exporter.states())),
        band(8, (24, node_gpus.overview())),
    )


def _gpus() -> tuple[Band, ...]:
    return (
        band(8, (12, node_gpus.resident()), (12, node_gpus.working())),
        band(8, (12, node_gpus.power()), (12, node_gpus.memory())),
        band(8, (12, node_gpus.temperature()), (12, node_gpus.energy())),
    )


def _faults() -> tuple[Band, ...]:
    return (
        band(8, (12, node_gpus.throttling()), (12, node_gpus.clock())),
        band(7, (12, node_gpus.driver_errors()), (12, node_gpus.unowned_memory())),
    )


def _processes() -> tuple[Band, ...]:
    return (band(8, (12, node_exporter.processes()), (12, node_exporter.cores())),)


def _exporter() -> tuple[Band, ...]:
    return (
        band(6, (12, node_exporter.collectors()), (12, node_exporter.staleness())),
        band(7, (12, node_exporter.durations()), (12, node_exporter.log_backlog())),
        band(4, (12, node_exporter.version()), (12, node_exporter.reload_state())),
    )
