"""The name of a run: the same on every node and in every attempt, readable, and made of what is known at its start."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from training_exporter.runs.arguments import placeless

# Environment key of a batch system's job number -> prefix of the name.
SCHEDULERS: tuple[tuple[str, str], ...] = (("SLURM_JOB_ID", "slurm"), ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf"))

# What controllers append to their own name for a pod: a replica type and index (PyTorchJob, MPIJob, RayCluster), a
# completion index and a random part (indexed Job, JobSet), a template hash and a random part (ReplicaSet), a random
# part alone (Job, DaemonSet; the alphabet is that of k8s.io/apimachinery/pkg/util/rand), an ordinal (StatefulSet).
POD_SUFFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"-(?:master|worker|launcher|chief|node|head|leader|replica)-\d+(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?$",
        r"(?:-\d+){1,3}-[bcdfghjklmnpqrstvwxz2456789]{5}$",
        r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}$",
        r"-[bcdfghjklmnpqrstvwxz2456789]{5}$",
        r"-\d+$",
    )
)
LOOPBACK = re.compile(r"localhost(?:\.localdomain|4|6)?|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0", re.IGNORECASE)
# Numbers, UUIDs and the word itself name no run: they differ with every attempt, or are everybody's.
NAMELESS = re.compile(r"(?:none|null|default|\d+)?", re.IGNORECASE)
UNFIT = re.compile(r"[^A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run can be named after. All of it is the same on every node, `host` apart."""

    script: str = ""  # path or module, as called
    arguments: tuple[str, ...] = ()  # of the script
    environment: Mapping[str, str] = field(default_factory=dict)  # of the launcher, completed by a rank's
    cgroup: str | None = None
    uid: int | None = None
    working_directory: str | None = None
    rendezvous_id: str | None = None
    master: str | None = None  # host name or address, a port is ignored
    host: str = ""
    multi_node: bool = False


def base_name(facts: Facts) -> str:
    """The name by the first rule that holds; a second run of the same base gets a number from the caller."""
    return scheduler_name(facts) or pod_owner(facts) or rendezvous_name(facts) or script_name(facts)


def job_id(environment: Mapping[str, str]) -> str:
    """The batch system's job number, or ""."""
    return next((environment[key] for key, _ in SCHEDULERS if environment.get(key)), "")


def scheduler_name(facts: Facts) -> str | None:
    """`slurm-4311`; PBS and LSF likewise."""
    for key, prefix in SCHEDULERS:
        if number := facts.environment.get(key):
            return f"{prefix}-{fit(number)}"
    return None


def pod_owner(facts: Facts) -> str | None:
    """Name of the Kubernetes object that made the pod: the pod's own name, its host name, without the suffix."""
    in_pod = "KUBERNETES_SERVICE_HOST" in facts.environment or "kubepods" in (facts.cgroup or "")
    pod = facts.environment.get("HOSTNAME", "")
    if not in_pod or not pod or pod == facts.host:
        return None
    for suffix in POD_SUFFIXES:
        if (owner := suffix.sub("", pod)) != pod and owner:
            return fit(owner)
    return fit(pod)


def rendezvous_name(facts: Facts) -> str | None:
    """`eagle3-5f2a`: a rendezvous id that somebody chose, and a hash of the master's address."""
    identifier = facts.rendezvous_id or ""
    if NAMELESS.fullmatch(identifier) or _is_uuid(identifier):
        return None
    master = host_of(facts.master or "")
    if not master or LOOPBACK.fullmatch(master):
        master = facts.host
    return f"{fit(identifier)}-{_digest(master)[:4]}"


def script_name(facts: Facts) -> str:
    """`train-1f0c9a3e`: the script and a hash of who runs it, where and with which arguments."""
    parts = [str(facts.uid), facts.working_directory or "", facts.script, *placeless(facts.arguments)]
    if not facts.multi_node:
        parts.append(facts.host)
    return f"{fit(script_label(facts.script)) or 'run'}-{_digest(*parts)[:8]}"


def script_label(script: str) -> str:
    """`scripts/train.py` -> `train`, a module keeps its dots."""
    name = PurePosixPath(script).name
    return name.removesuffix(".py")


def host_of(endpoint: str) -> str:
    """Host part of `host:port`, `[::1]:29500` or a bare IPv6 address."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, separator, port = endpoint.rpartition(":")
    return host if separator and port.isdigit() and ":" not in host else endpoint


def fit(text: str) -> str:
    """Text made fit for a label that people type: blanks and signs become one dash, at most 100 characters."""
    return UNFIT.sub("-", text).strip("-")[:100]


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _digest(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(joined).hexdigest()
