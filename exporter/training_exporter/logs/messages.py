"""Known messages of frameworks, drivers and schedulers, each with a name and a class; first rule wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from training_exporter.model import MessageClass

Outcome = Literal["finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Message:
    """A known message. `outcome` and `reason` are what it proves about the end of the run."""

    name: str
    severity: MessageClass
    pattern: re.Pattern[str]
    outcome: Outcome | None = None
    reason: str | None = None


def _rule(
    name: str, severity: MessageClass, pattern: str, outcome: Outcome | None = None, reason: str | None = None
) -> Message:
    return Message(name, severity, re.compile(pattern), outcome, reason)


# Sources are in docs/logs.md. Text is the message behind the head; phrases are anchored to words that a program
# prints for this and nothing else, because these words also occur in healthy lines (`nan iterations: 0`).
_BEFORE: tuple[Message, ...] = (
    _rule(
        "slurm_cancelled",
        "fatal",
        r"slurmstepd: error: \*\*\* (?:STEP|JOB) .* CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)",
        "cancelled",
        "scheduler",
    ),
    _rule("slurm_aborted", "suspect", r"^srun: (?:Job step aborted|forcing job termination|Force Terminated)"),
    _rule("slurm_terminated", "suspect", r"^srun: error: .*(?:Terminated|Killed|task \S+: Exited with exit code 143)"),
    _rule(
        "slurm_task_failed",
        "fatal",
        r"^srun: error: .*(?:Exited with exit code [1-9]|Segmentation fault|Aborted|Node failure)",
    ),
    _rule(
        "signal_received",
        "suspect",
        r"Received Signals\.SIG(?:TERM|INT)\b.*death signal|SignalException: Process \d+ got signal: (?:2|15)\b|"
        r"Received SIGTERM: 15\b|\bSIGTERMException\b",
        "cancelled",
        "signal",
    ),
    _rule(
        "interrupted",
        "suspect",
        r"^KeyboardInterrupt\b|^\^C$|Keyboard interrupt received|Detected KeyboardInterrupt\b",
        "cancelled",
        "interrupt",
    ),
    _rule(
        "interrupt_save",
        "suspect",
        r"Received SIG(?:TERM|INT|USR1)\b.*(?:checkpoint|interrupting)",
        "cancelled",
        "signal",
    ),
    _rule("interrupt_save_timeout", "fatal", r"Interrupt checkpoint save timed out"),
    _rule("dynamo_recompile_limit_fatal", "fatal", r"FailOnRecompileLimitHit"),
    _rule(
        "dynamo_recompile_limit",
        "benign",
        r"torch\._dynamo hit config\.(?:\w*recompile_limit|\w*cache_size_limit)",
    ),
    _rule("loss_scale_minimum", "fatal", r"loss scale already at minimum|Minimum loss scale reached"),
    _rule(
        "grad_overflow",
        "benign",
        r"OVERFLOW! Rank .* Skipping step|gradient overflow detected|Gradient overflow\.\s+Skipping step|"
        r"grad(?:ient)? overflow.*skip",
    ),
    _rule("allocator_cache_flush", "benign", r"pytorch allocator cache flushes since last step"),
    _rule(
        "oom_recovery",
        "benign",
        r"attempting to recover from OOM|Reducing to batch|[Rr]etrying with (?:a )?(?:smaller|reduced)|"
        r"(?:OOM|out of memory).*(?:retry|recover|skipp|reduc)",
    ),
    _rule(
        "cuda_oom",
        "fatal",
        r"(?<!ray\.exceptions\.)(?<!\w)(?:torch\.(?:cuda\.)?)?OutOfMemoryError\b|CUDA out of memory|"
        r"CUDA_ERROR_OUT_OF_MEMORY|"
        r"CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory",
    ),
    _rule("device_oom", "fatal", r"RESOURCE_EXHAUSTED: Out of memory|RESOURCE_EXHAUSTED: .*allocat"),
    _rule("allocator_oom", "suspect", r"ran out of memory trying to allocate|[Aa]llocator .*ran out of memory"),
    _rule(
        "host_oom",
        "fatal",
        r"ray\.exceptions\.OutOfMemoryError|"
        r"Out of memory: Killed process|oom-kill:constraint|oom_kill event|killed due to memory pressure|"
        r"Detected \d+ oom[-_]kill|OutOfMemory: Killed|MemoryError\b|std::bad_alloc|DefaultCPUAllocator: (?:can't|"
        r"not enough)",
    ),
    _rule(
        "nccl_timeout",
        "fatal",
        r"Watchdog caught collective operation timeout|detected by watchdog|watchdog thread terminated with exception|"
        r"watchdog got stuck|Timed out waiting .* for collective|Heartbeat monitor timed out|"
        r"monitoredBarrier.*(?:timed out|failed)|Received a dump signal due to a collective timeout|"
        r"Some NCCL operations have failed or timed out|To avoid data inconsistency, we are taking the entire process|"
        r"attempting to dump debug info, due to collective timeout",
    ),
    _rule(
        "nccl_error",
        "fatal",
        r"Detected mismatch between collectives on ranks|"
        r"DistBackendError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|ncclInternalError|NCCL error in: ",
    ),
    _rule("nccl_warning", "suspect", r"NCCL WARN\b"),
    _rule(
        "gloo_connection",
        "fatal",
        r"gloo/transport.*(?:closed by peer|[Rr]ead error|reset|timed? ?out)|connectFullMesh failed|"
        r"Connection closed by peer \[|Timed out waiting \d+ms for (?:recv|send) operation to complete",
    ),
    _rule("gloo_connected", "benign", r"\[Gloo\] Rank \d+ is connected to"),
    _rule(
        "rendezvous",
        "fatal",
        r"Rendezvous(?:Timeout|Connection|Closed|State)Error|Connection to rendezvous backend lost|"
        r"The node .* has been removed",
    ),
    _rule(
        "store_timeout",
        "fatal",
        r"DistStoreError|DistNetworkError|TCPStore.*(?:failed|timed out)|Broken pipe.*TCPStore",
    ),
    _rule("worker_stopped", "suspect", r"failed \(exitcode: -15\)", "cancelled", "signal"),
    _rule(
        "worker_killed",
        "fatal",
        r"failed \(exitcode: -9\)|exits with return code = -9|[Ww]orker .*died with exit(?:code| code|_code)[ =:]*-?9|"
        r"^\S*:? ?line \d+:.*Killed|DataLoader worker \(pid\S* [\d, ]+\) (?:is killed by signal|exited unexpectedly)|"
        r"^Killed$",
        "failed",
    ),
    _rule(
        "worker_failed", "fatal", r"failed \(exitcode: -?\d+\) local_rank|exits with return code = -?[1-9]", "failed"
    ),
    _rule("child_failed", "fatal", r"ChildFailedError:|Root Cause \(first observed failure\)", "failed"),
    _rule("closing_signal", "suspect", r"Sending process \d+ closing signal SIG"),
    _rule(
        "xid", "fatal", r"Xid \(PCI:[0-9a-fA-F:.]+\): (?:48|62|64|74|79|94|95|119|120|140)\b|GPU has fallen off the bus"
    ),
    _rule("xid_application", "suspect", r"Xid \(PCI:[0-9a-fA-F:.]+\): \d+"),
    _rule("cuda_ecc", "fatal", r"uncorrectable ECC error"),
    _rule(
        "cuda_error",
        "fatal",
        r"CUDA error: |CUDA driver error: |No CUDA GPUs are available|"
        r"CUDA_ERROR_(?!OUT)\w+|device-side assert triggered|unspecified launch failure|"
        r"illegal memory access|"
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|cuDNN error: ",
    ),
    _rule(
        "segfault",
        "fatal",
        r"^Aborted \(core dumped\)|"
        r"[Ss]egmentation fault(?: \(core dumped\)|\s*$|:)|Fatal Python error: |Caught signal \d+ \(|\*\*\* Aborted at|"
        r"Signal: (?:Segmentation|Aborted)|(?:signal|Signal|exited with|killed by) SIG(?:SEGV|ABRT|BUS)\b",
    ),
    _rule("bus_error", "fatal", r"[Bb]us error(?: \(core dumped\)|\s*$|\.)|insufficient shared memory"),
    _rule("disk_full", "fatal", r"No space left on device|Disk quota exceeded|ENOSPC"),
    _rule(
        "storage",
        "fatal",
        r"Stale file handle|PytorchStreamWriter failed writing|Input/output error|Remote I/O error|"
        r"Transport endpoint is not connected",
    ),
    _rule("nan_skipped", "suspect", r"\b\d+ batches had NaN loss"),
    _rule(
        "nan_loss",
        "fatal",
        r"[Ll]oss (?:became|is|was) (?:infinite or )?(?:NaN|nan|inf)\b(?!.*skip)|Aborting training due to NaN loss|"
        r"FloatingPointError|"
        r"(?:NaN|Inf|nan|inf) (?:or (?:NaN|Inf|nan|inf) )?(?:loss|found in loss)|[Nn]on-finite loss|Loss is (?:nan|"
        r"inf), stopping",
    ),
    _rule("nan_skipped", "suspect", r"(?i)loss is (?:nan|inf).*skip|nan(?:s)? detected|found nan"),
    _rule(
        "traceback",
        "suspect",
        r"^Traceback \(most recent call last\)",
    ),
    _rule("omp_num_threads", "benign", r"Setting OMP_NUM_THREADS environment variable"),
    _rule("inductor_online_softmax", "benign", r"Online softmax is disabled"),
    _rule(
        "inductor_autotune",
        "benign",
        r"Not enough SMs to use max_autotune|^AUTOTUNE \w|SingleProcess AUTOTUNE|skipping cudagraphs due to",
    ),
    _rule("dynamo_recompile", "benign", r"\[__recompiles\]|Graph break\b|\[__graph_breaks\]|has_been_recompiled"),
    _rule("tf32_off", "benign", r"TensorFloat32 tensor cores .*not enabled"),
    _rule("process_group_left", "benign", r"destroy_process_group\(\) was not called"),
    _rule(
        "device_unknown",
        "benign",
        r"device used by this process is currently unknown|using the device under current context",
    ),
    _rule("lightning_num_workers", "benign", r"does not have many workers"),
    _rule("dataset_reloop", "benign", r"is being re-looped|Reach the end of the dataloader"),
    _rule("tokenizers_fork", "benign", r"current process just got forked"),
    _rule("tensorflow_startup", "benign", r"cpu_feature_guard|Unable to register cu\w+ factory|computation_placer"),
    _rule("scheduler_order", "benign", r"lr_scheduler\.step\(\)` before `optimizer\.step\(\)"),
    _rule("requires_grad", "benign", r"None of the inputs have requires_grad"),
    _rule(
        "python_warning",
        "benign",
        r"\b(?:Future|Deprecation|PendingDeprecation|User|Runtime|Syntax|Resource|Import)Warning\b",
    ),
)
_LIKELY = re.compile(
    r"(?i)error|warn|nan|inf\b|infinite|oom|memory|killed|signal|sig[a-z]+|interrupt|xid|nccl|gloo|timeout|"
    r"timed out|fail|"
    r"traceback|fault|space left|quota|stale|overflow|recompil|cache_size|cancelled|preempt|srun|loss scale|"
    r"autotune|softmax|omp_|"
    r"cache flush|workers|loop|restarted|forked|tensorfloat|graph break|cudagraph|sms|process_group|device used|"
    r"device under|exits with|"
    r"exitcode|exhausted|removed|watchdog|closed by|fullmesh|assert|ecc|root cause|feature_guard|factory|\^c|reducing|"
    r"recover|retry|time limit|requires_grad|lr_scheduler|placer|bus|"
    r"inconsistency|collectives on|no cuda gpus|core dumped|exited unexpectedly"
)
MAX_TEXT = 2000  # characters of a line in which messages are searched
_SOFT_LEVELS = frozenset({"WARNING", "WARN", "INFO", "NOTE", "DEBUG"})
# Errors of which a program may say that it recovered, by logging them below level ERROR.
_RECOVERABLE = frozenset({"cuda_oom", "device_oom", "storage", "disk_full"})

# Advice and documentation: `to avoid "CUDA out of memory" errors`, `if you see ...`.
_SPOKEN_OF = re.compile(
    r"(?i)(?:\b(?:avoid|prevent)(?:s|ing)?|\bin case of|\bif (?:you|there|it)\b(?: \w+){1,3}|\bprotects? against|"
    r"\b(?:handl(?:es?|ing)|simulat(?:es?|ing)|check(?:s|ing)? for))\W+(?:(?:an?|the|any|of|from)\W+){0,2}\w*\.?$"
)
# What looks for it, and found none: `... handler installed`, `... check: ok`.
_CHECKED = re.compile(
    r"(?i)\w*\W{1,3}(?:handler|hook|guard|check|test|detection|monitor|tolerance|recovery|protection)s?\b\W*"
    r"(?:(?:is|was)\W+)?(?:installed|registered|enabled|disabled|active|ok|okay|passed|ready|set|on|off|none)\b"
)
_SURVIVED = re.compile(
    r"(?i)\b(?:retry(?:ing)?|retried|recover(?:ed|ing)|continuing|skipp(?:ed|ing)|ignor(?:ed|ing)|reducing|halving|"
    r"falling back|trying again|handled)\b"
)
_LOST = re.compile(
    r"(?i)\b(?:exit(?:ing|ed)?|abort(?:ing|ed)?|giv(?:e|es|ing) up|unrecoverable|terminat\w+|cannot|could not|unable|"
    r"failed to|not (?:recover|retry|skip|ignor|continu)\w*)\b"
)
_MAX_AROUND = 100  # characters

NAMES: tuple[tuple[str, MessageClass], ...] = tuple(
    dict.fromkeys(
        [(rule.name, rule.severity) for rule in _BEFORE]
        + [("nan_loss", "suspect"), ("nan_grad_norm", "suspect"), ("traceback", "fatal")]
    )
)


def find(text: str, level: str = "") -> Message | None:
    """The known message in a printed line (behind its head), or None."""
    text = text[:MAX_TEXT]
    if not _LIKELY.search(text):
        return None
    for rule in _BEFORE:
        match = rule.pattern.search(text)
        if match is not None:
            return _judged(rule, match, level)
    return None


def _judged(rule: Message, match: re.Match[str], level: str) -> Message | None:
    """The message as the words around it leave it: None where it is only spoken of, suspect where it was survived."""
    if rule.severity != "fatal" or rule.outcome is not None:
        return rule
    before, after = match.string[: match.start()], match.string[match.end() :]
    if _SPOKEN_OF.search(before[-_MAX_AROUND:]) or _CHECKED.match(after[:_MAX_AROUND]):
        return None
    around = f"{before} {after}"
    survived = _SURVIVED.search(around) is not None and _LOST.search(around) is None
    if survived or (rule.name in _RECOVERABLE and level in _SOFT_LEVELS):
        return Message(rule.name, "suspect", rule.pattern)
    return rule
