"""The rules over several nodes of one run, several runs of one node, and exporters that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rule_fleet import Node
from rule_player import Played, play, promtools

pytestmark = pytest.mark.parametrize("promtool", promtools())

QUIET, TRAINING, UNKNOWN, STALLED, DEGRADED = 60, 30, 65, 80, 90
NODES = 4
GPUS = 8


@pytest.fixture
def fleet() -> list[Node]:
    """Four nodes with eight GPUs, one run over all of them, its log only on the first; the clocks are apart."""
    nodes = [Node(f"node-{index}", GPUS, skew_seconds=index * 250) for index in range(NODES)]
    for index, node in enumerate(nodes):
        share = node.share("big", range(index * GPUS, index * GPUS + GPUS), phase="training" if index == 0 else None)
        # those without the log stay in the long budget of a start
        share.idle_budget = 600 if index == 0 else 1800
        share.absent["logs"] = int(index > 0)
    return nodes


def let_train(nodes: list[Node], minutes: int) -> None:
    """Everything moves, the log only where it is."""
    for index, node in enumerate(nodes):
        node.pass_(minutes, "gpu", "cpu", *(("step", "log") if index == 0 else ()))


def judge(promtool: str, nodes: list[Node], folder: Path) -> Played:
    """What the rules say of all these nodes together."""
    return play(promtool, [node.recording() for node in nodes], folder)


class TestOneRunOnFourNodes:
    def test_trains_in_silence(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """Three nodes without a log do not make the run a starting one, and raise nothing."""
        let_train(fleet, 60)
        played = judge(promtool, fleet, tmp_path)
        assert played.ever("critical", "warning", "info") == set()
        assert played.codes[50] == {"big": TRAINING}

    def test_one_spinning_rank_keeps_nothing_alive(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """All GPUs rest but one that spins: found by the budget of the node with the log, as a hung collective."""
        let_train(fleet, 20)
        for node in fleet:
            node.looks = dict.fromkeys(node.gpus, "rests")
        fleet[2].looks["5"] = "spins"
        for node in fleet:
            node.pass_(30)
        played = judge(promtool, fleet, tmp_path)
        assert played.minutes("TrainingStalled", cause="collective", run="big") == list(range(31, 50))
        assert played.ever("critical") == {"TrainingStalled"}
        assert played.codes[45] == {"big": STALLED}

    def test_one_silent_node_is_no_stall(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """A node that shows nothing while the others work is what a pipeline or a rank-0 phase looks like."""
        let_train(fleet, 20)
        fleet[3].looks = dict.fromkeys(fleet[3].gpus, "rests")
        let_train(fleet[:3], 40)
        fleet[3].pass_(40)
        played = judge(promtool, fleet, tmp_path)
        assert played.ever("critical", "warning") == set()
        assert played.codes[55] == {"big": TRAINING}

    def test_progress_on_the_first_node_alone_is_progress(
        self, promtool: str, fleet: list[Node], tmp_path: Path
    ) -> None:
        """Only the log moves, on the node that has it."""
        let_train(fleet, 20)
        fleet[0].pass_(40, "validation")
        for node in fleet[1:]:
            node.pass_(40)
        played = judge(promtool, fleet, tmp_path)
        assert played.ever("critical", "warning") == set()

    def test_lost_rank_and_gpu_are_one_alert_each(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """Two ranks and one GPU on different nodes: one alert per run and kind, not one per node."""
        let_train(fleet, 20)
        fleet[1].shares["big"].rank_up[9] = 0
        fleet[2].shares["big"].rank_up[16] = 0
        fleet[3].lost.add("7")
        for node in fleet:
            node.looks = {gpu: "spins" for gpu in node.gpus if gpu not in node.lost}
            node.pass_(10)
        played = judge(promtool, fleet, tmp_path)
        assert played.alerts(25) == {"TrainingWorkerLost", "TrainingGpuLost"}
        assert len(played.firing[25]) == 2
        assert played.codes[25] == {"big": DEGRADED}

    def test_rolling_restart_hides_no_stall(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """The exporters are upgraded one after the other, each away for three minutes, while the run is stalled."""
        let_train(fleet, 20)
        for index, node in enumerate(fleet):
            node.looks = dict.fromkeys(node.gpus, "rests")
            node.pass_(15 + 4 * index)
            node.scraped = False
            node.pass_(3)
            node.scraped = True
            node.shares["big"].observed_since = node._now
            node.pass_(50 - 15 - 4 * index - 3)
        played = judge(promtool, fleet, tmp_path)
        assert played.minutes("TrainingStalled", cause="host") == list(range(31, 70))

    def test_blind_node_prevents_a_verdict_and_warns(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """One node went away before the others fell silent: that may be work unseen, so it is unknown."""
        let_train(fleet, 20)
        for node in fleet:
            node.looks = dict.fromkeys(node.gpus, "rests")
        fleet[3].scraped = False
        for node in fleet:
            node.pass_(30)
        played = judge(promtool, fleet, tmp_path)
        assert played.codes[45] == {"big": UNKNOWN}
        assert played.minutes("TrainingStalled") == []
        assert played.minutes("TrainingExporterDown", severity="warning", run="big", instance="node-3")

    def test_whole_fleet_unreachable(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """Nobody reports the run any more: critical, and no stall is made up."""
        let_train(fleet, 20)
        for node in fleet:
            node.scraped = False
            node.pass_(20)
        played = judge(promtool, fleet, tmp_path)
        assert played.ever("critical") == {"TrainingExporterDown"}
        assert len(played.firing[30]) == NODES
        assert played.codes[35] == {"big": UNKNOWN}

    def test_missed_scrapes(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """A fifth of the scrapes fails on every node: nothing in training, the stall in time and without a gap."""
        let_train(fleet, 40)
        for node in fleet:
            node.looks = dict.fromkeys(node.gpus, "spins")
            node.pass_(30)
        recordings = [node.recording().without(0.2, seed) for seed, node in enumerate(fleet)]
        played = play(promtool, recordings, tmp_path)
        fired = played.minutes("TrainingStalled", cause="collective")
        assert fired == list(range(fired[0], 70))
        assert fired[0] <= 56
        assert played.ever("critical", "warning") == {"TrainingStalled"}


class TestTwoRunsOnANode:
    def test_each_has_its_own_verdict(self, promtool: str, tmp_path: Path) -> None:
        """Two runs side by side on one node, each with its own GPUs; one hangs."""
        node = Node("node-0", 4)
        node.share("a", range(2))
        other = node.share("b", range(2))
        other.gpus = {0: "2", 1: "3"}
        node.pass_(20, "step", "gpu")
        node.looks |= {"2": "spins", "3": "spins"}
        node.pass_(25, "step", "gpu", run="a")
        played = judge(promtool, [node], tmp_path)
        assert played.codes[40] == {"a": TRAINING, "b": STALLED}
        assert played.minutes("TrainingStalled", cause="collective", run="b") == list(range(31, 45))
        assert played.minutes("TrainingGpuIdle", run="b") == list(range(26, 45))
        assert {dict(labels)["run"] for fired in played.firing.values() for labels in fired} == {"b"}

    def test_shared_gpu_speaks_for_neither(self, promtool: str, tmp_path: Path) -> None:
        """Two runs use the same GPU; one hangs on the host while the other keeps the GPU at work."""
        node = Node("node-0", 1)
        node.share("a", range(1))
        node.share("b", range(1))
        node.pass_(20, "step")
        node.pass_(25, "step", run="a")
        played = judge(promtool, [node], tmp_path)
        assert played.codes[40] == {"a": TRAINING, "b": STALLED}
        assert played.minutes("TrainingStalled", cause="host", run="b") == list(range(31, 45))
        assert played.ever("critical", "warning") == {"TrainingStalled"}


class TestMovedRun:
    def test_attempt_on_other_nodes_is_not_held_blind(self, promtool: str, fleet: list[Node], tmp_path: Path) -> None:
        """A node dies, the job starts again on three old and one new node, and hangs there: that pages."""
        let_train(fleet, 20)
        dead, spare = fleet[3], Node("node-4", GPUS)
        spare.pass_(26)
        dead.scraped = False
        dead.pass_(60)
        for node in fleet[:3]:
            node.looks = dict.fromkeys(node.gpus, "rests")
            node.pass_(6)
            share = node.shares["big"]
            share.started = share.observed_since = node._now
        spare.share("big", range(24, 32), phase=None).absent["logs"] = 1
        spare.looks = dict.fromkeys(spare.gpus, "rests")
        live = [*fleet[:3], spare]
        for node in live:
            node.looks = dict.fromkeys(node.gpus, "works")
        let_train(live, 20)
        for node in live:
            node.looks = dict.fromkeys(node.gpus, "spins")
            node.pass_(34)
        played = judge(promtool, [*live, dead], tmp_path)
        assert played.minutes("TrainingStalled", cause="collective") == list(range(57, 80))
