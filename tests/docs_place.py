"""A machine for one page of the documentation, with processes, network, /opt, /etc, home and a copy of this folder.

It is the same computer and the same user root, in namespaces of the kernel; the real folder and environment cannot be
written there. Four programs are stand-ins: `apt-get` makes Debian's folder of Prometheus (what else it would install is
there), `sudo` runs the command (the user is root), `systemctl` starts what the unit says where there is no systemd, and
pip finds what it downloads in a folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from e2e.harness import Program, wait_until
from tools import PLACES, ROOT, output, sources, tool
from wheelhouse import built_wheel, wheelhouse

BLOCK_SECONDS = 60.0
ANSWER_SECONDS = 90.0

STAND_INS = {
    "apt-get": "#!/bin/sh\nmkdir -p /etc/prometheus\n",
    "sudo": '#!/bin/sh\nexec "$@"\n',
    # enable --now UNIT, restart UNIT: checked by systemd's own reader, started without it
    "systemctl": """\
#!/bin/sh -eu
for unit in "$@"; do :; done
[ "$unit" = training-exporter ] || exit 0
file=/etc/systemd/system/$unit.service
systemd-analyze verify --man=no "$file"
. /etc/default/$unit
command=$(sed -n 's/^ExecStart=//p' "$file" | sed "s/\\$ARGS/$ARGS/")
mkdir -p /run/$unit-state
STATE_DIRECTORY=/run/$unit-state setsid $command < /dev/null > /run/$unit.log 2>&1 &
echo $! > /run/service.pid
""",
}

# A holder keeps the namespaces; what is written below these folders stays inside.
PREPARE = """\
mount --make-rprivate /
mount -t tmpfs tmpfs /opt
mount -t tmpfs tmpfs /run
mount --bind "$1" /etc
protect() { mount --bind "$1" "$2" && mount -o remount,bind,ro "$2"; }
protect "$2" "$2"
protect "$3" "$3"
protect "$3" "$4/.venv"
[ ! -e "$4/.venv/installed" ] || mount --bind "$5" "$4/.venv/installed"
ip link set lo up
echo ready
exec sleep infinity
"""

SAMPLE_LOG = "\n".join(f"step {step}/1000 loss {3 - step / 1000:.3f}" for step in range(10, 200, 10)) + "\n"


class Place:
    """Runs the blocks of one page, one after another."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._running: list[Program] = []
        self._folder = folder
        self.work = folder / "training-exporter"
        self._copy_sources()
        for name, text in {"train.log": SAMPLE_LOG, **files}.items():
            (self.work / name).write_text(text, encoding="utf-8")
        self._make_environment()
        stand_ins = folder / "stand-ins"
        stand_ins.mkdir()
        for name, text in STAND_INS.items():
            (stand_ins / name).write_text(text, encoding="utf-8")
            (stand_ins / name).chmod(0o755)
        home = folder / "home"
        home.mkdir()
        self._environment = {
            "PATH": os.pathsep.join([str(stand_ins), str(home / ".local/bin"), PLACES]),
            "HOME": str(home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheelhouse()),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "LANG": "C.UTF-8",
        }
        etc = folder / "etc"
        shutil.copytree("/etc", etc, symlinks=True)
        separate = [tool("unshare"), "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        places = [etc, ROOT, sys.prefix, self.work, folder / "stamp"]
        self._holder = Program([*separate, "sh", "-euc", PREPARE, "holder", *map(str, places)], folder / "holder.log")
        wait_until("the place is there", lambda: "ready" in self._holder.text(), seconds=30)
        (self._inside,) = _children(self._holder.pid)

    def run(self, script: str) -> str:
        """Run a block to its end; what it printed. AssertionError with all of it where a command failed."""
        return output(*self._command(script), env=self._environment)

    def until(self, script: str, word: str = "") -> str:
        """Run a block again and again until it succeeds and has printed a word."""
        return wait_until(f"it prints {word!r}", lambda: self._attempt(script, word), seconds=ANSWER_SECONDS)

    def stay(self, script: str, url: str) -> None:
        """Start a block that does not end, and wait until an address answers."""
        program = Program(
            self._command(script), self._folder / f"stays-{len(self._running)}.log", env=self._environment
        )
        self._running.append(program)
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._attempt(f"curl --silent --fail {url} && echo ok", "ok") is None:
            assert program.process.poll() is None, program.text()
            assert time.monotonic() < deadline, program.text()
            time.sleep(0.1)

    def end(self) -> None:
        """End what stays, as Ctrl-C would, and a service."""
        for program in self._running:
            if program.process.poll() is None:
                os.killpg(program.pid, signal.SIGINT)
            program.process.wait(20)
        self._running.clear()
        self.run("[ ! -e /run/service.pid ] || { kill $(cat /run/service.pid); rm /run/service.pid; }")

    def close(self) -> None:
        """End everything."""
        self._holder.stop()

    def _attempt(self, script: str, word: str) -> str | None:
        done = subprocess.run(
            self._command(script), env=self._environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout or "-" if done.returncode == 0 and word in done.stdout else None

    def _command(self, script: str) -> list[str]:
        enter = [tool("nsenter"), f"--target={self._inside}", "--mount", "--net", "--pid"]
        # the folder is entered inside: outside it is another, without the environment in it
        return [*enter, "bash", "-euo", "pipefail", "-c", f"cd {shlex.quote(str(self.work))}\n{script}"]

    def _copy_sources(self) -> None:
        for name in sources():
            if not name.startswith(("tests/data/", "docs/images/")):
                (self.work / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.work / name)
        # a minute of `for` is for a hard fact to arrive, which the demo has none of
        rules = self.work / "prometheus/rules/alerts.yml"
        text, count = re.subn(r"^( +for:) 1m\b", r"\1 5s", rules.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert count
        rules.write_text(text, encoding="utf-8")

    def _make_environment(self) -> None:
        """What `make` would have built by now, newer than what it is made of; the environment itself is mounted."""
        shutil.copytree(built_wheel().parent, self.work / "build/wheel")
        (self.work / "build/wheel").touch()
        (self.work / ".venv").mkdir()
        (self._folder / "stamp").touch()


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in listed.split()]
