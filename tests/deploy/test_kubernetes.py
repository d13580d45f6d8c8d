"""Container file and manifests: valid by Kubernetes' own schemas, and true of what they run."""

from __future__ import annotations

import copy
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.settings import ENROL_PORT, GRPC_PORT, HTTP_PORT
from tests.cli.run_cli import imbrex
from tests.deploy.test_units import DAEMONS, daemons
from worker.settings import DEFAULT_PORT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
validator = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed: `make setup`"
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS = ("namespace.yaml", "coordinator.yaml", "workers.yaml")
# k3s on a home's Pis is seldom the newest: three years of Kubernetes.
VERSIONS = ("1.29", "1.33", "1.37")
KINDS = {"coordinator": "Deployment", "worker": "DaemonSet"}
PORTS = {
    "coordinator": {"https": HTTP_PORT, "inference": GRPC_PORT, "enrol": ENROL_PORT},
    "worker": {"worker": DEFAULT_PORT, "data": DEFAULT_PORT + 1},
}


def documents() -> list[dict[str, Any]]:
    return [
        document
        for name in MANIFESTS
        for document in yaml.safe_load_all((FOLDER / name).read_text())
    ]


def workload(daemon: str) -> dict[str, Any]:
    (found,) = (each for each in documents() if each["kind"] == KINDS[daemon])
    return found


def pod(daemon: str) -> dict[str, Any]:
    found: dict[str, Any] = workload(daemon)["spec"]["template"]["spec"]
    return found


def all_containers(daemon: str) -> list[dict[str, Any]]:
    return [*pod(daemon)["initContainers"], *pod(daemon)["containers"]]


def container_file() -> dict[str, list[str]]:
    """Every instruction with its arguments, lines joined."""
    text = (ROOT / "deploy/container/Containerfile").read_text()
    joined = re.sub(r"\\\n\s*", " ", "\n".join(re.findall(r"^[^#].*", text, re.M)))
    found: dict[str, list[str]] = {}
    for line in joined.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_accept_every_manifest(version: str) -> None:
    for document in documents():
        validator.validate(document, version, strict=True)


def test_the_schemas_find_a_mistake() -> None:
    wrong = copy.deepcopy(workload("worker"))
    wrong["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, VERSIONS[-1], strict=True)


def test_the_kustomization_names_what_is_there() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert tuple(kustomization["resources"]) == MANIFESTS
    generated = {each["name"]: each["files"] for each in kustomization["configMapGenerator"]}
    for daemon in KINDS:
        (volume,) = (each for each in pod(daemon)["volumes"] if "configMap" in each)
        assert generated[volume["configMap"]["name"]] == [f"{daemon}.toml"]
        assert (FOLDER / f"{daemon}.toml").exists()
        assert {each["image"] for each in all_containers(daemon)} == {
            each["name"] for each in kustomization["images"]
        }
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert [each["newTag"] for each in kustomization["images"]] == [version]


@daemons
def test_the_daemon_accepts_its_settings(daemon: str) -> None:
    file = FOLDER / f"{daemon}.toml"
    settings = DAEMONS[daemon].load(file, environ={})
    assert settings.host == "0.0.0.0"
    (running,) = pod(daemon)["containers"]
    declared = {each["name"]: each["containerPort"] for each in running["ports"]}
    assert declared == PORTS[daemon]
    if daemon == "worker":
        limit = running["resources"]["limits"]["memory"]
        assert (limit, settings.port) == ("1Gi", DEFAULT_PORT)
        assert settings.memory_mb <= 1024 // 2
    else:
        told = (settings.port, settings.grpc_port, settings.enrol_port)
        assert told == (HTTP_PORT, GRPC_PORT, ENROL_PORT)
        assert settings.tls
        assert running["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
        assert not settings.host_computes  # its node has a worker of the DaemonSet


@daemons
def test_containers_run_what_the_command_line_offers(daemon: str) -> None:
    for container in all_containers(daemon):
        arguments = container.get("args", [])
        commands = [each for each in arguments if not each.startswith(("-", "/"))]
        if commands:
            known = imbrex(*commands, "--help").out.split()
            assert [each for each in arguments if each.startswith("-") and each not in known] == []
    (running,) = pod(daemon)["containers"]
    assert running["args"][0] == daemon


def test_enrolling_uses_what_the_command_line_offers() -> None:
    script = (FOLDER / "enrol.sh").read_text()
    subprocess.run(["sh", "-n", FOLDER / "enrol.sh"], check=True)
    orders = re.findall(r"^\s+imbrex ([^|<\n]+)", script, re.M)
    assert len(orders) == 2
    for order in orders:
        words = shlex.split(order)
        commands = [each for each in words[:2] if not each.startswith("-")]
        known = imbrex(*commands, "--help").out.split()
        assert [each for each in words if each.startswith("--") and each not in known] == []
    names = [each["name"] for each in pod("worker")["initContainers"]]
    assert names.index("join") == 1  # as the script asks: initContainerStatuses[1]
    assert "initContainerStatuses[1]" in script


@daemons
def test_discovery_has_the_hosts_network(daemon: str) -> None:
    assert pod(daemon)["hostNetwork"] is True
    terms = pod(daemon)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = terms["nodeSelectorTerms"]
    needed = {each["key"]: each["values"] for each in term["matchExpressions"]}
    assert needed["kubernetes.io/arch"] == ["arm64", "amd64"]


@daemons
def test_containers_may_do_little(daemon: str) -> None:
    for container in all_containers(daemon):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert "limits" in container["resources"]
        root = context.get("runAsUser", pod(daemon)["securityContext"].get("runAsUser")) == 0
        assert root == (container["name"] == "state")
    assert pod(daemon)["automountServiceAccountToken"] is False


@daemons
def test_the_image_is_what_the_manifests_think(daemon: str) -> None:
    said = container_file()
    user, _, group = said["USER"][-1].partition(":")
    for container in all_containers(daemon):
        context = {**pod(daemon)["securityContext"], **container["securityContext"]}
        if container["name"] != "state":
            assert (str(context["runAsUser"]), str(context["runAsGroup"])) == (user, group)
    variables = dict(each.split("=", 1) for each in shlex.split(said["ENV"][-1]))
    state = variables[f"IMBREX_{daemon.upper()}_STATE_DIR"]
    (running,) = pod(daemon)["containers"]
    assert state in {each["mountPath"] for each in running["volumeMounts"]}
    ports = {int(port) for port in said["EXPOSE"][-1].split()}
    assert set(PORTS[daemon].values()) <= ports
    assert said["ENTRYPOINT"] == ['["imbrex"]']


def test_the_image_is_made_of_what_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = project["tool"]["setuptools"]
    wanted = {each.rstrip("*") for each in parts["packages"]["find"]["include"]}
    wanted |= {"pyproject.toml", "README.md"}
    wanted |= set(project["project"]["license-files"])
    copied = {
        source
        for each in container_file()["COPY"]
        if not each.startswith("--from")
        for source in each.split()[:-1]
    }
    assert copied == wanted
    sent = (ROOT / ".dockerignore").read_text()
    assert {each.removeprefix("!") for each in sent.split() if each.startswith("!")} == wanted
