"""Names of runs: each rule in its order, and the same name wherever and whenever the run is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from training_exporter.runs.naming import Facts, base_name, fit, host_of

FACTS = Facts(
    script="scripts/train.py",
    arguments=("--lr", "1"),
    uid=1000,
    working_directory="/data/eagle3",
    host="node7",
    master="node0",
)


def _name(**changes: object) -> str:
    return base_name(replace(FACTS, **changes))  # type: ignore[arg-type]


class TestScheduler:
    def test_slurm_comes_first(self) -> None:
        """A batch job's number is the name that its user knows."""
        assert _name(environment={"SLURM_JOB_ID": "4311"}, rendezvous_id="mine") == "slurm-4311"

    def test_other_schedulers(self) -> None:
        """PBS and LSF name their jobs likewise."""
        assert _name(environment={"PBS_JOBID": "77.head"}) == "pbs-77.head"
        assert _name(environment={"LSB_JOBID": "12"}) == "lsf-12"


class TestPod:
    @pytest.mark.parametrize(
        ("pod", "owner"),
        [
            ("eagle3-worker-0", "eagle3"),
            ("eagle3-master-0", "eagle3"),
            ("eagle3-0-x7k2p", "eagle3"),
            ("eagle3-workers-0-1-x7k2p", "eagle3-workers"),
            ("serve-7d4b9c6f5d-x7k2p", "serve"),
            ("eagle3-x7k2p", "eagle3"),
            ("stateful-3", "stateful"),
            ("alone", "alone"),
        ],
    )
    def test_owner_of_a_pod(self, pod: str, owner: str) -> None:
        """What a controller appended to its name is taken off, so that every pod of a job gives one name."""
        assert _name(environment={"HOSTNAME": pod, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == owner

    def test_a_control_group_of_kubernetes_is_enough(self) -> None:
        """Pods without service links are still pods."""
        found = _name(environment={"HOSTNAME": "eagle3-worker-0"}, cgroup="/kubepods.slice/x")
        assert found == "eagle3"

    def test_a_host_name_outside_a_pod_is_no_owner(self) -> None:
        """HOSTNAME is exported by many shells."""
        assert _name(environment={"HOSTNAME": "gpu-box-12"}).startswith("train-")

    def test_host_network_says_nothing(self) -> None:
        """A pod on the host's network has the host's name."""
        found = _name(environment={"HOSTNAME": "node7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
        assert found.startswith("train-")


class TestRendezvous:
    def test_id_and_hash_of_the_master(self) -> None:
        """A chosen id names the run; the same id at another master is another run."""
        name = _name(rendezvous_id="eagle3")
        assert name.rpartition("-")[0] == "eagle3"
        assert len(name.rpartition("-")[2]) == 4
        assert _name(rendezvous_id="eagle3", master="other") != name

    def test_same_on_every_node(self) -> None:
        """Host, directory and port of the endpoint do not matter."""
        here = _name(rendezvous_id="eagle3", master="node0:29400")
        there = _name(rendezvous_id="eagle3", master="node0", host="node8", working_directory="/elsewhere")
        assert here == there

    def test_loopback_is_the_host(self) -> None:
        """Two boxes with the same id on localhost are two runs."""
        names = {_name(rendezvous_id="eagle3", master=m, host=h) for m in ("localhost:0", "127.0.0.1") for h in "ab"}
        assert len(names) == 2

    @pytest.mark.parametrize("identifier", ["none", "None", "", "123", "8555f761-8ecd-450d-973d-fca7f3ce3e15", None])
    def test_ids_that_name_nothing(self, identifier: str | None) -> None:
        """Defaults, bare numbers and UUIDs are everybody's or change with each attempt."""
        assert _name(rendezvous_id=identifier) == _name()


class TestScript:
    def test_readable(self) -> None:
        """The script's name and a short hash."""
        assert _name().rpartition("-")[0] == "train"
        assert len(_name().rpartition("-")[2]) == 8

    @pytest.mark.parametrize(
        "change",
        [{"uid": 1001}, {"working_directory": "/x"}, {"script": "b/train.py"}, {"arguments": ("--lr", "2")}],
    )
    def test_what_makes_another_run(self, change: dict[str, object]) -> None:
        """Who, where, what and with which arguments."""
        assert _name(**change) != _name()

    def test_placement_does_not(self) -> None:
        """Node rank, master and rendezvous among the arguments leave the name alone."""
        moved = ("--lr", "1", "--node-rank=3", "--master_addr", "node0", "--local-rank=2")
        assert _name(arguments=moved) == _name()

    def test_host_counts_for_a_single_node_only(self) -> None:
        """Two boxes with the same command are two runs, two nodes of one run are one."""
        assert _name(host="node8") != _name()
        assert _name(host="node8", multi_node=True) == _name(multi_node=True)

    def test_no_script(self) -> None:
        """A launcher whose script is unknown still has a name."""
        assert _name(script="").startswith("run-")


class TestHelpers:
    @pytest.mark.parametrize(
        ("endpoint", "host"),
        [("node0:29500", "node0"), ("node0", "node0"), ("[fe80::1]:29500", "fe80::1"), ("fe80::1", "fe80::1")],
    )
    def test_host_of(self, endpoint: str, host: str) -> None:
        """A port goes, an IPv6 address stays whole."""
        assert host_of(endpoint) == host

    def test_fit(self) -> None:
        """Labels are typed by people: no blanks, quotes, slashes or endless names."""
        assert fit(' my "run"/2 ') == "my-run-2"
        assert len(fit("x" * 500)) == 100
