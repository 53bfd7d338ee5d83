"""Runs the benchmarks and writes docs/benchmarks.md: what was compared, on which machine, with which versions, when.

    make bench                                            # all of them, about 40 minutes
    .venv/bin/python bench/run.py scrape.py footprint.py  # these; the other sections of the page stay as they are
    .venv/bin/python bench/run.py --quick                 # short ones, to see that they run; writes no page

Each benchmark compares side by side in one run and prints ratios; its exit status says whether they are in bounds.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs/benchmarks.md"
BENCHMARKS = (
    "scrape.py",
    "footprint.py",
    "fleet.py",
    "detection.py",
    "processes.py",
    "checkpoints.py",
    "gpu_hang.py",
    "start.py",
    "half_open.py",
    "logs.py",
)
HEAD = """# Benchmarks

Written by `make bench`. What is compared runs side by side in one go, so ratios hold where absolute times do not.
"""
VERSIONS = {
    "nvitop-exporter": [".tools/nvitop/bin/nvitop-exporter", "--version"],
    "node_exporter": [".tools/bin/prometheus-node-exporter", "--version"],
    "process-exporter": [".tools/bin/prometheus-process-exporter", "-version"],
    "mtail": [".tools/bin/mtail", "-version"],
    "Prometheus": [".tools/prometheus-3.5", "--version"],
}
VERSION = re.compile(r"\d+\.\d+\.\d+[^\s),]*")


def processor() -> str:
    """The model name of the first processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine() -> str:
    """Where and when."""
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    python = platform.python_version()
    return f"{today}, {os.cpu_count()} cores of {processor()}, Linux {platform.release()}, Python {python}"


def versions() -> str:
    """Of what ours is compared with."""
    found = {}
    for name, command in VERSIONS.items():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        version = VERSION.search(done.stdout + done.stderr)
        found[name] = version[0] if version else "unknown"
    return ", ".join(f"{name} {version}" for name, version in found.items())


def markdown(printed: str) -> str:
    """What a benchmark printed: tables as they are, everything else as plain text."""
    parts = []
    for is_table, lines in groupby(printed.splitlines(), key=lambda line: line.startswith("|")):
        text = "\n".join(lines).strip("\n")
        if text:
            parts.append(text if is_table else f"```text\n{text}\n```")
    return "\n\n".join(parts)


def section(name: str, flags: Sequence[str]) -> tuple[str, bool]:
    """The text of one benchmark, and whether it kept its bounds."""
    script = HERE / name
    about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    print(f"== {name}", flush=True)
    before = os.getloadavg()[0]
    done = subprocess.run([sys.executable, str(script), *flags], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    kept = "in bounds" if done.returncode == 0 else f"OUT OF BOUNDS (exit status {done.returncode})"
    where = f"{machine()}; load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    where += f"; all of it at nice {os.nice(0)}." if os.nice(0) else "."
    return f"## {name}: {kept}\n\n{about}\n\n{where}\n\n{markdown(done.stdout)}\n", done.returncode == 0


def write(page: Path, sections: Mapping[str, str], order: Sequence[str], about: str = "") -> None:
    """Replace these sections of the page, and keep the others as they are."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    kept = {text.split(":", 1)[0]: f"## {text}" for text in re.split(r"^## ", old, flags=re.MULTILINE)[1:]}
    found = {**kept, **sections}
    texts = [found[name].rstrip("\n") + "\n" for name in order if name in found]
    verdicts = [f"- {text.splitlines()[0].removeprefix('## ')}" for text in texts]
    page.write_text("\n".join([HEAD + about, *verdicts, "", *texts]), encoding="utf-8")


def main() -> int:
    """0 if every benchmark kept its bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="short rounds, for those that have them; no page")
    arguments = parser.parse_args()
    if unknown := set(arguments.benchmarks) - set(BENCHMARKS):
        parser.error(f"no benchmark: {', '.join(sorted(unknown))}")
    subprocess.run([str(ROOT / "scripts/install-bench-tools")], check=True)
    sections: dict[str, str] = {}
    all_kept = True
    for name in arguments.benchmarks or BENCHMARKS:
        can_be_quick = "--quick" in (HERE / name).read_text(encoding="utf-8")
        if arguments.quick and not can_be_quick:
            continue
        sections[name], kept = section(name, ["--quick"] if arguments.quick else [])
        all_kept = all_kept and kept
        if not arguments.quick:  # at once, so that an interrupted run leaves what it has
            write(PAGE, sections, BENCHMARKS, f"\nCompared with: {versions()}.\n")
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
