"""Runs every benchmark and writes docs/benchmarks.md: what was compared, on which machine, with which versions, when.

    make bench

Each benchmark compares side by side in one run and prints ratios; its exit status says whether they are in bounds.
"""

from __future__ import annotations

import ast
import datetime as dt
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs/benchmarks.md"
BENCHMARKS = ("processes.py", "gpu_hang.py", "logs.py")


def processor() -> str:
    """The model name of the first processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def section(name: str) -> tuple[str, bool]:
    """The text of one benchmark, and whether it kept its bounds."""
    script = HERE / name
    about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    print(f"== {name}", flush=True)
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    kept = "in bounds" if done.returncode == 0 else f"OUT OF BOUNDS (exit status {done.returncode})"
    return f"## {name}: {kept}\n\n{about}\n\n```text\n{done.stdout.rstrip()}\n```\n", done.returncode == 0


def main() -> int:
    """0 if every benchmark kept its bounds."""
    subprocess.run([str(HERE.parent / "scripts/install-bench-tools")], check=True)
    sections = [section(name) for name in BENCHMARKS]
    machine = f"{os.cpu_count()} cores of {processor()}, Linux {platform.release()}, Python {platform.python_version()}"
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    head = f"# Benchmarks\n\nWritten by `make bench` on {today}: {machine}.\nRatios hold, absolute times do not.\n"
    PAGE.write_text("\n".join([head, *(text for text, _ in sections)]), encoding="utf-8")
    return 0 if all(kept for _, kept in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
