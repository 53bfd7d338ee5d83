"""Numbers and names from command lines and environments."""

from __future__ import annotations

import base64
import json

import pytest

from tables import process, ranks_below, torchrun
from training_exporter.model import Rank
from training_exporter.runs.facts import GroupFacts
from training_exporter.runs.grouping import Group


def _facts(
    launcher_arguments: str = "train.py", *, ranks: int = 0, kind: str = "torchrun", **environment: str
) -> GroupFacts:
    launcher = torchrun(arguments=launcher_arguments)
    found = [Rank(n, n, rank) for n, rank in enumerate(ranks_below(launcher, ranks, **environment))]
    return GroupFacts(Group(kind, launcher, found), "node7")


class TestMultiNode:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [("", False), ("--nnodes=1", False), ("--nnodes 2", True), ("--nnodes=1:4", True), ("--nnodes=1:1", False)],
    )
    def test_torchrun_says_it(self, options: str, expected: bool) -> None:
        """Elastic ranges count by their upper end, so that the name does not depend on who came."""
        assert _facts(f"{options} train.py").multi_node is expected

    def test_ranks_say_it(self) -> None:
        """Where the command is silent, the groups that torchrun counts, or more ranks than this node has."""
        assert _facts(ranks=2, GROUP_WORLD_SIZE="2").multi_node
        assert _facts(ranks=2, GROUP_WORLD_SIZE="", WORLD_SIZE="16").multi_node
        assert not _facts(ranks=2, GROUP_WORLD_SIZE="").multi_node

    @pytest.mark.parametrize(("hosts", "expected"), [(1, False), (2, True)])
    def test_deepspeed_says_it(self, hosts: int, expected: bool) -> None:
        """Its world is JSON in base64."""
        world = base64.urlsafe_b64encode(json.dumps({f"h{n}": [0, 1] for n in range(hosts)}).encode()).decode()
        launcher = process(100, 1, f"python3 -m deepspeed.launcher.launch --world_info={world} train.py")
        assert GroupFacts(Group("deepspeed", launcher), "node7").multi_node is expected

    def test_a_broken_world_is_one_node(self) -> None:
        """Text that is no JSON is no reason to fail."""
        launcher = process(100, 1, "python3 -m deepspeed.launcher.launch --world_info=%%% train.py")
        assert GroupFacts(Group("deepspeed", launcher), "node7").multi_node is False


class TestNumbers:
    def test_before_the_first_rank(self) -> None:
        """The command tells workers and node, as the ranks will later."""
        before, after = _facts("--nproc-per-node=2 train.py"), _facts("--nproc-per-node=2 train.py", ranks=2)
        assert (before.workers_expected, before.node_rank) == (2, "0")
        assert (after.workers_expected, after.node_rank) == (2, "0")

    def test_node_rank_of_many(self) -> None:
        """A node that was not told its number has none until a rank says it."""
        assert _facts("--nnodes=2 train.py").node_rank == ""
        assert _facts("--nnodes=2 --node-rank=1 train.py").node_rank == "1"
        assert _facts("--nnodes=2 train.py", ranks=2, GROUP_RANK="1").node_rank == "1"

    def test_automatic_workers(self) -> None:
        """`--nproc-per-node=gpu` is no number."""
        assert _facts("--nproc-per-node=gpu train.py").workers_expected is None

    def test_restarts_are_the_newest_ranks(self) -> None:
        """While the set is being replaced the higher count is right."""
        launcher = torchrun()
        old, _ = ranks_below(launcher, 2, TORCHELASTIC_RESTART_COUNT="1")
        assert old.environment is not None
        mixed = [
            Rank(0, 0, old),
            Rank(1, 1, process(9, 1, "x", environment={**old.environment, "TORCHELASTIC_RESTART_COUNT": "2"})),
        ]
        assert GroupFacts(Group("torchrun", launcher, mixed), "node7").restart_count == 2


class TestNaming:
    def test_rendezvous_of_the_command_and_of_the_ranks(self) -> None:
        """The endpoint that was told comes first: it stands before there is a rank, and is the same on every node."""
        before = _facts("--nnodes=2 --rdzv-id=eagle3 --rdzv-endpoint=node0:29400 train.py").naming()
        after = _facts("--nnodes=2 --rdzv-id=eagle3 --rdzv-endpoint=node0:29400 train.py", ranks=2).naming()
        assert (before.rendezvous_id, before.master) == (after.rendezvous_id, after.master) == ("eagle3", "node0:29400")

    def test_launcher_and_rank_give_the_same_script(self) -> None:
        """So that ranks which outlive their launcher keep the name."""
        launcher = torchrun(arguments="--nproc-per-node=1 a/train.py --lr 1")
        (rank,) = ranks_below(launcher, 1, "python3 -u a/train.py --lr 1")
        both = [GroupFacts(Group("torchrun", head, [Rank(0, 0, rank)]), "node7").naming() for head in (launcher, None)]
        assert [(facts.script, facts.arguments) for facts in both] == [("a/train.py", ("--lr", "1"))] * 2
