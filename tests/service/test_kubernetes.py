"""``torchdata-remote render``: jobs are read strictly and become manifests that Kubernetes takes and torchrun reads."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from torch.distributed.run import config_from_args, parse_args

import torchdata_remote as tdr
from tests.service.conftest import TOKEN
from tests.support.kubernetes_documents import SMALLEST
from tests.support.kubernetes_pods import environment, run_pods
from tests.support.kubernetes_schemas import require_valid
from tests.support.paths import ROOT
from torchdata_remote.cli import main

POD = ("spec", "replicaSpecs", "template", "spec")
FIRST = (*POD, "containers", 0)
GONE = object()
Manifests = tuple[dict[str, Any], dict[str, Any]]


def container(**more: Any) -> dict[str, Any]:
    return {"name": "train", "image": "train:1", **more}


def job(*containers: dict[str, Any], **pod_spec: Any) -> dict[str, Any]:
    """The smallest job, with more in its pods' specification."""
    document = copy.deepcopy(SMALLEST)
    spec = document["spec"]["replicaSpecs"]["template"]["spec"]
    spec.update(pod_spec, **({"containers": list(containers)} if containers else {}))
    return document


class Rendering:
    """Runs the command in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path, self._capsys = folder / "job.yaml", capsys

    def text(self, text: str | bytes, *options: str) -> tuple[int, str, str]:
        """Exit status, standard output and error."""
        self._path.write_bytes(text if isinstance(text, bytes) else text.encode())
        status = main(["render", str(self._path), *options])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err.replace(f"torchdata-remote: {self._path}", "job.yaml")

    def __call__(self, document: dict[str, Any], *options: str) -> Manifests:
        """Service and Job, which Kubernetes takes."""
        status, output, errors = self.text(yaml.safe_dump(document, sort_keys=False), *options)
        assert (status, errors) == (0, "")
        service, rendered = yaml.safe_load_all(output)
        for manifest in (service, rendered):
            require_valid(manifest)
        return service, rendered

    def pod(self, document: dict[str, Any], *options: str) -> dict[str, Any]:
        spec: dict[str, Any] = self(document, *options)[1]["spec"]["template"]["spec"]
        return spec

    def error(self, document: Any, *options: str) -> str:
        status, output, errors = self.text(yaml.safe_dump(document), *options)
        assert (status, output) == (1, "")
        return errors


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rendering:
    return Rendering(tmp_path, capsys)


def variables(container: dict[str, Any]) -> dict[str, str | None]:
    """The environment; ``None`` for variables with valueFrom."""
    return {variable["name"]: variable.get("value") for variable in container["env"]}


# What is rendered


NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
OWN_NAME = NAME.filter(lambda name: name not in ("dataset", "pull-dataset"))
OTHER_VALUES = [  # of YAML's parsers
    *("y", "N", "on", "Off", "null", "~", "1:4", "1e3", "0o17", "0x1F", "1_000", "2024-01-01", ".inf", "=", "<<", "no"),
]
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20) | st.sampled_from(
    [*OTHER_VALUES, "- a", "a\nb"]
)
CONTAINERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": OWN_NAME, "image": st.sampled_from(["train:1", "team/train@sha256:ab"])},
    optional={
        "command": st.lists(TEXT, max_size=3),
        "args": st.none() | st.lists(TEXT, max_size=3),
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent"]),
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["A", "PET_NNODES", "PET_RDZV_ID"]), "value": TEXT}),
            max_size=3,
            unique_by=lambda variable: variable["name"],
        ),
        "volumeMounts": st.lists(
            st.fixed_dictionaries({"name": NAME, "mountPath": st.sampled_from(["/a", "/datasets"])}), max_size=2
        ),
    },
)
POD_SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, min_size=1, max_size=3, unique_by=lambda one: one["name"])},
    optional={
        "initContainers": st.lists(CONTAINERS, max_size=2),
        "restartPolicy": st.just("Never"),
        "volumes": st.none() | st.lists(st.fixed_dictionaries({"name": OWN_NAME, "emptyDir": st.just({})}), max_size=2),
        "nodeSelector": st.dictionaries(NAME, TEXT, max_size=2),
        "terminationGracePeriodSeconds": st.integers(0, 90),
    },
)


@settings(max_examples=20)
@given(
    spec=POD_SPECS,
    dataset=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True).filter(str.isascii),
    sizes=st.tuples(st.integers(1, 50), st.integers(0, 50)),
    volume=st.sampled_from(["emptyDir", "hostPath:/mnt/data", "pvc:scratch"]),
)
def test_any_job_becomes_valid_manifests_that_keep_the_whole_template(
    spec: dict[str, Any],
    dataset: str,
    sizes: tuple[int, int],
    volume: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = job()
    document["spec"].update(dataset=dataset, minSize=sizes[0], maxSize=sum(sizes))
    document["spec"]["replicaSpecs"]["template"]["spec"] = spec
    pod = Rendering(tmp_path, capsys).pod(document, "--volume", volume)
    for key, value in spec.items():
        if key not in ("containers", "initContainers", "volumes"):
            assert pod[key] == value
    mount = {"name": "dataset", "mountPath": f"/datasets/{dataset}"}
    for one, before in zip(pod["containers"], spec["containers"], strict=True):
        assert {**one, "env": 0, "volumeMounts": 0} == {**before, "env": 0, "volumeMounts": 0}
        assert [variable for variable in one["env"] if variable in before.get("env", [])] == before.get("env", [])
        names = [variable["name"] for variable in one["env"]]
        assert len(set(names)) == len(names)
        *own_mounts, last = one["volumeMounts"]
        assert own_mounts == before.get("volumeMounts", [])
        assert last | mount | {"readOnly": True} == last
    assert pod["initContainers"][:-1] == spec.get("initContainers", [])
    assert pod["initContainers"][-1]["volumeMounts"][0] | mount == pod["initContainers"][-1]["volumeMounts"][0]


def test_service_and_job_have_the_namespace_and_the_labels_of_the_training_job(render: Rendering) -> None:
    metadata = {"name": "pets", "namespace": "ml", "labels": {"team": "vision"}}
    service, rendered = render({**SMALLEST, "metadata": metadata})
    assert (service["metadata"], rendered["metadata"]) == ({**metadata, "name": "pets-0"}, metadata)


def test_pods_have_torchruns_settings_unless_the_template_has_others(render: Rendering) -> None:
    plain = variables(render.pod(job(container()))["containers"][0])
    own = [
        {"name": "PET_NNODES", "value": "3"},
        {"name": "PET_RDZV_CONF", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "a"}}},
    ]
    env = render.pod(job(container(env=[*own, {"name": "A", "value": "$(PET_RDZV_ID)"}])))["containers"][0]["env"]
    names = [variable["name"] for variable in env]
    assert sorted(names) == sorted([*plain, "A"])
    assert [variable for variable in env if variable["name"] in ("PET_NNODES", "PET_RDZV_CONF")] == own
    assert names.index("PET_RDZV_ID") < names.index("A"), "Kubernetes expands what stands before only"


@pytest.mark.parametrize(
    ("limits", "processes"),
    [
        ({"nvidia.com/gpu": 8}, "8"),
        ({"nvidia.com/gpu": "2", "cpu": "4"}, "2"),
        ({"amd.com/gpu": 1}, "1"),
        ({"cpu": "4"}, None),
        ({"nvidia.com/gpu": 0}, None),
        ({"nvidia.com/mig-1g.5gb": 2}, None),
    ],
)
def test_torchrun_starts_a_process_for_each_gpu(
    render: Rendering, limits: dict[str, Any], processes: str | None
) -> None:
    rendered = render.pod(job(container(resources={"limits": limits})))["containers"][0]
    assert variables(rendered).get("PET_NPROC_PER_NODE") == processes


def test_the_dataset_is_pulled_as_the_first_containers_user_and_mounted_in_all_containers(render: Rendering) -> None:
    first = container(
        imagePullPolicy="Always",
        resources={
            "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1, "hugepages-2Mi": "4Mi"},
            "requests": {"cpu": "2", "hugepages-2Mi": "4Mi"},
        },
        securityContext={
            "runAsUser": 1000,
            "runAsNonRoot": True,
            "privileged": True,
            "capabilities": {"add": ["IPC_LOCK"]},
        },
        volumeMounts=[{"name": "out", "mountPath": "/out"}],
    )
    prepare, out = container(name="prepare"), {"name": "out", "emptyDir": {}}
    document = job(first, container(name="side", image="side:1"), initContainers=[prepare], volumes=[out])
    spec = render.pod(document, "--service", "data.ml:80", "--token-secret", "tokens", "--volume", "pvc:scratch")
    mount = {"name": "dataset", "mountPath": "/datasets/my_dataset", "subPath": "my_dataset"}
    assert spec["containers"][0]["volumeMounts"] == [*first["volumeMounts"], {**mount, "readOnly": True}]
    assert spec["containers"][1]["volumeMounts"] == [{**mount, "readOnly": True}]
    assert spec["volumes"] == [out, {"name": "dataset", "persistentVolumeClaim": {"claimName": "scratch"}}]
    assert "TORCHDATA_REMOTE_TOKEN" not in variables(spec["containers"][0])
    assert spec["initContainers"] == [
        prepare,
        {
            "name": "pull-dataset",
            "image": "train:1",
            "command": ["torchdata-remote", "pull", "datasets://data.ml:80/my_dataset", "/datasets/my_dataset"],
            "imagePullPolicy": "Always",
            "env": [
                {"name": "TORCHDATA_REMOTE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}}},
                {"name": "TORCHDATA_REMOTE_TOKEN_HOSTS", "value": "data.ml:80"},
            ],
            "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "2"}},
            "securityContext": {
                "runAsUser": 1000,
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [mount],
        },
    ]
    (pull,) = render.pod(job(container(imagePullPolicy="Never")), "--image", "tools:2")["initContainers"]
    assert (pull["image"], "imagePullPolicy" in pull, "env" in pull) == ("tools:2", False, False)


def test_a_folder_of_the_node_has_one_for_each_dataset(render: Rendering) -> None:
    spec = render.pod(job(), "--volume", "hostPath:/mnt/data/")
    source = {"path": "/mnt/data/my_dataset", "type": "DirectoryOrCreate"}
    assert spec["volumes"] == [{"name": "dataset", "hostPath": source}]
    assert spec["initContainers"][0]["volumeMounts"] == [{"name": "dataset", "mountPath": "/datasets/my_dataset"}]


WRONG_SETTINGS = {
    "--service": ["host", "host:0", "host:65536", ":80", "http://host:80", "host:80/x", "a b:1"],
    "--volume": [
        *("", "nfs", "emptyDir:x", "hostPath:", "hostPath:data", "hostPath:/", "hostPath:/a/../b", "hostPath:///"),
        "pvc:",
    ],
}


def test_a_setting_that_is_wrong_is_named_with_its_value(render: Rendering) -> None:
    for option, values in WRONG_SETTINGS.items():
        for value in values:
            name = option.removeprefix("--").replace("-", " ")
            assert f"{name}: got {value!r}, expected " in render.error(job(), f"{option}={value}")
    for service in ("data.ml.svc:1", "10.0.0.1:65535", "[fd00::1]:8080"):
        pull = render.pod(job(), "--service", service)["initContainers"][0]
        assert pull["command"][2] == f"datasets://{service}/my_dataset"


def test_torchrun_reads_every_setting_from_the_environment(render: Rendering, monkeypatch: pytest.MonkeyPatch) -> None:
    (rendered,) = render.pod(job(container(resources={"limits": {"nvidia.com/gpu": 8}})))["containers"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which torchrun would set
    for name, value in environment(rendered, 29_400).items():
        monkeypatch.setenv(name, value)
    config, command, arguments = config_from_args(parse_args(["main.py"]))  # type: ignore[no-untyped-call]  # torch's
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 4, 8)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "127.0.0.1:29400", "pets")
    assert config.rdzv_configs.items() >= {"join_timeout": "86400", "read_timeout": "3600"}.items()
    assert (config.max_restarts, config.local_addr) == (10, "127.0.0.1")
    assert (command, arguments) == (sys.executable, ["-u", "main.py"])


# What is refused


def changed(path: tuple[str | int, ...], value: Any) -> Any:
    """The smallest job with another value somewhere, or without it."""
    document = copy.deepcopy(SMALLEST)
    parent: Any = document
    for key in path[:-1]:
        parent = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[key]
    if value is GONE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return document


@pytest.mark.parametrize("case", json.loads(Path(__file__).with_name("wrong_jobs.json").read_text()), ids=str)
def test_an_error_names_file_field_and_value_and_what_was_expected(render: Rendering, case: dict[str, Any]) -> None:
    error = render.error(changed(tuple(case["field"]), case.get("value", GONE)))
    assert error.startswith("job.yaml: ")
    assert case["says"] in error


@given(
    path=st.sampled_from([(), ("metadata",), ("spec",), ("spec", "replicaSpecs"), POD, FIRST]),
    junk=st.one_of(st.none(), st.booleans(), st.integers(), TEXT, st.lists(TEXT), st.dictionaries(TEXT, TEXT)),
    data=st.data(),
)
def test_any_value_of_a_field_is_rendered_or_refused_by_an_error_that_names_the_file(
    path: tuple[str | int, ...], junk: Any, data: st.DataObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent: Any = SMALLEST
    for key in path:
        parent = parent[key]
    more = ["env", "volumeMounts", "resources", "volumes"]
    field = data.draw(st.sampled_from([*sorted(parent), *more]))
    status, output, errors = Rendering(tmp_path, capsys).text(yaml.safe_dump(changed((*path, field), junk)))
    assert (status == 0 and not errors and output) or (status == 1 and errors.startswith("job.yaml") and not output)


# YAML


def nested(levels: int, before: str, after: str) -> str:
    """Documents of a few lines that stand for ``10 ** levels`` values."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, levels + 1):
        inside = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {before}{inside}{after}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: \x80", "expected a TrainingJob"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: !!binary aGk=", "bytes is not JSON"),
        ("a: .nan", "not JSON compliant"),
        ("a: &a [*a]", "Circular reference"),
        ("[" * 5_000, "expected a TrainingJob"),
        (nested(8, "[", "]"), "more than 30 aliases"),
        (nested(9, "{<<: [", "]}"), ""),
        ("a: &a {" + ", ".join(f"k{i}: v" for i in range(400)) + "}\nb: {<<: [" + ", ".join(["*a"] * 400) + "]}", ""),
        ("a: &a {<<: *a}", ""),
        *((f"a: {number}", "") for number in ("1" + ":59" * 3000, "0x" + "f" * 5000, "9" * 5000)),
        ("3", "the document: got 3, expected a mapping."),
    ],
)
def test_other_yaml_is_refused_by_an_error_that_names_the_file(
    render: Rendering, text: str | bytes, message: str
) -> None:
    status, output, errors = render.text(text)
    assert (status, output) == (1, "")
    assert errors.startswith("job.yaml")
    assert message in errors


