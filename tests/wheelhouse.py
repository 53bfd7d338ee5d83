"""The built wheel, and a folder with what an installation downloads, so that tests install without the network."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
# Beside the wheel: what builds one, and what installs it in the ways that docs/install.md shows.
BUILDERS = ("hatchling", "pip", "pipx", "setuptools")


def built_wheel() -> Path:
    """The wheel that `make` built, which is what is run and tested everywhere."""
    found = sorted((ROOT / "build/wheel").glob("*.whl"))
    if len(found) != 1:
        pytest.fail(f"no single wheel in build/wheel ({found}): make build/wheel")
    return found[0]


def runtime_wheels() -> Path:
    """A folder with what the wheel needs at run time, as pip would download it here, and nothing else."""
    return _downloaded("runtime", str(built_wheel()))


def wheelhouse() -> Path:
    """A folder with all that an installation from source downloads, for PIP_FIND_LINKS."""
    return _downloaded("all", str(built_wheel()), *BUILDERS)


def _downloaded(name: str, *wanted: str) -> Path:
    # kept below build/, because several test modules and several runs need the same
    state = CONSTRAINTS.read_bytes() + built_wheel().read_bytes() + repr((sys.version, wanted)).encode()
    folder = ROOT / "build/wheelhouse" / f"{name}-{hashlib.sha256(state).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in folder.parent.glob(f"{name}-*"):
                shutil.rmtree(old)
            _download(folder, wanted)
    return folder


def _download(folder: Path, wanted: tuple[str, ...]) -> None:
    partial = folder.with_name(f"partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--only-binary=:all:", f"--constraint={CONSTRAINTS}", f"--dest={partial}", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (partial / built_wheel().name).unlink(missing_ok=True)
    partial.rename(folder)
