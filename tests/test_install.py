"""The wheel in an empty environment, and what the Dockerfile makes of this folder in an empty root directory."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import yaml

from e2e.harness import Program, fetch, free_port, wait_until
from image import Image
from tools import ROOT, output
from training_exporter import __version__
from wheelhouse import CONSTRAINTS, built_wheel, runtime_wheels, wheelhouse

MAX_DOWNLOAD_BYTES = 15 * 2**20
LOG = "step 10/100 loss 2.5\nstep 20/100 loss 2.25\n"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in an environment that has nothing but the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("empty")
    output(sys.executable, "-m", "venv", folder)
    pip = [folder / "bin/pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    output(*pip, f"--find-links={runtime_wheels()}", f"--constraint={CONSTRAINTS}", built_wheel())
    output(folder / "bin/pip", "--disable-pip-version-check", "check")
    return folder / "bin/training-exporter"


def clean(folder: Path) -> dict[str, str]:
    """An environment with a home of its own, in which nothing of this one is found."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}


class TestWheel:
    def test_version(self, command: Path, tmp_path: Path) -> None:
        """It is the version of pyproject.toml, which is where it is decided."""
        declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
        assert declared is not None
        printed = output(command, "--version", env=clean(tmp_path), cwd=tmp_path)
        assert printed == f"training-exporter {declared[1]}\n"

    def test_serve(self, command: Path, tmp_path: Path) -> None:
        """It answers a scrape and knows its version."""
        address = f"127.0.0.1:{free_port()}"
        server = Program([str(command), f"--web.listen-address={address}"], tmp_path / "log", env=clean(tmp_path))
        try:
            wait_until("it is ready", lambda: _answers(f"http://{address}/-/ready"), seconds=30)
            assert f'version="{__version__}"' in fetch(f"http://{address}/metrics")
        finally:
            server.stop()

    def test_status(self, command: Path, tmp_path: Path) -> None:
        """It looks at this machine, whatever runs here, and says so as JSON."""
        done = subprocess.run(
            [command, "status", "--for=4s", "--json"],
            env=clean(tmp_path),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode in {0, 1, 2, 3}, done.stderr
        assert json.loads(done.stdout)["exporter_version"] == __version__

    def test_demo(self, command: Path, tmp_path: Path) -> None:
        """The shipped scenarios and the template of the page are in the wheel."""
        address = f"127.0.0.1:{free_port()}"
        demo = Program([str(command), "demo", f"--web.listen-address={address}"], tmp_path / "log", env=clean(tmp_path))
        try:
            wait_until("it answers", lambda: _answers(f"http://{address}/"), seconds=120)
            (run,) = json.loads(fetch(f"http://{address}/api/v1/runs"))["runs"]
            assert run["verdict"]["state"] in {"quiet", "stalled"}
        finally:
            demo.stop()

    def test_parse_log(self, command: Path, tmp_path: Path) -> None:
        """It reads a log."""
        log = tmp_path / "train.log"
        log.write_text(LOG, encoding="utf-8")
        lines = output(command, "parse-log", "--json", log, env=clean(tmp_path)).splitlines()
        steps = [json.loads(line) for line in lines]
        assert [event["step"] for event in steps if event["event"] == "train_step"] == [10, 20]

    def test_download_is_small(self) -> None:
        """What it needs at run time is less than 15 MiB, all of it wheels."""
        files = list(runtime_wheels().iterdir())
        assert {path.suffix for path in files} == {".whl"}
        assert sum(path.stat().st_size for path in files) < MAX_DOWNLOAD_BYTES - built_wheel().stat().st_size


@pytest.fixture(scope="module")
def metadata() -> Message:
    """What PyPI would show."""
    with zipfile.ZipFile(built_wheel()) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(wheel.read(name))


class TestMetadata:
    def test_pythons_are_those_that_are_tested(self, metadata: Message) -> None:
        """Those of the classifiers, of the workflow, and the least one."""
        named = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if ":: 3." in line}
        workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
        matrix = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
        assert named == set(matrix)
        assert metadata["Requires-Python"] == f">={min(matrix, key=lambda text: int(text.partition('.')[2]))}"

    def test_what_a_package_index_asks_for(self, metadata: Message) -> None:
        """Name, licence, text, and the marker of types."""
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert len(metadata["Summary"]) < 120
        with zipfile.ZipFile(built_wheel()) as wheel:
            names = wheel.namelist()
        assert "training_exporter/py.typed" in names
        assert all(
            name.startswith(("training_exporter/", f"training_exporter-{__version__}.dist-info/")) for name in names
        )

    def test_every_dependency_has_a_tested_version(self, metadata: Message) -> None:
        """Run time, extras and tests: what an inventory of this software lists is in constraints.txt."""
        pinned = {_name(line) for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line}
        assert {_name(line) for line in metadata.get_all("Requires-Dist", [])} <= pinned

    def test_changelog_names_the_version_or_what_is_unreleased(self) -> None:
        """Keep a Changelog: the newest heading is what is not released, or this version."""
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        headings = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", text, re.MULTILINE)
        assert headings[0] in {"Unreleased", __version__}
        assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {
            *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
        }


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What the Dockerfile makes of this folder."""
    return Image(ROOT, tmp_path_factory.mktemp("image"), wheelhouse())


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, for chroot and mounts")
class TestImage:
    def test_it_starts_as_nobody_and_is_healthy(self, image: Image) -> None:
        """Its user, without rights, on a root that cannot be written: healthy, scraped, ended, its state kept."""
        scrape = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:14311/metrics').read().decode())"
        said = image.start(
            f"""{image.entrypoint} & exporter=$!
            until {image.health} 2> /tmp/said; do kill -0 $exporter; sleep 0.2; done
            python -c "{scrape}"
            touch /opt/x 2> /dev/null && exit 1
            id -u
            kill $exporter; wait $exporter"""
        )
        assert image.user == "14311:14311"
        assert re.search(rf'^training_exporter_build_info{{.*version="{re.escape(__version__)}"', said, re.MULTILINE)
        assert "\n14311\n" in said
        assert "cannot be written" not in said
        assert (image.volume(0) / "state.json").exists()

    def test_bases(self, image: Image) -> None:
        """Both stages come from one image, of one minor version of Python and one release of Debian."""
        (base,) = set(image.bases)
        assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", base)

    def test_what_is_copied_is_not_ignored(self) -> None:
        """`.dockerignore` lets through what the Dockerfile copies."""
        allowed = {
            line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
        }
        copies = re.findall(r"^COPY (?!--)(.+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for line in copies for word in line.split()[:-1]} == allowed


def _answers(url: str) -> bool:
    try:
        fetch(url)
    except OSError:
        return False
    return True


def _name(requirement: str) -> str:
    """The name of a requirement, in the one spelling that names are compared in."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()