def test_texts_that_other_parsers_take_for_something_else_are_quoted_and_anchors_are_not_written(
    render: Rendering,
) -> None:
    labels = {f"l{number}": value for number, value in enumerate(OTHER_VALUES)}
    document = changed(("metadata",), {"name": "pets", "labels": labels})
    text = yaml.safe_dump(document)
    assert "Object of type date is not JSON" in render.text(text.replace("'2024-01-01'", "2024-01-01"))[2]
    status, output, _ = render.text(text)
    assert (status, [one["metadata"]["labels"] for one in yaml.safe_load_all(output)]) == (0, [labels, labels])
    for name, value in labels.items():
        assert f"{name}: '{value}'" in output or f'{name}: "{value}"' in output
    assert "&" not in output
    assert output.isascii()
    assert render.text(text)[1] == output


def test_yamls_merge_keys_are_read_as_they_are_meant(render: Rendering) -> None:
    text = yaml.safe_dump(job()).replace("metadata:\n  name: pets\n", "")
    labels = "{<<: [&a {x: '1', y: '1'}, &b {y: '2', z: '2'}], x: '3'}"
    status, output, errors = render.text(f"{text}metadata: {{name: pets, labels: {labels}}}\n")
    assert (status, errors) == (0, "")
    assert next(yaml.safe_load_all(output))["metadata"]["labels"] == {"x": "3", "y": "1", "z": "2"}


