"""Manifests that Kubernetes takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kubernetes_documents import SMALLEST, job
from tests.support.kubernetes_schemas import require_valid
from torchdata_remote.service.kubernetes import RenderSettings, TrainingJob, render
from torchdata_remote.service.kubernetes.field_path import FieldPath
from torchdata_remote.service.kubernetes.yaml_documents import read_documents, write_documents

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
OWN_NAMES = NAMES.filter(lambda name: name not in ("dataset", "pull-dataset"))
TEXTS = st.text(max_size=20)
CONTAINERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": OWN_NAMES, "image": st.sampled_from(["train:1", "team/train@sha256:ab"])},
    optional={
        "command": st.lists(TEXTS, max_size=3),
        "args": st.none() | st.lists(TEXTS, max_size=3),
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent"]),
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["A", "PET_NNODES", "PET_RDZV_ID"]), "value": TEXTS}),
            max_size=3,
            unique_by=lambda variable: variable["name"],
        ),
        "volumeMounts": st.lists(
            st.fixed_dictionaries({"name": NAMES, "mountPath": st.sampled_from(["/a", "/datasets"])}), max_size=2
        ),
        "resources": st.dictionaries(
            st.sampled_from(["limits", "requests"]),
            st.dictionaries(
                st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 8).map(str), max_size=3
            ),
        ),
        "securityContext": st.fixed_dictionaries(
            {}, optional={"runAsUser": st.integers(0, 9), "privileged": st.booleans(), "runAsNonRoot": st.booleans()}
        ),
    },
)
POD_SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, min_size=1, max_size=3, unique_by=lambda one: one["name"])},
    optional={
        "initContainers": st.lists(CONTAINERS, max_size=2),
        "restartPolicy": st.just("Never"),
        "volumes": st.none()
        | st.lists(st.fixed_dictionaries({"name": OWN_NAMES, "emptyDir": st.just({})}), max_size=2),
        "securityContext": st.just({"runAsNonRoot": True, "fsGroup": 1}),
        "nodeSelector": st.dictionaries(NAMES, TEXTS, max_size=2),
        "terminationGracePeriodSeconds": st.integers(0, 90),
    },
)
DATASETS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True).filter(str.isascii)
SETTINGS = st.builds(
    RenderSettings,
    volume=st.sampled_from(["emptyDir", "hostPath:/mnt/data", "pvc:scratch"]),
    image=st.none() | st.just("tools:1"),
    token_secret=st.none() | st.just("tokens"),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """TrainingJobs of all kinds."""
    min_size = draw(st.integers(1, 50))
    template: dict[str, Any] = {"spec": draw(POD_SPECS)}
    if draw(st.booleans()):
        template["metadata"] = {
            "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2)),
            "annotations": {"a": draw(TEXTS)},
        }
    metadata: dict[str, Any] = {"name": draw(NAMES)}
    if draw(st.booleans()):
        metadata.update(namespace=draw(NAMES), labels=draw(st.dictionaries(NAMES, NAMES, max_size=2)))
    return {
        "apiVersion": "breezeml.ai/v1",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": {
            "dataset": draw(DATASETS),
            "minSize": min_size,
            "maxSize": draw(st.integers(min_size, 60)),
            "replicaSpecs": {"template": template},
        },
    }


@settings(max_examples=40)
@given(document=documents(), render_settings=SETTINGS)
def test_any_job_is_rendered_as_valid_manifests(document: dict[str, Any], render_settings: RenderSettings) -> None:
    """They match the schemas, also after YAML, and keep the whole template."""
    ((again, place),) = read_documents(write_documents([document]), "job.yaml")
    parsed = TrainingJob.parse(again, place)
    manifests = render(parsed, render_settings)
    for manifest, _ in read_documents(write_documents(manifests), "out.yaml"):
        require_valid(manifest)
    _, rendered = manifests
    pod, own = rendered["spec"]["template"]["spec"], document["spec"]["replicaSpecs"]["template"]["spec"]
    for key, value in own.items():
        if key not in ("containers", "initContainers", "volumes"):
            assert pod[key] == value
    mount = {"name": "dataset", "mountPath": f"/datasets/{document['spec']['dataset']}"}
    for one, before in zip(pod["containers"], own["containers"], strict=True):
        assert {**one, "env": 0, "volumeMounts": 0} == {**before, "env": 0, "volumeMounts": 0}
        assert [variable for variable in one["env"] if variable in before.get("env", [])] == before.get("env", [])
        names = [variable["name"] for variable in one["env"]]
        assert len(set(names)) == len(names)
        *own_mounts, last = one["volumeMounts"]
        assert own_mounts == before.get("volumeMounts", [])
        assert last | mount | {"readOnly": True} == last
    assert pod["initContainers"][:-1] == own.get("initContainers", [])
    assert pod["initContainers"][-1]["volumeMounts"][0] | mount == pod["initContainers"][-1]["volumeMounts"][0]


def test_the_service_selects_the_first_pod() -> None:
    """Under the name of the rendezvous."""
    service, rendered = render(job())
    assert service["metadata"]["name"] == "pets-0"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {
        "batch.kubernetes.io/job-name": "pets",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    spec = rendered["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert spec["maxFailedIndexes"] == 2, "as many as leave minSize"
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "which backoffLimitPerIndex and podFailurePolicy need"
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}, {"succeededCount": 2}]}


@pytest.mark.parametrize("namespace", [None, "ml"])
def test_both_objects_have_the_jobs_namespace_and_labels(namespace: str | None) -> None:
    """Or none."""
    metadata: dict[str, Any] = {"name": "pets"}
    if namespace is not None:
        metadata.update(namespace=namespace, labels={"team": "vision"})
    manifests = render(TrainingJob.parse({**SMALLEST, "metadata": metadata}, FieldPath("job.yaml")))
    for manifest, name in zip(manifests, ("pets-0", "pets"), strict=True):
        assert manifest["metadata"] == {**metadata, "name": name}


def test_rendering_is_deterministic() -> None:
    """Byte for byte, for version control."""
    assert write_documents(render(job())) == write_documents(render(job()))
