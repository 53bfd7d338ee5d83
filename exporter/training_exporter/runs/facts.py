"""What the command lines and environments of a run's processes say: script, numbers, node, job, name."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from training_exporter.model import ProcessRecord
from training_exporter.runs import naming, roles
from training_exporter.runs.arguments import Launch, invocation, launch
from training_exporter.runs.grouping import Group


class GroupFacts:
    """Reads one group: the launcher's word first, because it stands from the first moment, then a rank's."""

    def __init__(self, group: Group, host: str) -> None:
        self._group = group
        self._host = host
        self._rank_environment = group.ranks[0].process.environment or {} if group.ranks else {}
        self._head_environment = group.owner.environment or {}
        self.launch = _told(group.launcher)
        self.script, self.arguments = self._program()

    @property
    def environment(self) -> Mapping[str, str]:
        """The launcher's, completed by the first rank's."""
        return {**self._rank_environment, **self._head_environment}

    @property
    def label(self) -> str:
        """The script as shown: `train.py`, `torchtune.cli.run`."""
        return PurePosixPath(self.script).name

    @property
    def job_id(self) -> str:
        return naming.job_id(self.environment)

    @property
    def node_rank(self) -> str:
        """Number of this node in the run, or "" where nobody says."""
        told = self.launch.option("node_rank", "machine_rank")
        number = self._number("GROUP_RANK", "PET_NODE_RANK", "NODE_RANK", "SLURM_NODEID")
        if number is not None:
            return str(number)
        if told is not None and told.isdigit():
            return told
        return "0" if self._group.kind == "torchrun" and not self.multi_node else ""

    @property
    def multi_node(self) -> bool:
        """Whether the run spans nodes; False where nobody says."""
        told = self.launch.option("nnodes", "num_machines", "num_nodes") or self.environment.get("PET_NNODES")
        if told:
            return told.rpartition(":")[2] != "1"
        if world := self.launch.option("world_info"):
            return _hosts(world) > 1
        nodes = self._number("GROUP_WORLD_SIZE")
        if nodes is None and not self._group.ranks:
            return False
        return nodes > 1 if nodes is not None else self._spans_ranks()

    @property
    def settled(self) -> bool:
        """Whether the name is certain: how many nodes there are stands in the command, or is torchrun's default of 1.

        For accelerate and deepspeed it may stand in a file, and only their ranks tell.
        """
        told = self.launch.option("nnodes", "num_machines", "num_nodes", "world_info")
        return bool(self._group.ranks) or self._group.kind == "torchrun" or told is not None

    @property
    def workers_expected(self) -> int | None:
        """Ranks that this node should have; None where nobody says."""
        number = self._rank_number(*roles.LOCAL_SIZE_KEYS)
        if number is not None:
            return number
        told = self.launch.option("nproc_per_node", "num_gpus", "nproc")
        return int(told) if told is not None and told.isdigit() else None

    @property
    def world_size(self) -> int | None:
        return self._rank_number(*roles.WORLD_SIZE_KEYS)

    @property
    def restart_count(self) -> int | None:
        """How often torchelastic replaced the worker set, by its own count."""
        counts = [
            roles.first_number(rank.process.environment, ("TORCHELASTIC_RESTART_COUNT",)) for rank in self._group.ranks
        ]
        return max((count for count in counts if count is not None), default=None)

    def naming(self) -> naming.Facts:
        """What a name is made of."""
        environment = self.environment
        owner = self._group.owner
        return naming.Facts(
            script=self.script,
            arguments=self.arguments,
            environment=environment,
            cgroup=owner.cgroup,
            uid=owner.uid,
            working_directory=owner.working_directory,
            rendezvous_id=self.launch.option("rdzv_id")
            or environment.get("PET_RDZV_ID")
            or environment.get("TORCHELASTIC_RUN_ID"),
            master=self.launch.option("rdzv_endpoint", "master_addr", "main_process_ip")
            or environment.get("PET_RDZV_ENDPOINT")
            or environment.get("PET_MASTER_ADDR")
            or environment.get("MASTER_ADDR"),
            host=self._host,
            multi_node=self.multi_node,
        )

    def _program(self) -> tuple[str, tuple[str, ...]]:
        if self.launch.script:
            return self.launch.script, self.launch.arguments
        if self._group.launcher is not None and self._group.kind in {"spawn", "ray"}:
            call = invocation(self._group.launcher.command)
        else:
            call = invocation(self._group.ranks[0].process.command if self._group.ranks else None)
        return call.program, call.arguments

    def _number(self, *keys: str) -> int | None:
        return roles.first_number(self.environment, keys)

    def _rank_number(self, *keys: str) -> int | None:
        return roles.first_number(self._rank_environment, keys)

    def _spans_ranks(self) -> bool:
        world, local = self.world_size, self._rank_number(*roles.LOCAL_SIZE_KEYS)
        nodes = self._number("SLURM_STEP_NUM_NODES")
        if nodes is not None:
            return nodes > 1
        return world is not None and local is not None and world > local


def _told(launcher: ProcessRecord | None) -> Launch:
    """The options of a launcher that takes a script; none of one that starts anything."""
    call = invocation(launcher.command if launcher is not None else None)
    if launcher is None or (kind := roles.launcher_kind(launcher)) is None or roles.starts_anything(kind):
        return Launch((), "", ())
    subcommand = bool(call.arguments) and (call.name, call.arguments[0]) in roles.SUBCOMMANDS
    return launch(call.arguments[1:] if subcommand else call.arguments)


def _hosts(world_info: str) -> int:
    """Number of hosts in deepspeed's `--world_info`: base64 of a JSON object from host to its GPUs."""
    try:
        return len(json.loads(base64.urlsafe_b64decode(world_info)))
    except (binascii.Error, ValueError, TypeError):
        return 1