# The example of the documentation

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
def example(render: Rendering) -> Callable[..., Manifests]:
    return lambda *options: render(yaml.safe_load((KUBERNETES / "job.yaml").read_text()), *options)


def test_the_manifests_of_the_service_are_valid_and_fit_each_other_and_the_job(
    example: Callable[..., Manifests],
) -> None:
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
    pull = example("--token-secret", volumes["token"]["secret"]["secretName"])[1]["spec"]["template"]["spec"][
        "initContainers"
    ][-1]
    where = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert pull["command"][2:] == [f"datasets://{where}/my_dataset", "/datasets/my_dataset"]
    assert pull["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_container_that_pulls_copies_the_dataset_with_the_secrets_token_once(
    guarded: str, tmp_path: Path, example: Callable[..., Manifests], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("datasets", token=TOKEN).pipe_file(f"{guarded}/my_dataset/a", b"1")
    pod = example("--token-secret", "torchdata-remote", "--service", guarded)[1]["spec"]["template"]["spec"]
    (pulls,), (trains,) = pod["initContainers"], pod["containers"]
    secret, hosts = pulls["env"]
    assert (secret["name"], secret["valueFrom"]["secretKeyRef"]["key"]) == ("TORCHDATA_REMOTE_TOKEN", "token")
    assert (hosts["name"], hosts["value"]) == ("TORCHDATA_REMOTE_TOKEN_HOSTS", guarded)
    monkeypatch.setenv(secret["name"], TOKEN)
    for _ in range(2):  # the second time in a replacement of the pod
        assert main([*pulls["command"][1:-1], str(tmp_path / "volume")]) == 0
        assert (tmp_path / "volume" / "a").read_bytes() == b"1"
    mounted = {mount["name"]: mount["mountPath"] for mount in trains["volumeMounts"]}["dataset"]
    assert pulls["command"][-1] == mounted == "/datasets/my_dataset"


@pytest.mark.slow
def test_a_training_on_shards_continues_from_its_checkpoint_in_two_pods_and_one(
    images: Path, tmp_path: Path, example: Callable[..., Manifests]
) -> None:
    shards = tmp_path / "shards"
    tdr.shard_dataset(
        str(images), f"{shards}/{{shard:03d}}.tar", labels=tdr.labels.parent_directory(), max_shard_samples=12
    )
    (trains,) = example()[1]["spec"]["template"]["spec"]["containers"]
    assert trains["command"] == ["torchrun", "main.py"]
    (tmp_path / "main.py").write_bytes((KUBERNETES / "main.py").read_bytes())
    arguments = ["--data", str(shards), "--checkpoint", str(tmp_path / "c.pt"), "--epochs", "1", "--workers", "0"]
    pods = {**trains, "args": arguments, "env": [{"name": "PET_NNODES", "value": "2"}, *trains["env"][1:]]}
    text = "".join(run_pods(pods, tmp_path, num_pods=2))
    assert "2 ranks, 4 classes, from epoch 0" in text
    assert f"epoch 0: {NUM_IMAGES // 2} images a rank" in text
    command = [sys.executable, str(KUBERNETES / "main.py"), "--data", str(shards), "--workers", "0"]
    printed: list[tuple[str, str]] = []
    for epochs in ("2", "3"):
        done = subprocess.run(
            [*command, "--epochs", epochs, "--checkpoint", str(tmp_path / "alone.pt")],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.stdout.startswith(f"1 ranks, 4 classes, from epoch {2 * len(printed)}\n")
        printed += re.findall(r"^epoch (\d): (\d+) images", done.stdout, re.MULTILINE)
    assert printed == [("0", "48"), ("1", "48"), ("2", "48")]
