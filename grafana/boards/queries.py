"""PromQL that more than one panel needs: the state of runs, ages on the clock of the node, values with a stand-in."""

from __future__ import annotations

from boards.panels import NOT_AVAILABLE
from training_exporter.demo_stack import JOB
from training_exporter.palette import NO_DATA_CODE

RUNS = '{job=~"$job", run=~"$run"}'
RECORDED = '{run=~"$run"}'
RUN = '{run="$run"}'
NODE = '{job=~"$job", instance="$node"}'
NODE_GPU = '{job=~"$job", instance="$node", gpu=~"$gpu"}'
HERE = '{run="$run", instance=~"$node"}'
# As in the rules: what `up` is asked for is the scrape job of this name.
SCRAPED = f'up{{job="{JOB}"}}'
FIRING = 'ALERTS{alertstate="firing", alertname=~"Training.+"}'
UP = f"count({SCRAPED} == 1)"


def state(labels: str) -> str:
    """State code of each run, without a gap.

    The rules know the whole fleet. Without them each node's own verdict speaks, the worst first; and a run of which
    neither is left is "no data" for an hour, because Grafana cannot give a gap a word.
    """
    return (
        f"max by (run) (run:training_state:code{labels})"
        f" or max by (run) (training_run_state_code{labels})"
        f" or max by (run) (last_over_time(training_run_state_code{labels}[1h])) * {NO_DATA_CODE}"
    )


RUN_STATE = state(RUN)


def age(series: str, by: str) -> str:
    """How long ago the moment in `series` (Unix time) was, on the clock of its own node; the least per `by`."""
    clock = "max by (job, instance) (training_exporter_time_seconds)"
    return f"min by ({by}) ({clock} - on (job, instance) group_right () {series})"


def or_not_available(expr: str, everyone: str, by: str = "run") -> str:
    """`expr`, with a stand-in for each of `everyone` that it has nothing for."""
    return f"({expr}) or on ({by}) ({everyone}) * 0 + {NOT_AVAILABLE}"


def while_scraped(count: str) -> str:
    """A count that is 0 only as long as any exporter answers: where nobody looks, nothing must read as a calm 0."""
    return f"{count} or vector(0) and on () {UP}"
