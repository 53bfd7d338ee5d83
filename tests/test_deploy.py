"""What is shipped to run the exporter somewhere: image, compose file, Kubernetes manifests, unit, scrape examples."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from operator_schemas import SCHEMAS, closed
from rule_player import promtools
from tools import ROOT, output, sources, tool
from training_exporter import __version__

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/training-exporter.service"
DROP_IN = DEPLOY / "systemd/shared-storage.conf"
# systemd's exposure, in tenths: 0 is a service that can do nothing, 96 one without any protection.
EXPOSURE, EXPOSURE_AS_ROOT = 23, 31
KUBERNETES_VERSIONS = ("1.31", "1.37")  # oldest and newest with the AppArmor field that we have schemas of
CAPABILITIES = {"SYS_PTRACE", "DAC_READ_SEARCH", "SETUID", "SETGID"}


def load(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file."""
    return dict(load(ROOT / "compose.yaml"))


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    """What kustomize makes of the Kubernetes folder."""
    return list(yaml.safe_load_all(output(tool("kubectl"), "kustomize", DEPLOY / "kubernetes")))


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only one of its kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


class TestImage:
    def test_hadolint(self) -> None:
        """Every rule of hadolint holds, none is ignored."""
        assert "ignore" not in (ROOT / "Dockerfile").read_text(encoding="utf-8")
        assert output(tool("hadolint"), "--no-color", ROOT / "Dockerfile") == ""


