"""Where the text of a run goes: files behind descriptors, pipes and containers, and what to tell a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import PurePosixPath

from training_exporter.model import LogTarget, OutputTarget, ProcessRecord, Rank
from training_exporter.runs import roles
from training_exporter.runs.arguments import invocation, launch, options
from training_exporter.runs.grouping import Group
from training_exporter.runs.tree import Tree

MAX_PIPES = 8  # of one pipeline: a | b | tee file
MAX_TARGETS = 64  # of one run

HINT_TERMINAL = "the output goes to a terminal and cannot be read: start the run with `2>&1 | tee FILE`"
HINT_NULL = "the output is thrown away (/dev/null): send it to a file"
HINT_SOCKET = "the output goes to a socket (journald?) and cannot be read: send it to a file as well"
HINT_PIPE = "the output goes into a pipe whose other end writes no file that can be found"
HINT_DENIED = "the output cannot be seen with the exporter's rights"
HINTS = {"terminal": HINT_TERMINAL, "null": HINT_NULL, "socket": HINT_SOCKET, "pipe": HINT_PIPE}

LOG_FILE = re.compile(r"\.(?:log|out|txt)$")
# A container's identifier in a control group path that only root can make: Docker, containerd, CRI-O and Podman.
CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
POD = re.compile(r"kubepods[^/]*[/-].*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


class Outputs:
    """Finds the log targets of one group, and the hints where there is none."""

    def __init__(self, run: str, group: Group, tree: Tree) -> None:
        self._run = run
        self._group = group
        self._tree = tree
        # by path, here and in a container: its processes see the same file, each through a root of its own
        self._targets: dict[tuple[bool, str], LogTarget] = {}
        self._missed: set[str] = set()

    def find(self) -> tuple[LogTarget, ...]:
        """The launcher's and the ranks' files; if there is none, what else of the run's text is in a file."""
        group = self._group
        if group.launcher is not None and not roles.starts_anything(group.kind):
            self._follow(group.launcher, None)
        if not (self._targets and self._console_repeats_ranks()):
            for rank in group.ranks:
                self._follow(rank.process, rank)
            for actor in group.companions if group.kind == "ray" else ():
                self._follow(actor, None)
        if not self._targets:
            self._from_container()
        if not self._targets:
            self._from_files()
        return tuple(islice(self._targets.values(), MAX_TARGETS))

    def hints(self) -> tuple[str, ...]:
        """Why there is no text; nothing where there is."""
        if self._targets:
            return ()
        if not any(process.outputs for process in self._heads()):
            return (HINT_DENIED,) if any(process.environment is None for process in self._heads()) else ()
        return tuple(hint for kind, hint in HINTS.items() if kind in self._missed)[:1]

    def _heads(self) -> Iterator[ProcessRecord]:
        if self._group.launcher is not None:
            yield self._group.launcher
        for rank in self._group.ranks:
            yield rank.process

    def _console_repeats_ranks(self) -> bool:
        """`torchrun --tee` and Ray's driver write every line of the ranks' files to their own output too."""
        if self._group.kind == "ray":
            return True
        launcher = self._group.launcher
        call = invocation(launcher.command if launcher is not None else None)
        return launch(call.arguments).option("tee", "t") not in {None, "", "0"}

    def _follow(self, process: ProcessRecord, rank: Rank | None) -> None:
        for output in process.outputs:
            if output.kind == "file":
                self._add(process, output.path, rank)
            elif output.kind == "pipe":
                if not self._follow_pipe(output) and not self._from_scheduler(process, rank):
                    self._missed.add("pipe")
            elif output.kind == "socket" and self._from_scheduler(process, rank):
                continue
            else:
                self._missed.add(output.kind)

    def _follow_pipe(self, output: OutputTarget, depth: int = 0) -> bool:
        """The file in which what goes through a pipe ends up: one for each of its readers, or for theirs."""
        found = False
        for reader in self._tree.records.values():
            if reader.input_pipe != output.path or depth >= MAX_PIPES:
                continue
            if path := _written(reader):
                self._add(reader, path, None)
                found = True
            else:  # its own complaints, on descriptor 2, are no text of the run
                onward = [target for target in reader.outputs if target.kind == "pipe" and target.descriptor == 1]
                found |= any([self._follow_pipe(target, depth + 1) for target in onward])  # noqa: C419  all of them, not the first
        return found

    def _from_scheduler(self, process: ProcessRecord, rank: Rank | None) -> bool:
        """Slurm reads the pipe: srun on this node, the batch script or slurmstepd itself has the file."""
        step = next((above for above in self._tree.ancestors(process) if above.name == "slurmstepd"), None)
        if step is None:
            return False
        job = (process.environment or {}).get("SLURM_JOB_ID")
        carriers = [record for record in self._tree.records.values() if _carries_output(record, job)]
        found = [(record, t.path) for record in carriers for t in record.outputs if t.kind == "file"]
        if found:
            self._add(*found[0], None)
        own = [path for path in step.open_files if LOG_FILE.search(path)] if not found else []
        for path in own:
            self._add(process, path, rank)
        return bool(found or own)

    def _from_container(self) -> None:
        """Container runtimes keep the output themselves; those files are root's, at places that only root chooses."""
        head = self._group.owner
        group = head.cgroup or ""
        if "pipe" not in self._missed or group.startswith("/user.slice"):
            return
        if pod := POD.search(group):
            self._add_own(f"/var/log/pods/*_{pod[1].replace('_', '-')}/*/*.log")
        elif conmon := next((a for a in self._tree.ancestors(head) if a.name == "conmon"), None):
            for key, value in options(conmon.command or ()):
                if key in {"l", "log_path"}:
                    self._add_own(value.removeprefix("k8s-file:"))
        elif container := CONTAINER.search(group):
            self._add_own(f"/var/lib/docker/containers/{container[1]}/{container[1]}-json.log")

    def _from_files(self) -> None:
        """W&B keeps a copy of the console; else files of the ranks that are called like logs."""
        for process in self._family():
            for path in process.open_files:
                directory = PurePosixPath(path).parent
                if path.endswith(".wandb"):
                    self._add(process, str(directory / "files" / "output.log"), None)
                elif directory.name == "files" and path.endswith("/output.log"):
                    self._add(process, path, None)
        if not self._targets:
            for rank in self._group.ranks:
                for path in rank.process.open_files:
                    if LOG_FILE.search(path):
                        self._add(rank.process, path, rank)

    def _family(self) -> Iterable[ProcessRecord]:
        for rank in self._group.ranks:
            yield rank.process
            yield from self._tree.below(rank.process)

    def _add(self, process: ProcessRecord, path: str | None, rank: Rank | None) -> None:
        if not path:
            return
        key = process.root != "/", path
        known = self._targets.get(key)
        shared = known is not None and known.rank != (rank.rank if rank else None)
        number = None if rank is None or shared else rank.rank
        source = known or process  # the first that was found writing it: its root, and its rights to read it again
        self._targets[key] = LogTarget(self._run, path, source.root, source.uid, source.gid, number)

    def _add_own(self, path: str) -> None:
        self._targets[False, path] = LogTarget(self._run, path)


