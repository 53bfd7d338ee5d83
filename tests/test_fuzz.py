"""Whatever bytes come from outside, nothing but the declared error comes out: short here, long by `make fuzz`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fakes import FakeClock
from training_exporter import config
from training_exporter.config import Config, RunConfig
from training_exporter.documents import DocumentError, Fault
from training_exporter.logs import RunLogs
from training_exporter.metrics import ViewCollector
from training_exporter.model import Health, Observation, ProcessTable, Report, TailChunk
from training_exporter.report.document import document
from training_exporter.report.history import History
from training_exporter.runs.node import Node
from training_exporter.runs.view import NodeView
from training_exporter.sources import procfs as proc
from training_exporter.sources.mounts import MountTable
from training_exporter.sources.processes import ProcessSource
from training_exporter.web import web_config

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
NOW_SECONDS = 1_700_000_000.0

# What a mutation begins with: files as a kernel writes them.
STAT = b"7 (pt_main_thread) S 1 7 7 0 -1 4194304 5 0 9 0 300 200 0 0 20 0 9 0 1234 99 5 184 1 1 0 0 0 0 0 4096 0 0\n"
STATUS = (
    b"Name:\tpython3\nUid:\t1000\t1001\t1000\t1000\nGid:\t50\t51\t50\t50\nNSpid:\t4242\t17\n"
    b"voluntary_ctxt_switches:\t10\nnonvoluntary_ctxt_switches:\t5\n"
)
IO = b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"
ENVIRON = b"RANK=0\0WORLD_SIZE=8\0MASTER_ADDR=localhost\0PATH=/bin\0"
CMDLINE = b"python3\0-m\0torch.distributed.run\0train.py\0--output_dir\0/data/out\0"
CGROUP = b"12:memory:/docker/abc\n1:name=systemd:/docker/abc/x\n0::/system.slice/x.scope\n"
FDINFO = b"pos:\t1234\nflags:\t02100001\nmnt_id:\t29\n"
VMSTAT = b"nr_free_pages 1\noom_kill 3\n"

LOG_PIECES = (
    *(
        "epoch 1/3",
        "step 10/100",
        "loss: 0.5",
        "loss nan",
        "{'loss': 0.5, 'epoch': 1.0}",
        "eval_loss=1e999",
        "100%|##|",
    ),
    *("Saving model checkpoint to /out/checkpoint-500", "Training completed.", "Traceback (most recent call last):"),
    *("torch._dynamo hit config.recompile_limit (8)", "[rank0]:", "| step | 12 |", "it/s", "\x1b[31m", "\ufeff", "\0"),
    *("2026-01-01 00:00:00,123 INFO ", '{"step": 1, "loss": 2.0}', "CUDA out of memory", "9" * 400, "<" * 50, "\x85"),
    *("iteration 5", "Validation: ", "val_acc", "=", " - ", "\t", "\r", "\n", "\r\n", "my metric x = 5", "-1", "inf"),
)
LOG = st.lists(
    st.binary(max_size=40) | st.sampled_from(LOG_PIECES).map(str.encode) | st.text(max_size=20).map(str.encode),
    max_size=60,
).map(b"".join)


def mutated(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file of the kernel with some pieces cut out, doubled or replaced; or any bytes at all."""
    places = st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)), st.binary(max_size=12))

    def change(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = whole
        for begin, end, new in edits:
            data = data[:begin] + new + data[end:]
        return data

    return st.lists(places, max_size=3).map(change) | st.binary(max_size=80)


class TestLog:
    """From the bytes of a log to what a scraper, the page and the document read."""

    @FUZZ
    @given(LOG, st.lists(st.integers(0, 2000), max_size=6), st.sampled_from(["/logs/a.log", "/out/error.json"]))
    def test_any_bytes(self, data: bytes, cuts: list[int], file: str) -> None:
        """They are counted, understood or not, and shown in a format that can be parsed again."""
        run = RunConfig("fuzzed", logs=(file,), metrics=(r"^my metric (?P<name>\w+) = (?P<value>\S+)$",))
        logs = RunLogs({run.name: run.metrics})
        node = Node(Config(runs=(run,)), "host")
        lines = 0
        edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
        for second, (begin, end) in enumerate(pairwise(edges)):
            now = NOW_SECONDS + second
            batches = logs.consume([TailChunk(run.name, file, now, data[begin:end], opens=not second)], now)
            lines += sum(batch.lines for batch in batches)
            view = node.observe(Observation(now, logs=Report(batches, Health(success=True))))
        assert lines == (data.count(b"\n") if file.endswith(".log") else 0)  # the other has documents, not lines
        self._show(view)

    @staticmethod
    def _show(view: NodeView) -> None:
        registry = CollectorRegistry()
        registry.register(ViewCollector(lambda: view, lambda: None))
        text = generate_latest(registry).decode()
        assert sum(len(family.samples) for family in text_string_to_metric_families(text)) > 0
        assert document(view, History(), private=True)["runs"]


WORDS = st.sampled_from(
    [
        *("runs", "name", "match", "cmdline", "env", "logs", "checkpoints", "expected", "page", "budgets", "metrics"),
        *("discovery", "enabled", "ignore", "idle", "validation", "x", "", "<<", "~", "1"),
    ]
)
WEB_WORDS = st.sampled_from(
    [
        *("tls_server_config", "basic_auth_users", "http_server_config", "cert_file", "key_file", "client_auth_type"),
        *("client_ca_file", "client_allowed_sans", "min_version", "cipher_suites", "headers", "http2", "x", "cert"),
    ]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.text(max_size=8),
    st.sampled_from(["10m", "-1s", "1h30m", "9" * 400 + "w", "/a", "a", "(", r"(?P<name>a)(?P<value>b)", "(a+)+"]),
    st.sampled_from(["TLS13", "$2b$04$" + "a" * 53, "server.pem", "RequireAndVerifyClientCert", "X-Frame-Options"]),
)


def documents(words: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Files: of any bytes, of any text, and of YAML that is nested as a configuration is."""
    nested = st.recursive(
        VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5), max_leaves=25
    )
    structured = nested.map(lambda value: yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode())
    return st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")) | structured


def faults_of(load: Callable[[Path], object], path: Path) -> list[Fault]:
    """What is wrong with a file, at least one fault; nothing if it can be used."""
    try:
        load(path)
    except DocumentError as error:
        return error.faults or [Fault(0, "", "")]
    return []


class TestDocuments:
    """Both configuration files: taken whole, or refused with every fault."""

    @pytest.mark.parametrize("load", [config.load, web_config.load], ids=["config", "web"])
    @FUZZ
    @given(data=documents(WORDS | WEB_WORDS))
    @example(data=b"")
    @example(data=b"\xff\xfe")
    def test_any_file(self, load: Callable[[Path], object], data: bytes) -> None:
        """No other exception than DocumentError, whose faults say what and where."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file.yaml"
            path.write_bytes(data)
            faults = faults_of(load, path)
        assert all(fault.message for fault in faults)
        assert all(str(fault).startswith(f"line {fault.line}: ") for fault in faults if fault.line)

    @pytest.mark.parametrize("load", [config.load, web_config.load], ids=["config", "web"])
    @FUZZ
    @given(before=st.integers(0, 5), key=st.text("abcdefghijklmnop", min_size=1, max_size=8), value=VALUES)
    def test_a_wrong_key_is_named_with_its_line(
        self, load: Callable[[Path], object], before: int, key: str, value: Any
    ) -> None:
        """Whatever stands beside it."""
        key = f"{key}_unknown"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file.yaml"
            path.write_text("# a remark\n" * before + yaml.safe_dump({key: value}), encoding="utf-8")
            with pytest.raises(DocumentError) as caught:
                load(path)
        assert [(fault.line, fault.key) for fault in caught.value.faults] == [(before + 1, key)]


PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "stat": (proc.parse_stat, STAT),
    "io": (proc.parse_io, IO),
    "status": (proc.parse_status, STATUS),
    "cmdline": (proc.parse_command, CMDLINE),
    "environ": (lambda data: proc.parse_environment(data, {"RANK", "MASTER_ADDR"}), ENVIRON),
    "cgroup": (proc.parse_cgroup, CGROUP),
    "fdinfo": (proc.parse_position, FDINFO),
    "wchan": (proc.parse_wait_channel, b"futex_do_wait"),
    "vmstat": (proc.parse_oom_kills, VMSTAT),
}


class TestProc:
    """What the kernel, or an imitation of it, says of processes."""

    @pytest.mark.parametrize("name", PARSERS)
    @FUZZ
    @given(data=st.data())
    def test_any_file(self, name: str, data: st.DataObject) -> None:
        """A value or ValueError."""
        parse, whole = PARSERS[name]
        parse(whole)
        try:
            parse(data.draw(mutated(whole)))
        except ValueError:
            return

    @FUZZ
    @given(
        st.fixed_dictionaries(
            {
                "stat": mutated(STAT),
                "io": mutated(IO),
                "status": mutated(STATUS),
                "cmdline": mutated(CMDLINE),
                "environ": mutated(ENVIRON),
                "cgroup": mutated(CGROUP),
                "fdinfo/1": mutated(FDINFO),
                "wchan": mutated(b"futex_do_wait"),
            }
        ),
        st.sampled_from(["stat", "io", "status", "cmdline", "environ", "cgroup", "fdinfo/1", "fd/1", "ns/mnt", "cwd"]),
        mutated(VMSTAT),
    )
    def test_any_process_beside_a_whole_one(self, files: dict[str, bytes], missing: str, vmstat: bytes) -> None:
        """A process that is malformed, or half gone, takes nothing from its neighbour."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            whole = {"stat": STAT.replace(b"7 ", b"1 ", 1), "io": IO, "status": STATUS, "cmdline": CMDLINE}
            _write(root / "1", {**whole, "environ": ENVIRON, "cgroup": CGROUP, "fdinfo/1": FDINFO, "wchan": b"0"})
            _write(root / "7", files)
            if missing in files:
                (root / "7" / missing).unlink()
            (root / "vmstat").write_bytes(vmstat)
            source = ProcessSource(FakeClock(), procfs=folder, interesting=set)
            tables = [_whole(source.collect()) for _ in range(2)]
        assert all(record.command[:2] == ("python3", "-m") for record in tables)
        wanted = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost"}
        assert all(record.environment == wanted for record in tables)


def _whole(table: ProcessTable) -> Any:
    return table.processes[1]


def _write(directory: Path, files: dict[str, bytes]) -> None:
    for folder in ("fd", "fdinfo", "ns"):
        (directory / folder).mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    (directory / "fd" / "1").symlink_to("/logs/a.log")
    (directory / "cwd").symlink_to("/work")


class TestMounts:
    @FUZZ
    @given(st.text(max_size=40), st.dictionaries(st.text(max_size=12), st.text(max_size=5), max_size=5))
    @example("//data/train.log", {})
    def test_any_path_has_a_mount_point(self, path: str, types: dict[str, str]) -> None:
        """And it is found, whatever the table and the path are."""
        table = MountTable(types)
        assert isinstance(table.type_of(path), str)
        assert table.point(path) in {*types, "/"}