class TestCompose:
    def test_schema(self) -> None:
        """It is what the compose specification describes."""
        output(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", ROOT / "compose.yaml")

    def test_images_are_of_one_version(self, compose: dict[str, Any]) -> None:
        """No tag moves, and ours is the version of the package."""
        images = {name: service["image"] for name, service in compose["services"].items()}
        assert images.pop("exporter") == f"training-exporter:{__version__}"
        assert all(re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", image) for image in images.values()), images
        installation = (ROOT / "docs/install.md").read_text(encoding="utf-8")
        assert set(re.findall(r"training-exporter:(\d\S*)", installation)) == {__version__}

    def test_shipped_files_lie_where_they_are_looked_for(self, compose: dict[str, Any], tmp_path: Path) -> None:
        """Each mount has a source, and Prometheus and Alertmanager find a whole configuration behind theirs."""
        for service in compose["services"].values():
            for mount in service["volumes"]:
                source, target, *mode = mount.split(":")
                if source.startswith("./"):
                    assert mode == ["ro"]
                    place = tmp_path / target.lstrip("/")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
                elif not source.startswith("/"):
                    assert source in compose["volumes"]
        assert "2 rule files found" in output(
            promtools()[-1], "check", "config", tmp_path / "etc/prometheus/prometheus.yml"
        )
        output(tool("amtool"), "check-config", tmp_path / "etc/alertmanager/alertmanager.yml")
        (provider,) = load(tmp_path / "etc/grafana/provisioning/dashboards/training-exporter.yml")["providers"]
        folder = provider["options"]["path"]
        home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        assert Path(home).parent == Path(folder)
        assert json.loads((tmp_path / home.lstrip("/")).read_text(encoding="utf-8"))["uid"] == "training-fleet"

    def test_only_the_exporter_listens_to_the_network(self, compose: dict[str, Any]) -> None:
        """All are on the host's network, so each of the others must be told to stay on this machine."""
        services = compose["services"]
        assert {service["network_mode"] for service in services.values()} == {"host"}
        for name in ("prometheus", "alertmanager"):
            (address,) = [word for word in services[name]["command"] if word.startswith("--web.listen-address=")]
            assert address.startswith("--web.listen-address=127.0.0.1:")
        assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"

    def test_rights(self, compose: dict[str, Any]) -> None:
        """Root with four capabilities and nothing to write to but its state."""
        exporter = compose["services"]["exporter"]
        assert (exporter["user"], exporter["cap_drop"], set(exporter["cap_add"])) == ("0:0", ["ALL"], CAPABILITIES)
        assert exporter["read_only"]
        assert exporter["pid"] == "host"
        writable = [mount for mount in exporter["volumes"] if not mount.endswith(":ro")]
        assert writable == ["exporter-state:/var/lib/training-exporter"]


class TestKubernetes:
    @pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
    def test_schema(self, manifests: list[dict[str, Any]], version: str) -> None:
        """Kubernetes' own schemas hold, unknown keys refused; those of the operator are checked against ours."""
        for manifest in manifests:
            if manifest["kind"] in SCHEMAS:
                jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
            else:
                kubernetes_validate.validate(manifest, version, strict=True)

    def test_schemas_refuse(self, manifests: list[dict[str, Any]]) -> None:
        """A key that is misspelt does not pass, neither theirs nor ours."""
        daemon_set = of_kind(manifests, "DaemonSet")
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(
                daemon_set | {"spec": daemon_set["spec"] | {"selectors": {}}}, KUBERNETES_VERSIONS[0], strict=True
            )
        for kind, schema in SCHEMAS.items():
            manifest = of_kind(manifests, kind)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(manifest | {"spec": manifest["spec"] | {"x": 1}}, schema)

    def test_nothing_is_left_out(self, manifests: list[dict[str, Any]]) -> None:
        """Every manifest of the folder is in the kustomization, and all of it in one namespace."""
        folder = DEPLOY / "kubernetes"
        named = set(load(folder / "kustomization.yaml")["resources"])
        assert named == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"monitoring"}

    def test_rights(self, manifests: list[dict[str, Any]]) -> None:
        """The processes of the node, four capabilities, no token, nothing to write to but its state."""
        pod = of_kind(manifests, "DaemonSet")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert pod["hostPID"]
        assert pod["automountServiceAccountToken"] is False
        assert {manifest["kind"] for manifest in manifests} == {"DaemonSet", "ConfigMap", *SCHEMAS}
        assert (context["capabilities"]["drop"], set(context["capabilities"]["add"])) == (["ALL"], CAPABILITIES)
        assert context["readOnlyRootFilesystem"]
        assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["state"]
        assert "nvidia.com/gpu" not in str(container["resources"])

    def test_names_fit_together(self, manifests: list[dict[str, Any]]) -> None:
        """The monitor finds the pods and their port, the job has the name that the rules look for."""
        template = of_kind(manifests, "DaemonSet")["spec"]["template"]
        monitor = of_kind(manifests, "PodMonitor")["spec"]
        (container,) = template["spec"]["containers"]
        labels = template["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["jobLabel"]] == "training-exporter"
        ports = {port["name"] for port in container["ports"]}
        assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports
        assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports
        assert container["image"].rpartition(":")[2] == __version__

    def test_dashboards(self, manifests: list[dict[str, Any]]) -> None:
        """The ConfigMaps hold the dashboards, and each fits into an object of Kubernetes (1 MiB)."""
        held = [text for manifest in manifests if manifest["kind"] == "ConfigMap" for text in manifest["data"].values()]
        shipped = [path.read_text(encoding="utf-8") for path in (ROOT / "grafana/dashboards").glob("*.json")]
        assert sorted(held) == sorted(shipped)
        assert max(map(len, held)) < 2**20


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Path]:
    """The unit with a program that exists."""
    program = Path(sys.executable).with_name("training-exporter")
    text = UNIT.read_text(encoding="utf-8").replace("/opt/training-exporter/bin/training-exporter", str(program))
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    return copy


class TestSystemd:
    @pytest.mark.parametrize("with_drop_in", [False, True])
    def test_verify(self, unit: Path, *, with_drop_in: bool) -> None:
        """It has nothing to say about it, with or without the drop-in for shared storage."""
        if with_drop_in:
            folder = unit.with_name(f"{unit.name}.d")
            folder.mkdir()
            shutil.copy(DROP_IN, folder)
        assert output(tool("systemd-analyze"), "verify", "--man=no", unit) == ""

    def test_socket(self, unit: Path) -> None:
        """The optional socket belongs to the service, on the port that it has by default."""
        socket = shutil.copy(UNIT.with_suffix(".socket"), unit.with_suffix(".socket"))
        assert output(tool("systemd-analyze"), "verify", "--man=no", socket, unit) == ""
        assert "\nListenStream=14311\n" in Path(socket).read_text(encoding="utf-8")

    def test_verify_sees_faults(self, unit: Path) -> None:
        """A key that is misspelt is one of the things that it says."""
        unit.write_text(unit.read_text(encoding="utf-8").replace("Restart=", "Restrat="), encoding="utf-8")
        done = subprocess.run(
            [tool("systemd-analyze"), "verify", "--man=no", unit], capture_output=True, text=True, check=False
        )
        assert "Restrat" in done.stderr

    @pytest.mark.parametrize(("as_root", "exposure"), [(False, EXPOSURE), (True, EXPOSURE_AS_ROOT)])
    def test_exposure(self, unit: Path, *, as_root: bool, exposure: int) -> None:
        """How much it could do if it were taken over stays under what it is today."""
        if as_root:
            unit.write_text(unit.read_text(encoding="utf-8") + DROP_IN.read_text(encoding="utf-8"), encoding="utf-8")
        output(
            *(tool("systemd-analyze"), "security", "--offline=true", f"--threshold={exposure}"),
            *("--no-pager", unit),
            env={**os.environ, "NO_COLOR": "1"},
        )

    def test_environment_file(self) -> None:
        """The flags that it names exist, and as shipped it says nothing."""
        lines = (DEPLOY / "systemd/training-exporter.env").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if not line.startswith("#")] == ["ARGS="]
        flags = {word.partition("=")[0] for line in lines for word in line.split() if word.startswith("--")}
        known = output(sys.executable, "-m", "training_exporter", "serve", "--help")
        assert len(flags) > 3
        assert {flag for flag in flags if flag.replace("--no-", "--[no-]") not in known} == set()


