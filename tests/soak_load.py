"""What happens to the exporter in a soak: every actor is a thread that does one kind of thing again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from fake_nvml.state import FakeState, gpu_at_work
from jobs import job

RUN = "soak-writer"
SCRIPT = f"train_soak_{os.getpid()}.py"  # another soak on this machine has its own
GPUS = 4
TRAINER = """
import os, time
for step in range(1, 1_000_000):
    if os.environ["RANK"] == "0":
        print(f"step {step}/1000000 loss {1 / step:.6f}", flush=True)
    time.sleep(0.2)
"""
WORDS = ("loading", "shard", "cache", "retry", "token", "rank", "worker", "queue", "flush", "mixed", "precision")


class Actor(ABC):
    """Acts every `pause_seconds` in a thread of its own until it is stopped; `counts` says what it did."""

    def __init__(self, pause_seconds: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.draw = random.Random(seed)  # noqa: S311  repeatable, not secret
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def act(self) -> None:
        """Do it once."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after what is being done; a failure of the actor comes out here."""
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def stopping(self) -> bool:
        return self._stop.is_set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_seconds):
                self.act()
        except BaseException as failure:  # noqa: BLE001  told to whoever stops the actor
            self.failure = failure


class LogWriter(Actor):
    """Appends to one followed log, and renames, truncates or deletes it; `lines` is what the exporter must count.

    What nobody has read yet is lost to everyone when it is cut away, so the writer waits before that.
    """

    # A growing file is looked up by its name every 5 s, so that a shorter life than this could pass unseen.
    LIFE_SECONDS = 15.0

    def __init__(self, folder: Path, counted: Callable[[], float | None]) -> None:
        super().__init__(0.2, 1)
        self.path = folder / "writer.log"
        self.lines = 0
        self._counted = counted
        self._changed = time.monotonic()
        self.path.write_bytes(b"")

    def act(self) -> None:
        if time.monotonic() - self._changed > self.LIFE_SECONDS:
            self._replace(self.draw.choice(["rename", "rename", "truncate", "delete"]))
            self._changed = time.monotonic()
        count = self.draw.randrange(60)
        with self.path.open("ab") as log:
            log.write(b"".join(self._line(number) for number in range(count)))
        self.lines += count

    def _line(self, number: int) -> bytes:
        kind = self.draw.randrange(8)
        if kind == 0:
            return b"%d: %s\n" % (number, self.draw.randbytes(40).replace(b"\n", b" ").replace(b"\r", b" "))
        if kind <= 2:
            return (" ".join(self.draw.choices(WORDS, k=6)) + f" {self.draw.random()}\n").encode()
        return f"step {self.lines + number}/99999999 loss {self.draw.random():.5f} lr 1e-4\n".encode()

    def _replace(self, how: str) -> None:
        if how == "rename":
            self.path.rename(self.path.with_suffix(".log.1"))
            self.path.write_bytes(b"")
        elif self._caught_up():
            if how == "truncate":
                os.truncate(self.path, 0)
            else:
                self.path.unlink()
                self.path.write_bytes(b"")
        else:
            return
        self.counts[how] += 1

    def _caught_up(self) -> bool:
        end = time.monotonic() + 30
        while self._counted() != self.lines:
            if self.stopping() or time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True


class TrainingJob(Actor):
    """A launcher with two ranks that is killed and started again under the same name, among processes of a blink."""

    LIFE_SECONDS = 120.0

    def __init__(self, folder: Path) -> None:
        super().__init__(0.2, 2)
        self.output = folder / "output"
        self.pids: Sequence[int] = ()
        self._stack = contextlib.ExitStack()
        self._job = self._stack.enter_context(job(folder))
        (folder / SCRIPT).write_text(TRAINER)
        self._began = -self.LIFE_SECONDS

    def act(self) -> None:
        subprocess.run(["true"], check=True)
        self.counts["short process"] += 1
        if time.monotonic() - self._began > self.LIFE_SECONDS:
            self._begin()

    def stop(self) -> None:
        super().stop()
        self._stack.close()

    def _begin(self) -> None:
        folder = self._job.directory
        self._stack.close()
        self._job = self._stack.enter_context(job(folder))
        with (folder / "log").open("ab") as log:
            launcher = self._job.start(SCRIPT, "--output_dir", str(self.output), output=log)
        self.pids = (launcher.pid,)
        self._began = time.monotonic()
        self.counts["job"] += 1


class Saver(Actor):
    """Checkpoints that appear file by file and are deleted, at times half-written."""

    KEPT = 3

    def __init__(self, output: Path) -> None:
        super().__init__(2.0, 3)
        self._output = output
        self._number = 0

    def act(self) -> None:
        self._number += 10
        folder = self._output / f"checkpoint-{self._number}"
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"):
            text = json.dumps({"log_history": [{"loss": self.draw.random(), "step": self._number}] * 100})
            # some end in the middle of the document, as after a crash
            (folder / name).write_text(text if self.draw.random() < 0.95 else text[: self.draw.randrange(len(text))])
            if self.draw.random() < 0.05:
                break
        self.counts["checkpoint"] += 1
        kept = sorted(self._output.iterdir(), key=lambda path: int(path.name.partition("-")[2]))
        for old in kept[: -self.KEPT]:
            shutil.rmtree(old)


