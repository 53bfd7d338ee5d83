"""Finding the programs that tests start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACES = os.pathsep.join([str(Path(sys.executable).parent), str(ROOT / ".tools/bin"), os.environ.get("PATH", "")])


def tool(name: str) -> str:
    """The path of a program of the environment, of .tools/bin or of PATH; missing is a skip, in CI a failure."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing: scripts/install-test-tools")
        pytest.skip(f"{name} is missing")
    return found


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where a program is not on PATH; in CI it runs, and fails."""
    missing = shutil.which(name) is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


def sources() -> list[str]:
    """Every file that belongs to the project, relative to its folder: what git knows or would take in."""
    if not (ROOT / ".git").exists():  # an unpacked archive, in which nothing else lies but what was built
        built = (".venv", ".tools", "build", "dist")
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if path.parts[0] not in built and "cache" not in str(path))
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files"]
    listed = output(*command, "--cached", "--others", "--exclude-standard").splitlines()
    return [name for name in listed if (ROOT / name).is_file()]  # not those that are about to go


def output(*command: str | Path, **options: object) -> str:
    """What a program prints, standard error too; an AssertionError with all of it where it failed."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=300, **options
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout + done.stderr)