class TestScrapes:
    """The examples of scrape configurations; Debian builds its old promtool without the discovery of Kubernetes."""

    @pytest.mark.parametrize("program", promtools())
    @pytest.mark.parametrize("name", ["static", "file_sd", "kubernetes", "remote-write"])
    def test_promtool(self, tmp_path: Path, name: str, program: str) -> None:
        """Each is a whole configuration, together with what it names."""
        shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
        shutil.copytree(ROOT / "prometheus/rules", tmp_path / "prometheus/rules")
        file = tmp_path / f"prometheus/{name}.yml"
        text = file.read_text(encoding="utf-8")
        if name == "kubernetes" and program.endswith("2.42"):
            (job,) = load(file)["scrape_configs"]
            discovery = closed({"role": {"const": "pod"}, "namespaces": closed({"names": {"type": "array"}})})
            jsonschema.validate(job.pop("kubernetes_sd_configs"), {"type": "array", "items": discovery})
            file.write_text(yaml.safe_dump({"scrape_configs": [job]}), encoding="utf-8")
        output(program, "check", "config", file)
        jobs = [job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]]
        assert jobs == ["training-exporter"]

    def test_slurm_targets(self, tmp_path: Path) -> None:
        """The list that Slurm gives becomes what Prometheus reads, each node once."""
        sinfo = tmp_path / "sinfo"
        sinfo.write_text('#!/bin/sh\n[ "$4" = --partition=gpu ] || exit 1\nprintf "gpu-2\\ngpu-1\\ngpu-2\\n"\n')
        sinfo.chmod(0o755)
        script = DEPLOY / "prometheus/slurm-targets"
        found = json.loads(output(script, "gpu", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
        assert found == [{"targets": ["gpu-1:14311", "gpu-2:14311"]}]

    def test_slurm_that_names_no_node(self, tmp_path: Path) -> None:
        """An empty list would take every node out of sight: it is an error instead."""
        sinfo = tmp_path / "sinfo"
        sinfo.write_text("#!/bin/sh\n")
        sinfo.chmod(0o755)
        done = subprocess.run(
            [DEPLOY / "prometheus/slurm-targets"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")


class TestWorkflow:
    FILE = ROOT / ".github/workflows/test.yml"

    def test_schema(self) -> None:
        """It is a workflow."""
        output(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", self.FILE)

    def test_it_runs_what_everybody_runs(self) -> None:
        """The command of the README on each Python, with actions of one version."""
        job = load(self.FILE)["jobs"]["test"]
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", action) for action in used), used
        assert ".ci/run" in [step.get("run") for step in job["steps"]]
        assert job["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]


class TestYaml:
    def test_yamllint(self) -> None:
        """Every YAML file that git knows, or would know, is clean."""
        listed = [name for name in sources() if name.endswith((".yml", ".yaml"))]
        assert len(listed) > 20
        output(tool("yamllint"), "--strict", *listed, cwd=ROOT)