def _carries_output(record: ProcessRecord, job: str | None) -> bool:
    """Whether a process is the job's srun, or the batch script that called it."""
    batch = any(word.endswith("slurm_script") for word in (record.command or ())[:3])
    return (
        job is not None and (record.environment or {}).get("SLURM_JOB_ID") == job and (batch or record.name == "srun")
    )


def _written(reader: ProcessRecord) -> str | None:
    """The file into which the reader of a pipe puts what it reads: what tee was told to write, else its output.

    The same text may go into several files and on through the output; read twice it would count twice.
    """
    descriptors = {target.path for target in reader.outputs if target.kind == "file"}
    opened = [path for path in reader.open_files if path not in descriptors]
    output = [target.path for target in reader.outputs if target.kind == "file" and target.descriptor == 1]
    return next(iter((*opened, *_tee_files(reader), *output)), None)


def _tee_files(reader: ProcessRecord) -> tuple[str, ...]:
    """The files that tee was told to write, where its descriptors cannot be seen."""
    call = invocation(reader.command)
    if call.name != "tee" or reader.working_directory is None:
        return ()
    words = [word for word in call.arguments if not word.startswith(("-", "/dev/"))]  # tee /dev/stderr
    return tuple(str(PurePosixPath(reader.working_directory, word)) for word in words)
