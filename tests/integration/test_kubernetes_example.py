"""``examples/kubernetes``: valid manifests, and a training by their commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

from tests.servers.service import running_service
from tests.support.kubernetes_pods import run_pods
from tests.support.kubernetes_schemas import require_valid
from tests.support.paths import ROOT
from torchdata_remote import push, shard_dataset
from torchdata_remote.cli import main
from torchdata_remote.labels import parent_directory

EXAMPLES = ROOT / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
NUM_IMAGES = 48


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images in a folder for each class."""
    folder = tmp_path_factory.mktemp("datasets") / "my_dataset"
    command = [sys.executable, str(EXAMPLES / "make_pictures.py"), str(folder), "--num", str(NUM_IMAGES)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def shards(images: Path, tmp_path: Path) -> Path:
    """The same images as shards."""
    folder = tmp_path / "shards"
    shard_dataset(str(images), f"{folder}/{{shard:03d}}.tar", labels=parent_directory(), max_shard_samples=12)
    return folder


def rendered(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Service and Job of the example."""
    assert main(["render", str(KUBERNETES / "job.yaml"), *options]) == 0
    service, job = yaml.safe_load_all(capsys.readouterr().out)
    return service, job


def train(dataset: Path, folder: Path, epochs: int) -> str:
    """The output of a training without ``torchrun``."""
    command = [sys.executable, str(KUBERNETES / "main.py"), "--data", str(dataset), "--epochs", str(epochs)]
    done = subprocess.run(
        [*command, "--workers", "0", "--checkpoint", str(folder / "checkpoints" / "c.pt")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train_in_two_pods(container: dict[str, Any], dataset: Path, folder: Path) -> None:
    """Run the container's command twice, as it was rendered: each rank sees half of the images."""
    (folder / "main.py").write_bytes((KUBERNETES / "main.py").read_bytes())
    arguments = ["--data", str(dataset), "--checkpoint", str(folder / "c.pt"), "--epochs", "1", "--workers", "0"]
    pods = {**container, "args": arguments, "env": [{"name": "PET_NNODES", "value": "2"}, *container["env"][1:]]}
    printed = "".join(run_pods(pods, folder, num_pods=2))
    assert "2 ranks, 4 classes, from epoch 0" in printed
    assert f"epoch 0: {NUM_IMAGES // 2} images a rank" in printed


def test_the_service_manifests_are_valid_and_fit_each_other() -> None:
    """Claim, Service and Deployment; the probes need no token."""
    claim, service, deployment = yaml.safe_load_all((KUBERNETES / "service.yaml").read_text())
    for manifest in (claim, service, deployment):
        require_valid(manifest)
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (serve,) = template["spec"]["containers"]
    (port,) = serve["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert f"--port={port['containerPort']}" in serve["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert serve[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in serve["volumeMounts"]}
    assert set(volumes) == set(mounts)
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert f"--root={mounts['data']}" in serve["args"]
    assert f"--token-file={mounts['token']}/token" in serve["args"]


def test_the_job_finds_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    """By its default name and port, with its Secret; the rendered manifests are valid."""
    _, service, deployment = yaml.safe_load_all((KUBERNETES / "service.yaml").read_text())
    secret = deployment["spec"]["template"]["spec"]["volumes"][-1]["secret"]["secretName"]
    manifests = rendered(capsys, "--token-secret", secret)
    for manifest in manifests:
        require_valid(manifest)
    pull = manifests[1]["spec"]["template"]["spec"]["initContainers"][-1]
    where = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert pull["command"][2:] == [f"datasets://{where}/my_dataset", "/datasets/my_dataset"]
    assert pull["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("kind", [pytest.param("images", marks=pytest.mark.slow), "shards"])
def test_a_restarted_training_continues_from_its_checkpoint(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each epoch has each image."""
    dataset = request.getfixturevalue(kind)
    printed = train(dataset, tmp_path, 2)
    assert printed.startswith("1 ranks, 4 classes, from epoch 0\n")
    assert re.findall(r"^epoch (\d): (\d+) images", printed, re.MULTILINE) == [("0", "48"), ("1", "48")]
    printed = train(dataset, tmp_path, 3)
    assert printed.startswith("1 ranks, 4 classes, from epoch 2\n")
    assert re.findall(r"^epoch (\d): (\d+) images", printed, re.MULTILINE) == [("2", "48")]


def test_a_job_from_the_service_to_a_trained_net(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Kubernetes: the init container pulls from the service, and two pods train on the images."""
    token = tmp_path / "token"
    token.write_text("t" * 32)
    with running_service(tmp_path / "hosted", token_file=token) as address:
        options = {"token": "t" * 32}
        push(images, f"datasets://{address}/my_dataset", storage_options=options)
        _, job = rendered(capsys, "--token-secret", "torchdata-remote", "--service", address)
        pod = job["spec"]["template"]["spec"]
        (pulls,), (trains,) = pod["initContainers"], pod["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in trains["volumeMounts"]}["dataset"]
        assert mounted == "/datasets/my_dataset"
        (secret,) = [variable for variable in pulls["env"] if "valueFrom" in variable]
        assert (secret["name"], secret["valueFrom"]["secretKeyRef"]["key"]) == ("TORCHDATA_REMOTE_TOKEN", "token")
        (hosts,) = [variable for variable in pulls["env"] if variable["name"] == "TORCHDATA_REMOTE_TOKEN_HOSTS"]
        assert hosts["value"] == address
        volume = tmp_path / "volume"
        for expected in (f"{NUM_IMAGES} files", "0 files"):  # the second time in a replacement of the pod
            done = subprocess.run(
                [sys.executable, "-m", "torchdata_remote.cli", *pulls["command"][1:-1], str(volume)],
                env={**os.environ, secret["name"]: token.read_text()},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
    assert pulls["command"][-1] == mounted
    train_in_two_pods(trains, volume, tmp_path)


def test_two_pods_train_on_half_of_the_shards_each(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the rendered command of the container, with one checkpoint; the test above has two pods with loose images."""
    _, job = rendered(capsys)
    (trains,) = job["spec"]["template"]["spec"]["containers"]
    assert trains["command"] == ["torchrun", "main.py"]
    train_in_two_pods(trains, shards, tmp_path)
    assert (tmp_path / "c.pt").is_file()
