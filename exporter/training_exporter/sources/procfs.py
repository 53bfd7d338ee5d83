"""Raw readers and parsers of /proc/PID: bytes of one small file in, plain values out.

Formats are those of proc(5). psutil is not used here on purpose: a walk of 2,082 processes costs it 99-183 ms against
20 ms for raw `stat` reads, and its `open_files()` follows every path in the exporter's own mounts, where a dead network
mount blocks for ever and a container's path means another file. The tests hold these parsers against psutil's answers.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Collection
from dataclasses import dataclass

from training_exporter.model import OutputTarget, ProcessState

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STAT_FIELDS = 20  # after the name, up to the start time
READ_BYTES = 1 << 16
MAX_BYTES = 1 << 20  # of a command line or an environment: more is a hostile process
MAX_DESCRIPTORS = 4096

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel, fixed since Linux 3.8

# proc(5), field 3 of stat. Idle kernel threads (I) and tracing stops (t) included.
STATES: dict[str, ProcessState] = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "disk_sleep",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "zombie",
    "x": "zombie",
}

# Virtual files that a descriptor may point at and that are no output of a job.
VIRTUAL_ROOTS = ("/dev/", "/proc/", "/sys/", "/memfd:", "/anon_hugepage", "/SYSV", "/[")


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says; times in clock ticks, the start since boot."""

    name: str
    state: ProcessState
    parent_pid: int
    session_id: int
    major_faults: int
    cpu_ticks: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Io:
    """What /proc/PID/io says, in bytes."""

    read_bytes: int
    written_bytes: int
    storage_read_bytes: int
    storage_written_bytes: int


