"""Run the exporter against one real GPU under an idle context, a training loop, a validation and a spin kernel.

    python bench/hardware.py [--seconds 120] [--output docs/hardware.md]

Run it with the Python that has training-exporter and a CUDA build of PyTorch, on a machine whose first GPU nobody else
uses. It takes about six times --seconds, writes what each load looked like in the metrics, and ends with status 1 if
they cannot be told apart. No root is needed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

SCRAPE_SECONDS = 5.0
TITLE = "# On real hardware\n"

# One process, as one run: what is learnt of its training is what its spin kernel is measured with.
LOADS = """
import sys, time
import torch
from pathlib import Path
command = Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
step = 0
def train():
    global step
    for _ in range(50):
        loss = model(data).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    torch.cuda.synchronize()
    print(f"step {step}/1000000 loss {loss.item():.4f}", flush=True)
def validate():
    with torch.no_grad():
        for _ in range(10):
            model(data[:512])
    torch.cuda.synchronize()
    time.sleep(0.02)
def spin():
    torch.cuda._sleep(1_000_000_000)
    torch.cuda.synchronize()
def idle():
    time.sleep(0.5)
train()
loads = {"train": train, "validate": validate, "spin": spin, "idle": idle}
while True:
    loads[command.read_text().strip()]()
"""
# The first two teach what training and rest draw; they are shown, too.
ORDER = ("train", "idle", "train", "validate", "spin", "idle")


@dataclass(frozen=True)
class Row:
    """What a load looked like in its second half."""

    load: str
    utilization: float | None
    memory_utilization: float | None
    watts: float | None
    effort: float | None
    busy: float  # seconds per second
    working: float


class Node:
    """The exporter and the loads, both ended at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._command = folder / "command"
        self.play("train")
        (folder / "train.py").write_text(LOADS)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        with (folder / "train.log").open("wb") as log:
            job = [sys.executable, "train.py", str(self._command)]
            self.job = subprocess.Popen(job, cwd=folder, env=environment, stdout=log, stderr=log)
        stack.callback(self._end, self.job)
        exporter = [sys.executable, "-m", "training_exporter", f"--web.listen-address=127.0.0.1:{port}"]
        self._exporter = subprocess.Popen([*exporter, f"--state.dir={folder}"])
        stack.callback(self._end, self._exporter)
        self._log = folder / "train.log"

    def play(self, load: str) -> None:
        """What the job does from now on."""
        temporary = self._command.with_suffix(".new")
        temporary.write_text(load)
        temporary.replace(self._command)

    def gpu(self, name: str) -> float | None:
        """A metric of the first GPU."""
        found = re.search(rf'^training_gpu_{name}{{gpu="0"}} (\S+)$', self._scrape(), re.MULTILINE)
        return float(found[1]) if found else None

    def device(self) -> str:
        """Name and driver of the first GPU."""
        found = re.search(r'^training_gpu_info{(.*gpu="0".*)} 1', self._scrape(), re.MULTILINE)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if found else {}
        return f"{labels.get('name', 'unknown GPU')}, driver {labels.get('driver_version', 'unknown')}"

    def alive(self) -> None:
        """Raise where one of the two ended, with what the job said."""
        if self.job.poll() is not None or self._exporter.poll() is not None:
            raise SystemExit(f"the job or the exporter ended:\n{self._log.read_text()[-2000:]}")

    def until_there(self, seconds: float) -> None:
        """Until the GPU is read."""
        end = time.monotonic() + seconds
        while self.gpu("power_watts") is None:
            self.alive()
            if time.monotonic() > end:
                raise SystemExit("the exporter shows no power of GPU 0")
            time.sleep(1)

    def _scrape(self) -> str:
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:  # noqa: S310  loopback only
                return answer.read().decode()
        except OSError:
            return ""

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


def watch(node: Node, load: str, seconds: float) -> Row:
    """Play a load and average its second half, when windows and learning have settled."""
    node.play(load)
    time.sleep(seconds / 2)
    begun = time.monotonic()
    counters = [node.gpu(f"{kind}_seconds_total") or 0.0 for kind in ("busy", "working")]
    gauges: dict[str, list[float]] = {}
    while time.monotonic() - begun < seconds / 2:
        node.alive()
        time.sleep(SCRAPE_SECONDS)
        for name in ("utilization_ratio", "memory_utilization_ratio", "power_watts", "effort_ratio"):
            value = node.gpu(name)
            if value is not None:
                gauges.setdefault(name, []).append(value)
    passed = time.monotonic() - begun
    busy, working = (
        ((node.gpu(f"{kind}_seconds_total") or 0.0) - before) / passed
        for kind, before in zip(("busy", "working"), counters, strict=True)
    )
    means = {name: sum(values) / len(values) for name, values in gauges.items()}
    return Row(
        load,
        means.get("utilization_ratio"),
        means.get("memory_utilization_ratio"),
        means.get("power_watts"),
        means.get("effort_ratio"),
        busy,
        working,
    )


def told_apart(rows: list[Row]) -> dict[str, bool]:
    """What must hold of the last round of each load."""
    last = {row.load: row for row in rows}
    return {
        "training works": last["train"].working > 0.8,
        "a spin kernel is busy and does not work": last["spin"].busy > 0.8 and last["spin"].working < 0.05,
        "an idle context is neither": last["idle"].busy < 0.05 and last["idle"].working < 0.05,
        "a light validation has more effort than an idle context": (last["validate"].effort or 0.0)
        > (last["idle"].effort or 0.0),
    }


def report(device: str, rows: list[Row], checks: dict[str, bool]) -> str:
    """The page."""
    lines = [
        TITLE,
        f"{time.strftime('%Y-%m-%d')}, {device}, Python {platform.python_version()}; written by `bench/hardware.py`.",
        "",
        "| load | utilisation | memory controller | power | effort | busy s/s | working s/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row.load} | {_number(row.utilization)} | {_number(row.memory_utilization)} "
            f"| {_number(row.watts, 0)} W | {_number(row.effort)} | {row.busy:.2f} | {row.working:.2f} |"
            for row in rows
        ),
        "",
        *(f"- {'yes' if holds else 'NO'}: {what}" for what, holds in checks.items()),
    ]
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "absent" if value is None else f"{value:.{digits}f}"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each load (%(default)g)")
    parser.add_argument("--output", type=Path, help="write the page here instead of printing it")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = Node(folder, stack)
        node.until_there(120)
        device = node.device()
        rows = [watch(node, load, arguments.seconds) for load in ORDER]
    checks = told_apart(rows)
    page = report(device, rows, checks)
    if arguments.output:
        arguments.output.write_text(page)
    else:
        print(page)
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
