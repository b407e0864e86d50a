"""``torchdata-remote render``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

from tests.support.kubernetes_documents import SMALLEST
from tests.support.kubernetes_schemas import require_valid
from torchdata_remote.cli import main

GOLDEN = """\
---
apiVersion: v1
kind: Service
metadata:
  name: pets-0
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: pets
    batch.kubernetes.io/job-completion-index: '0'
  ports:
  - name: rendezvous
    port: 29400
---
apiVersion: batch/v1
kind: Job
metadata:
  name: pets
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  backoffLimitPerIndex: 3
  maxFailedIndexes: 2
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions:
      - type: DisruptionTarget
        status: 'True'
  successPolicy:
    rules:
    - succeededIndexes: '0'
    - succeededCount: 2
  template:
    spec:
      containers:
      - name: train
        image: train:1
        command:
        - torchrun
        - main.py
        env:
        - name: PET_NNODES
          value: '2:4'
        - name: PET_RDZV_BACKEND
          value: c10d
        - name: PET_RDZV_ID
          value: pets
        - name: PET_RDZV_ENDPOINT
          value: pets-0:29400
        - name: PET_RDZV_CONF
          value: 'join_timeout=86400,read_timeout=3600'
        - name: PET_MAX_RESTARTS
          value: '10'
        - name: TORCH_DISABLE_SHARE_RDZV_TCP_STORE
          value: '1'
        - name: PET_LOCAL_ADDR
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        volumeMounts:
        - name: dataset
          mountPath: /datasets/my_dataset
          readOnly: true
      restartPolicy: Never
      initContainers:
      - name: pull-dataset
        image: train:1
        command:
        - torchdata-remote
        - pull
        - datasets://torchdata-remote:8080/my_dataset
        - /datasets/my_dataset
        securityContext:
          allowPrivilegeEscalation: false
          capabilities:
            drop:
            - ALL
        volumeMounts:
        - name: dataset
          mountPath: /datasets/my_dataset
      volumes:
      - name: dataset
        emptyDir: {}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The smallest job as a file."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(SMALLEST, sort_keys=False))
    return str(path)


def test_manifests_as_they_are_applied(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, on standard output, and nothing on stderr."""
    assert main(["render", file]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == (GOLDEN, "")
    for manifest in yaml.safe_load_all(GOLDEN):
        require_valid(manifest)


def test_into_a_file_from_standard_input(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text; nothing is printed then."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    assert main(["render", "-", "-o", f"{tmp_path}/out.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.yaml").read_text() == GOLDEN


def test_options(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Service, volume, image and Secret of the container that pulls."""
    options = ["--service", "data:80", "--volume", "pvc:scratch", "--image", "tools:1", "--token-secret", "tokens"]
    assert main(["render", file, *options]) == 0
    *_, job = yaml.safe_load_all(capsys.readouterr().out)
    require_valid(job)
    pod = job["spec"]["template"]["spec"]
    (pull,) = pod["initContainers"]
    assert (pull["image"], pull["command"][2]) == ("tools:1", "datasets://data:80/my_dataset")
    assert pull["env"][0]["valueFrom"] == {"secretKeyRef": {"name": "tokens", "key": "token"}}
    assert pod["volumes"] == [{"name": "dataset", "persistentVolumeClaim": {"claimName": "scratch"}}]


def test_several_jobs_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is rendered; of two of the same name one would replace the other."""
    jobs = [{**SMALLEST, "metadata": {"name": name}} for name in ("cats", "dogs", "cats")]
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(jobs[:2]))
    assert main(["render", str(path)]) == 0
    names = [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(capsys.readouterr().out)]
    assert names == ["cats-0", "cats", "dogs-0", "dogs"]
    path.write_text(yaml.safe_dump_all(jobs))
    assert main(["render", str(path)]) == 1
    told = capsys.readouterr()
    assert (told.out, "metadata.name: got 'cats' twice" in told.err) == ("", True)


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("", (), "job.yaml: got nothing, expected a TrainingJob."),
        ("a: [", (), "job.yaml: got something else than YAML"),
        ("kind: Job", (), "job.yaml: apiVersion: got nothing, expected breezeml.ai/v1."),
        ("{}\n---\n3", (), "job.yaml, document 1: apiVersion: got nothing"),
        (None, (), "job.yaml: cannot be read: No such file or directory."),
        (
            yaml.safe_dump(SMALLEST),
            ("--volume", "nfs"),
            "volume: got 'nfs', expected emptyDir, hostPath:/path or pvc:",
        ),
        (
            yaml.safe_dump(SMALLEST),
            ("-o", "/nonexistent/out.yaml"),
            "/nonexistent/out.yaml: cannot be written: No such",
        ),
    ],
)
def test_what_is_wrong_is_told(
    text: str | None, options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line on stderr; nothing on stdout that somebody could apply."""
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    assert main(["render", str(path), *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdata-remote: ")
    assert told in captured.err


def test_without_pyyaml(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what to install."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "torchdata_remote.service.kubernetes.yaml_documents", raising=False)
    assert main(["render", file]) == 1
    assert "pip install 'torchdata_remote[service]'" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It tells every option, and ends with an example."""
    with pytest.raises(SystemExit) as caught:
        main(["render", "--help"])
    assert caught.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(word in told for word in ("--output", "--service", "--volume", "--image", "--token-secret"))
    assert told.rpartition("example: torchdata-remote ")[2].startswith("render ")
