"""Where a run leaves checkpoints, as its arguments and its open files tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath

from training_exporter.model import CheckpointTarget, ProcessRecord
from training_exporter.runs.arguments import invocation, options

MAX_DIRECTORIES = 8  # of one run

# Last part of an option's name (`trainer.default_local_dir` counts as `default_local_dir`), most telling first.
# transformers and its kin, Megatron-LM, Lightning, nanoGPT, MMEngine, verl, torchtitan, NeMo, fairseq, timm, YOLO,
# Composer, speculators, torchtune, OpenRLHF, GPT-NeoX.
DIRECTORY_OPTIONS: tuple[str, ...] = (
    "checkpoint_dir", "checkpoints_dir", "checkpoint_directory", "checkpoint_path", "checkpoint_folder", "ckpt_dir",
    "ckpt_save_dir", "ckpt_output_dir", "checkpoint_save_path", "save_ckpt_path", "save_checkpoint_dir",
    "save_checkpoint_path", "ckpt_path", "save", "save_dir", "save_path", "save_folder", "save_to", "save_root",
    "output_dir", "output_path", "output_directory", "output", "out_dir", "outdir", "default_root_dir",
    "default_local_dir", "default_hdfs_dir", "dump_folder", "work_dir", "workdir", "exp_dir", "experiment_dir",
    "run_dir", "results_dir", "result_dir", "model_save_dir", "model_output_dir", "dirpath", "explicit_log_dir",
    "train_dir",
)  # fmt: skip
DIRECTORY_KEYS = ("CHECKPOINT_DIR", "OUTPUT_DIR", "SM_MODEL_DIR")  # environment, the last one SageMaker's
_ORDER = {name: position for position, name in enumerate(DIRECTORY_OPTIONS)}

CHECKPOINT_FILE = re.compile(
    r"\.(?:pt|pth|ckpt|safetensors|distcp|bin|tar|npz|orbax|nemo)(?:\.(?:tmp|part|partial|\d+))*$"
)
# A directory that is one checkpoint; the target is what holds it. Generic words with a number, and half-written names.
STEP_DIRECTORY = re.compile(
    r"^\.?(?:tmp[-_.]?)?(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch|ep|ba)s?[-_=.]?\d[\w=.-]*$|^mp_rank_|^\d+$"
    r"|\.(?:tmp|incomplete|partial)$|^(?:actor|critic|optimizer|model|pytorch_model_fsdp_0|weights|dist_ckpt)$",
    re.IGNORECASE,
)
OTHER_FILE = re.compile(r"\.(?:json|jsonl|csv|tsv|ya?ml|toml|log|txt|png|html|parquet|md)$", re.IGNORECASE)
NO_DIRECTORY = re.compile(r"(?:none|null|true|false|auto|\d+(?:\.\d+)?|\W*)", re.IGNORECASE)
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class CheckpointPlaces:
    """The directories of one run; those seen by open files are kept, because a checkpoint is open only for a while."""

    def __init__(self) -> None:
        self._opened: dict[str, CheckpointTarget] = {}

    def find(self, run: str, processes: Iterable[ProcessRecord]) -> tuple[CheckpointTarget, ...]:
        """All targets of the run, those of the arguments first. `processes` are its launcher and ranks."""
        processes = list(processes)
        found: dict[str, CheckpointTarget] = {}
        for process in processes:
            for path in told(process):
                found.setdefault(path, _target(run, path, process))
        for process in processes:
            for path in opened(process):
                self._opened[path] = _target(run, path, process)
        roots = [process.root for process in processes]
        for path, target in list(self._opened.items())[-MAX_DIRECTORIES:]:
            if not any(PurePosixPath(path).is_relative_to(known) for known in found):
                # the root of a process that is gone leads nowhere; its peers see the same
                found[path] = target if target.root in roots else replace(target, root=roots[-1])
        return tuple(found.values())[:MAX_DIRECTORIES]


def told(process: ProcessRecord) -> list[str]:
    """Directories that a command line or environment names, absolute, the most telling option first."""
    given: list[tuple[int, str]] = []
    for key, value in options(invocation(process.command).arguments):
        name = key.rpartition(".")[2].rpartition("/")[2]
        if name in _ORDER:
            given.append((_ORDER[name], value))
    environment = process.environment or {}
    given += [(len(_ORDER), environment[key]) for key in DIRECTORY_KEYS if environment.get(key)]
    paths = (directory(value, process.working_directory) for _, value in sorted(given, key=lambda pair: pair[0]))
    return list(dict.fromkeys(path for path in paths if path is not None))


@lru_cache(maxsize=1024)  # asked again for every rank at each look at the processes
def directory(value: str, working_directory: str | None) -> str | None:
    """The directory that an option's value means, absolute; None for what is none (a URL, a switch, no cwd)."""
    text = value.strip("'\"")
    if NO_DIRECTORY.fullmatch(text) or URL.match(text) or "\n" in text or text.startswith("-"):
        return None
    path = PurePosixPath(text)
    if not path.is_absolute():
        if working_directory is None or text.startswith("~"):
            return None
        path = PurePosixPath(working_directory, path)
    path = _collapsed(path)
    if CHECKPOINT_FILE.search(path.name):
        path = path.parent
    return None if str(path) == "/" or OTHER_FILE.search(path.name) else str(path)


def opened(process: ProcessRecord) -> list[str]:
    """Directories that hold the checkpoints which a process is writing now."""
    found: dict[str, None] = {}
    for name in process.open_files:
        path = PurePosixPath(name)
        if CHECKPOINT_FILE.search(path.name):
            parent = path.parent
            while STEP_DIRECTORY.search(parent.name) and parent.parent != parent:
                parent = parent.parent
            found[str(parent)] = None
    return [path for path in found if path != "/"]


def _collapsed(path: PurePosixPath) -> PurePosixPath:
    """Resolve `..` in the text alone: the file system may be another one's."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return PurePosixPath(*parts)


def _target(run: str, path: str, process: ProcessRecord) -> CheckpointTarget:
    return CheckpointTarget(run, path, process.root, process.uid, process.gid)
