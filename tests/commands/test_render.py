"""``torchdata-remote render``."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

from tests.support.kubernetes_documents import SMALLEST
from tests.support.kubernetes_schemas import require_valid
from tests.support.paths import ROOT
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


def test_render_prints_valid_manifests(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, on standard output, and nothing on stderr."""
    assert main(["render", file]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (GOLDEN, "")
    for manifest in yaml.safe_load_all(GOLDEN):
        require_valid(manifest)


def test_render_reads_standard_input_and_writes_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text; nothing is printed then."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(file).read_bytes())))
    assert main(["render", "-", "-o", f"{tmp_path}/out.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.yaml").read_text() == GOLDEN


def test_render_options_reach_the_container_that_pulls(file: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_render_refuses_two_jobs_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is rendered; of two of the same name one would replace the other."""
    jobs = [{**SMALLEST, "metadata": {"name": name}} for name in ("cats", "dogs", "cats")]
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(jobs[:2]))
    assert main(["render", str(path)]) == 0
    names = [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(capsys.readouterr().out)]
    assert names == ["cats-0", "cats", "dogs-0", "dogs"]
    path.write_text(yaml.safe_dump_all(jobs))
    assert main(["render", str(path)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, "metadata.name: 'cats' is used twice" in captured.err) == ("", True)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", (), "job.yaml: expected a TrainingJob, got an empty document."),
        ("a: [", (), "job.yaml: got something else than YAML"),
        ("kind: Job", (), "job.yaml: apiVersion: got nothing, expected breezeml.ai/v1."),
        ("{}\n---\n3", (), "job.yaml, document 1: apiVersion: got nothing"),
        (None, (), "No such file or directory: "),
        (
            yaml.safe_dump(SMALLEST),
            ("--volume", "nfs"),
            "volume: got 'nfs', expected emptyDir, hostPath:/path or pvc:",
        ),
        (
            yaml.safe_dump(SMALLEST),
            ("-o", "/no-such-folder/out.yaml"),
            "No such file or directory: '/no-such-folder/",
        ),
    ],
)
def test_render_failure_prints_only_a_message_on_stderr(
    text: str | None, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line on stderr; stdout stays empty, so that nothing can be applied."""
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    assert main(["render", str(path), *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdata-remote: ")
    assert message in captured.err


def test_render_without_pyyaml_names_the_extra_to_install(file: str) -> None:
    program = (
        "import sys; sys.modules['yaml'] = None; from torchdata_remote.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "render", file], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'torchdata_remote[service]'" in done.stderr
