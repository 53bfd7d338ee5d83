"""Command lines: what program runs, which script a launcher was given, and the options of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*(?:t|d)?$")
INTERPRETER_VALUE_OPTIONS = frozenset({"-X", "-W", "--check-hash-based-pycs"})

# Launcher options that take no value: torch.distributed.run, accelerate launch, deepspeed, composer.
FLAGS = frozenset(
    {
        "m", "module", "no_python", "standalone", "run_path", "use_env", "virtual_local_rank",
        "cpu", "multi_gpu", "tpu", "ipex", "quiet", "q", "debug", "use_deepspeed", "use_fsdp", "use_megatron_lm",
        "use_xpu", "use_mps_device", "use_parallelism_config", "enable_cpu_affinity", "dynamo_use_fullgraph",
        "dynamo_use_dynamic", "dynamo_use_regional_compilation", "downcast_bf16", "tpu_use_cluster",
        "no_local_rank", "force_multi", "no_ssh", "no_ssh_check", "enable_elastic_training", "bind_cores_to_rank",
        "save_pid", "verbose", "v",
    }
)  # fmt: skip

# Options that differ between the nodes, the ranks or the attempts of one and the same run.
PLACEMENT = frozenset(
    {
        "node_rank", "master_addr", "master_port", "local_rank", "local_addr", "machine_rank", "main_process_ip",
        "main_process_port", "hostfile", "world_info", "stdout", "stderr",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a command line runs: a module (`-m`), a script, code (`-c`) or an executable, and its arguments."""

    program: str  # dotted module name, else the path as given
    arguments: tuple[str, ...] = ()
    python: bool = False
    module: bool = False
    code: str | None = None

    @property
    def name(self) -> str:
        """The program without its directory: `train.py`, `torchrun`, `torch.distributed.run`."""
        return self.program if self.module else self.program.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher was told: its own options, and the script with the script's arguments."""

    options: tuple[tuple[str, str], ...]
    script: str
    arguments: tuple[str, ...]

    def option(self, *names: str) -> str | None:
        """The last value given under one of the names (normalised: `nproc_per_node`)."""
        return next((value for key, value in reversed(self.options) if key in names), None)


def invocation(command: Sequence[str] | None) -> Invocation:
    """Take a command line apart; an empty or unknown one runs the program "".

    A process that rewrote its title has one argument with blanks; it is split there.
    """
    return _taken_apart(tuple(command or ()))


@lru_cache(maxsize=4096)  # each look at the processes asks again for every one of them
def _taken_apart(command: tuple[str, ...]) -> Invocation:
    if not command:
        return Invocation("")
    words = command[0].split() if len(command) == 1 and " " in command[0] else list(command)
    if not words:
        return Invocation("")
    if INTERPRETER.match(words[0].rpartition("/")[2]):
        return _interpreted(words)
    return Invocation(words[0], tuple(words[1:]))


def launch(arguments: Sequence[str]) -> Launch:
    """Split a launcher's arguments at the script.

    An option that is no known flag takes the next word as its value, unless that is an option or a Python file.
    """
    options: list[tuple[str, str]] = []
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        key, separator, value = arguments[position].partition("=")
        name = normalised(key)
        position += 1
        if not separator and name not in FLAGS and position < len(arguments) and _is_value(arguments[position]):
            value = arguments[position]
            position += 1
        options.append((name, value))
    rest = tuple(arguments[position:])
    return Launch(tuple(options), rest[0] if rest else "", rest[1:])


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every option with a value, normalised: `--key value`, `--key=value`, `key=value`, `+group.key=value`."""
    for position, word in enumerate(arguments):
        key, separator, value = word.partition("=")
        if separator and re.fullmatch(r"[-+~]{0,2}[A-Za-z][\w.@/-]*", key):
            yield normalised(key), value
        elif word.startswith("-") and not separator and position + 1 < len(arguments):
            following = arguments[position + 1]
            if not following.startswith("-"):
                yield normalised(word), following


def placeless(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments without those that tell node, rank, master or rendezvous: the same on every node."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip and not word.startswith("-"):
            skip = False
            continue
        key, separator, _ = word.partition("=")
        skip = False
        if key.startswith("-") and _is_placement(normalised(key)):
            skip = not separator
            continue
        kept.append(word)
    return tuple(kept)


def normalised(key: str) -> str:
    """`--Save-Dir` -> `save_dir`, `++trainer.default_root_dir` -> `trainer.default_root_dir`."""
    return key.lstrip("-+~").replace("-", "_").lower()


def _is_placement(name: str) -> bool:
    return name in PLACEMENT or name.startswith("rdzv")


def _is_value(word: str) -> bool:
    return not word.startswith("-") and not word.endswith(".py")


def _interpreted(words: Sequence[str]) -> Invocation:
    position = 1
    while position < len(words):
        word = words[position]
        if word == "-c" and position + 1 < len(words):
            return Invocation("-c", tuple(words[position + 2 :]), python=True, code=words[position + 1])
        if word.startswith("-") and not word.startswith("--") and word.endswith("m") and position + 1 < len(words):
            return Invocation(words[position + 1], tuple(words[position + 2 :]), python=True, module=True)
        if word in INTERPRETER_VALUE_OPTIONS:
            position += 2
        elif word.startswith("-") and word != "-":
            position += 1
        else:
            return Invocation(word, tuple(words[position + 1 :]), python=True)
    return Invocation("", python=True)
