"""Which part a process plays: launcher, rank, loader, something else, or nothing that counts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from training_exporter.model import ProcessRecord
from training_exporter.runs.arguments import Invocation, invocation, options

# Companions of a run whose work says nothing about it: full matches of the name (at most 15 characters in the
# kernel) or of the program. Trackers and viewers, Ray's own services, profilers and GPU tools, exporters, pagers.
UNCOUNTED: tuple[str, ...] = (
    r"wandb|wandb-.*|gpu_stats",
    r"tensorboard|tensorboard_dat.*|tensorboard\.main",
    r"aim|aim-.*|mlflow|comet|neptune|clearml-agent|trackio|swanlab",
    r"raylet|gcs_server|plasma_store.*|redis-server|ray-dashboard.*",
    r"ray::(?:DashboardAg|RuntimeEnvA|IDLE).*",
    r"(?:.*/)?ray/(?:dashboard/.*|_private/log_monitor\.py|_private/runtime_env/agent/main\.py)",
    r"(?:.*/)?ray/autoscaler/_private/monitor\.py",
    r"py-spy|memray|perf|strace|gdb|nsys|ncu",
    r"nvidia-smi|nvidia-persiste.*|nvitop|nvitop-.*|nvtop|gpustat|dcgm|dcgmi|dcgm-.*|nv-hostengine|rocm-smi|amd-smi",
    r"(?:[\w-]*[-_])?exporter|prometheus|prometheus-.*|training-export.*|training_exporter(?:\..*)?",
    r"top|htop|btop|ps|watch|tail|less|tee",
)
_UNCOUNTED = re.compile("|".join(f"(?:{pattern})" for pattern in UNCOUNTED))

# Program -> kind. `accelerate` and `colossalai` are launchers only with a subcommand.
LAUNCHERS: Mapping[str, str] = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate-launch": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "composer": "composer",
    "composer.cli.launcher": "composer",
}
SUBCOMMANDS: Mapping[tuple[str, str], str] = {
    ("accelerate", "launch"): "accelerate",
    ("accelerate.commands.accelerate_cli", "launch"): "accelerate",
    ("colossalai", "run"): "colossalai",
}
# These start anything, not only training: they make a run by what their children are.
STARTERS: Mapping[str, str] = {
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "orted", "prted"), "mpirun"),
    **dict.fromkeys(("hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"), "mpirun"),
    "slurmstepd": "slurm",
}
ELASTIC_NAME = "pt_elastic"  # comm that torch.distributed.elastic gives its agent (PR_SET_NAME), whatever started it
LOADER_NAME = "pt_data_worker"  # comm of a torch.utils.data worker

# Programs that only start another one: the process that counts is below them.
WRAPPERS = frozenset(
    {
        "sh", "bash", "dash", "zsh", "fish", "env", "numactl", "taskset", "nice", "ionice", "time", "timeout",
        "stdbuf", "nohup", "setsid", "sudo", "su", "runuser", "xargs", "nsys", "ncu", "gdb", "strace", "catchsegv",
        "conda", "mamba", "micromamba", "uv", "poetry", "pdm", "hatch", "pixi", "singularity", "apptainer", "bwrap",
        "tini", "dumb-init", "catatonit", "numawrap", "cgexec", "systemd-run", "script", "unbuffer",
    }
)  # fmt: skip

# Processes that carry the output of others to a file. Container runtimes do too; they are ancestors of what they run.
PLUMBING = frozenset({"tee", "srun"})

RANK_KEYS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK_KEYS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZE_KEYS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
WORLD_SIZE_KEYS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

TRAINING = re.compile(
    r"train|fine[_-]?tun|(?:^|[_./-])(?:sft|dpo|grpo|ppo|rlhf|orpo|kto|lora|distill|fit)(?:[_./-]|$)", re.IGNORECASE
)

# Options of programs that train, whatever they are called; the last part of a dotted key. Servers have none of them.
TRAINING_OPTIONS = frozenset(
    {
        "epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "total_epochs", "max_steps",
        "train_steps", "num_train_steps", "max_train_steps", "train_iters", "max_iters", "lr", "learning_rate",
        "warmup_steps", "warmup_ratio", "weight_decay", "gradient_accumulation_steps", "per_device_train_batch_size",
        "train_batch_size", "micro_batch_size", "global_batch_size",
    }
)  # fmt: skip


def is_uncounted(record: ProcessRecord) -> bool:
    """Whether a process is a companion whose CPU and bytes say nothing about the run."""
    if _UNCOUNTED.fullmatch(record.name):
        return True
    call = invocation(record.command)
    return bool(_UNCOUNTED.fullmatch(call.name) or _UNCOUNTED.fullmatch(call.program))


def launcher_kind(record: ProcessRecord) -> str | None:
    """torchrun, accelerate, deepspeed, ... or None; decided by the program that runs, never by a word in a command."""
    kind = _command_kind(invocation(record.command))
    if record.name == ELASTIC_NAME:
        return kind or "torchrun"
    return kind or STARTERS.get(record.name)


def starts_anything(kind: str) -> bool:
    """Whether a launcher of this kind says nothing about what it starts."""
    return kind in STARTERS.values()


def is_python(record: ProcessRecord) -> bool:
    """Whether an interpreter runs, as far as its command tells; its name may have been changed."""
    return invocation(record.command).python or record.name.startswith(("python", "pt_main_thread"))


def is_wrapper(record: ProcessRecord) -> bool:
    """Whether a process only started another one and waits for it."""
    name = invocation(record.command).name or record.name
    return name.lstrip("-") in WRAPPERS


def is_loader(record: ProcessRecord, rank: ProcessRecord) -> bool:
    """Whether a process below a rank feeds it: named so, spawned by multiprocessing, or a fork with its command."""
    if record.name.startswith(LOADER_NAME):
        return True
    code = invocation(record.command).code or ""
    if "multiprocessing.spawn import spawn_main" in code:
        return True
    forked = bool(record.command) and record.command == rank.command
    return forked and record.parent_pid == rank.pid and record.session_id == rank.session_id


def looks_like_training(record: ProcessRecord, logs: Collection[str] = ()) -> bool:
    """Whether a Python program or one of its options is called as in training, or it writes to one of `logs`.

    A hint, never a proof.
    """
    call = invocation(record.command)
    if not call.python or call.code is not None:
        return False
    named = TRAINING.search(call.name)
    return bool(
        named
        or any(key.rpartition(".")[2] in TRAINING_OPTIONS for key, _ in options(call.arguments))
        or any(target.path in logs for target in record.outputs)
    )


def training_logs(records: Iterable[ProcessRecord]) -> frozenset[str]:
    """Outputs that are called like the log of a training: files, and pipes that a tee puts into such a file."""
    found: set[str] = set()
    for record in records:
        found.update(t.path for t in record.outputs if t.kind == "file" and t.path and _is_training_file(t.path))
        call = invocation(record.command)
        if record.input_pipe and call.name == "tee" and any(_is_training_file(word) for word in call.arguments):
            found.add(record.input_pipe)
    return frozenset(found)


def _is_training_file(path: str) -> bool:
    return bool(TRAINING.search(path.rpartition("/")[2]))


def is_ray(record: ProcessRecord) -> bool:
    """Whether a process is a Ray worker, which names itself after its actor or task."""
    return (record.command[0] if record.command else record.name).startswith("ray::")


def rank_number(environment: Mapping[str, str] | None) -> int | None:
    """Global rank from a launcher's environment. SLURM_PROCID only inside a step: a batch script has it too."""
    number = first_number(environment, RANK_KEYS)
    if number is None and environment and "SLURM_STEP_ID" in environment:
        return first_number(environment, ("SLURM_PROCID",))
    return number


def first_number(environment: Mapping[str, str] | None, keys: tuple[str, ...]) -> int | None:
    """The first of the keys that holds a number."""
    for key in keys:
        value = (environment or {}).get(key, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return None


def _command_kind(call: Invocation) -> str | None:
    if call.arguments and (call.name, call.arguments[0]) in SUBCOMMANDS:
        return SUBCOMMANDS[call.name, call.arguments[0]]
    return LAUNCHERS.get(call.name) or STARTERS.get(call.name.rstrip(":"))