class Driver(Actor):
    """GPUs whose power moves, and whose driver fails for some seconds in one way after the other."""

    SYMBOLS = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo")
    CALM_SECONDS, FAULT_SECONDS = 15.0, 9.0
    UNKNOWN_ERROR = 999  # NVML_ERROR_UNKNOWN

    def __init__(self, path: Path, pids: Callable[[], Sequence[int]]) -> None:
        super().__init__(1.0, 4)
        self._path = path
        self._pids = pids
        self._generation = 0
        self._fault = ""
        self._until = time.monotonic() + self.CALM_SECONDS
        self.act()

    def act(self) -> None:
        now = time.monotonic()
        if now > self._until:
            calm = self._fault == ""
            self._fault = (
                self.draw.choice(["hang all", "hang one", "error", "lost", "vanished", "reload"]) if calm else ""
            )
            self._generation += self._fault == "reload"
            self._until = now + (self.FAULT_SECONDS if calm else self.CALM_SECONDS)
            self.counts[self._fault or "calm"] += 1
        self._state().write(self._path)

    def _state(self) -> FakeState:
        pids = list(self._pids())
        gpus = [
            gpu_at_work(index, pids=pids, power_milliwatts=self.draw.randrange(350_000, 400_000))
            for index in range(GPUS)
        ]
        state = FakeState(gpus, driver_generation=self._generation)
        symbol = self.SYMBOLS[self.counts[self._fault] % len(self.SYMBOLS)]
        if self._fault == "hang all":
            state.hangs = {symbol}
        elif self._fault == "hang one":
            gpus[1].hangs = {symbol}
        elif self._fault == "error":
            gpus[2].errors = {symbol: self.UNKNOWN_ERROR}
        elif self._fault == "lost":
            gpus[3].lost = True
        elif self._fault == "vanished":
            state.gpus = gpus[:-1]
        return state


class HalfOpen(Actor):
    """Clients that never end their request, and some that talk nonsense."""

    HELD = 20

    def __init__(self, port: int) -> None:
        super().__init__(1.0, 5)
        self._address = ("127.0.0.1", port)
        self._held: list[socket.socket] = []

    def act(self) -> None:
        for one in list(self._held):
            with contextlib.suppress(BlockingIOError):
                if one.recv(1) == b"":
                    self._held.remove(one)
                    one.close()
                    self.counts["closed by the server"] += 1
        if len(self._held) < self.HELD:
            self._held.append(self._connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "))
            self._held[-1].setblocking(False)  # noqa: FBT003  the name of the call says it
            self.counts["half-open"] += 1
        self._connect(self.draw.randbytes(200) + b"\r\n\r\n").close()
        self.counts["nonsense"] += 1

    def stop(self) -> None:
        super().stop()
        for one in self._held:
            one.close()

    def _connect(self, data: bytes) -> socket.socket:
        client = socket.create_connection(self._address, timeout=10)
        client.sendall(data)
        return client


class Reloader(Actor):
    """SIGHUP after the configuration changed, at times into one that cannot be used."""

    def __init__(self, path: Path, log: Path, checkpoints: Path) -> None:
        super().__init__(10.0, 6)
        self._path = path
        self._runs: list[dict[str, object]] = [
            {"name": RUN, "logs": [str(log)]},
            {"name": "soak-job", "match": {"cmdline": SCRIPT}},
        ]
        self._other = {"name": "soak-other", "checkpoints": [str(checkpoints)], "expected": True}
        self.pid: int | None = None
        self._write(self._runs)

    def act(self) -> None:
        kind = self.draw.choice(["other", "same", "broken"])
        if kind == "broken":
            self._path.write_text("runs: [{name: x, logz: [/a]}]\n")
        else:
            self._write([*self._runs, self._other] if kind == "other" else self._runs)
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)
        self.counts[f"{kind} configuration"] += 1

    def _write(self, runs: object) -> None:
        # other jobs of this machine are none of ours
        self._path.write_text(yaml.safe_dump({"runs": runs, "discovery": {"enabled": False}}))


class Scraper(Actor):
    """One scrape a second in turning formats, the page and the document now and then; notes the slowest."""

    TIMEOUT_SECONDS = 10.0  # Prometheus' own default

    def __init__(self, port: int) -> None:
        super().__init__(1.0, 7)
        self._port = port
        self.slowest_seconds = 0.0
        self.refused: list[str] = []

    def act(self) -> None:
        turn = self.counts["scrape"]
        headers = [{}, {"Accept-Encoding": "gzip"}, {"Accept": "application/openmetrics-text;version=1.0.0"}][turn % 3]
        self._ask("/metrics", headers)
        self.counts["scrape"] += 1
        if turn % 10 == 0:
            self._ask(("/", "/api/v1/runs")[turn // 10 % 2], {})
            self.counts["page"] += 1

    def _ask(self, path: str, headers: dict[str, str]) -> None:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self.TIMEOUT_SECONDS)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                self.refused.append(f"{path}: {answer.status}")
        except OSError as error:
            self.refused.append(f"{path}: {error!r}")
        finally:
            connection.close()
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