@dataclass(frozen=True, slots=True)
class Status:
    """What of /proc/PID/status is used; ids are the effective ones."""

    uid: int | None = None
    gid: int | None = None
    namespace_pid: int | None = None
    context_switches: int | None = None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The open descriptors that matter of one process."""

    outputs: tuple[OutputTarget, ...] = ()
    open_files: tuple[str, ...] = ()
    input_pipe: str | None = None


def read_file(path: str, *, limit_bytes: int = MAX_BYTES) -> bytes:
    """The content of a small file, at most `limit_bytes`; OSError as it comes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        left = limit_bytes
        while left > 0 and (part := os.read(descriptor, min(left, READ_BYTES))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_stat(procfs: str, pid: int) -> Stat:
    """What `stat` of a process says; OSError where it is gone or hidden, or what is read is no whole `stat`."""
    path = f"{procfs}/{pid}/stat"
    try:
        return parse_stat(read_file(path))
    except ValueError as error:  # the process ended between two reads, or /proc is somebody's imitation
        raise OSError(errno.EIO, str(error), path) from error


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/PID/stat. The name is between the first '(' and the last ')': it may hold blanks and both.

    Raises ValueError where it is not whole, as all parsers here.
    """
    text = data.decode("utf-8", "surrogateescape")
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    if len(fields) < STAT_FIELDS:
        raise ValueError("stat is cut short")
    return Stat(
        name=text[opening + 1 : closing],
        state=STATES.get(fields[0], "sleeping"),
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        major_faults=int(fields[9]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
    )


def parse_io(data: bytes) -> Io:
    """Parse /proc/PID/io."""
    values = dict(line.split(b": ", 1) for line in data.splitlines() if b": " in line)
    if not values.keys() >= {b"rchar", b"wchar", b"read_bytes", b"write_bytes"}:
        raise ValueError("io is cut short")
    return Io(
        read_bytes=int(values[b"rchar"]),
        written_bytes=int(values[b"wchar"]),
        storage_read_bytes=int(values[b"read_bytes"]),
        storage_written_bytes=int(values[b"write_bytes"]),
    )


def parse_status(data: bytes) -> Status:
    """Parse /proc/PID/status."""
    values = {key: rest.split() for key, _, rest in (line.partition(b":") for line in data.splitlines())}
    namespaces = values.get(b"NSpid")
    switches = [values.get(key) for key in (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")]
    return Status(
        uid=_field(values.get(b"Uid"), 1),
        gid=_field(values.get(b"Gid"), 1),
        namespace_pid=int(namespaces[-1]) if namespaces else None,
        context_switches=sum(int(value[0]) for value in switches if value) if all(switches) else None,
    )


def parse_command(data: bytes) -> tuple[str, ...]:
    """Parse /proc/PID/cmdline; a process that rewrote its title has one argument with trailing NULs."""
    stripped = data.rstrip(b"\0")
    if not stripped:
        return ()
    return tuple(part.decode("utf-8", "surrogateescape") for part in stripped.split(b"\0"))


def parse_environment(data: bytes, keys: Collection[str]) -> dict[str, str]:
    """Parse /proc/PID/environ, keeping `keys` alone: whatever else stands there is a secret until proven otherwise."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator and (name := key.decode("utf-8", "surrogateescape")) in keys:
            found[name] = value.decode("utf-8", "surrogateescape")
    return found


def parse_cgroup(data: bytes) -> str | None:
    """Path of the process in the unified hierarchy, else in the longest named one of version 1."""
    paths = [line.split(b":", 2) for line in data.splitlines() if line.count(b":") >= 2]
    unified = [path for number, names, path in paths if number == b"0" and not names]
    chosen = [path for path in unified if path != b"/"] or sorted((path for _, _, path in paths), key=len)
    return chosen[-1].decode("utf-8", "surrogateescape") if chosen else None


def parse_position(data: bytes) -> int | None:
    """`pos` of /proc/PID/fdinfo/N."""
    for line in data.splitlines():
        if line.startswith(b"pos:"):
            return int(line[4:])
    return None


def parse_wait_channel(data: bytes) -> str | None:
    """Kernel function that /proc/PID/wchan names; "0" means running, or no right to know."""
    name = data.decode("ascii", "replace").strip()
    return None if name in {"", "0"} else name


def parse_oom_kills(data: bytes) -> int | None:
    """`oom_kill` of /proc/vmstat, since Linux 4.13."""
    for line in data.splitlines():
        if line.startswith(b"oom_kill "):
            return int(line[len(b"oom_kill ") :])
    return None


def list_processes(procfs: str) -> dict[int, int]:
    """PID -> inode number of its directory, of every process: one directory listing, no file opened.

    The kernel drops the directory of a process when that ends and gives the next holder of the PID a new inode, so
    an unchanged number means the same process. A number that changes without need (the entry was evicted from the
    cache) costs one more read of `stat`.
    """
    with os.scandir(procfs) as entries:
        return {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}


def read_descriptors(directory: str) -> Descriptors:
    """What of /proc/PID/fd matters: 0, 1, 2 and the regular files open for writing.

    The mode bits of the link tell how the descriptor was opened, so nothing behind it is touched.
    """
    names = sorted(os.listdir(f"{directory}/fd"), key=int)[:MAX_DESCRIPTORS]  # noqa: PTH208  a Path per descriptor costs more than the call
    outputs: list[OutputTarget] = []
    files: dict[str, None] = {}
    input_pipe = None
    for name in names:
        try:
            link = read_link(f"{directory}/fd/{name}")
            writable = bool(os.lstat(f"{directory}/fd/{name}").st_mode & stat_module.S_IWUSR)
        except FileNotFoundError:
            continue  # closed meanwhile
        if name == "0" and link.startswith("pipe:"):
            input_pipe = link
        if name in {"1", "2"}:
            outputs.append(output_target(int(name), link, writable=writable))
        if writable and is_regular(link):
            files[link] = None
    return Descriptors(tuple(outputs), tuple(files), input_pipe)


def is_regular(link: str) -> bool:
    """Whether a descriptor's link text names a file in a file system (deleted ones are gone for readers)."""
    if not link.startswith("/") or link.endswith(" (deleted)"):
        return False
    return not link.startswith(VIRTUAL_ROOTS) or link.startswith("/dev/shm/")  # noqa: S108  recognised, never written


def output_target(descriptor: int, link: str, *, writable: bool = True) -> OutputTarget:
    """Sort the link text of descriptor 1 or 2 by what stands behind it."""
    if link.startswith("pipe:"):
        return OutputTarget(descriptor, "pipe", link)
    if link.startswith("socket:"):
        return OutputTarget(descriptor, "socket", link)
    if link == "/dev/null":
        return OutputTarget(descriptor, "null", link)
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return OutputTarget(descriptor, "terminal", link)
    return OutputTarget(descriptor, "file" if writable and is_regular(link) else "other", link)


def read_link(path: str) -> str:
    """Text of a symbolic link; OSError as it comes."""
    return os.readlink(path)  # noqa: PTH115  a Path would normalise the text, and costs more than the call


def visible_root(procfs: str, pid: int) -> str:
    """Where the file system of a process is seen from here: /proc/PID/root if it is not the exporter's own."""
    directory = f"{procfs}/{pid}"
    same_mounts = read_link(f"{directory}/ns/mnt") == read_link("/proc/self/ns/mnt")
    return "/" if same_mounts and read_link(f"{directory}/root") == "/" else f"{directory}/root"


def in_host_namespace(procfs: str) -> bool:
    """Whether `procfs` shows the PIDs of the host, which are those that the GPU driver speaks of."""
    try:
        return read_link(f"{procfs}/1/ns/pid") == INITIAL_PID_NAMESPACE
    except PermissionError:  # not root: this process's own namespace is the best that can be known
        return read_link("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _field(values: list[bytes] | None, index: int) -> int | None:
    return int(values[index]) if values and len(values) > index else None
