"""A TrainingJob is read strictly."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.service.kubernetes.documents import SMALLEST, container
from torchdata_remote.errors import JobError
from torchdata_remote.service.kubernetes import TrainingJob, render
from torchdata_remote.service.kubernetes.field_path import FieldPath

POD = ("spec", "replicaSpecs", "template", "spec")
FIRST = (*POD, "containers", 0)
GONE = object()


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


def test_what_is_read() -> None:
    """Names, sizes and the template as it came."""
    document = changed(("metadata",), {"name": "pets", "namespace": "ml", "labels": {"team": "vision"}})
    job = TrainingJob.parse(document, FieldPath("job.yaml"))
    assert (job.name, job.namespace, job.labels) == ("pets", "ml", {"team": "vision"})
    assert (job.dataset, job.folder, job.min_size, job.max_size) == ("my_dataset", "/datasets/my_dataset", 2, 4)
    assert job.template == SMALLEST["spec"]["replicaSpecs"]["template"]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("apiVersion",), "batch/v1", "apiVersion: came 'batch/v1', expected breezeml.ai/v1."),
        (("apiVersion",), GONE, "apiVersion: came nothing, expected breezeml.ai/v1."),
        (("kind",), "Job", "kind: came 'Job', expected TrainingJob."),
        (
            ("status",),
            {},
            "status: came an empty mapping, expected no such field, but apiVersion, kind, metadata, spec",
        ),
        (("metadata",), GONE, "metadata: came nothing, expected a mapping of name, namespace, labels."),
        (("metadata",), ["pets"], "metadata: came a list, expected a mapping."),
        (("metadata", "name"), GONE, "metadata.name: came nothing, expected a text."),
        (("metadata", "name"), "Pets", "metadata.name: came 'Pets', expected at most 61 lower-case letters"),
        (("metadata", "name"), "4pets", "metadata.name: came '4pets', expected at most 61"),
        (("metadata", "name"), "a" * 62, "expected at most 61 lower-case letters"),
        (("metadata", "name"), "pets\n", r"metadata.name: came 'pets\n', expected"),
        (("metadata", "namespace"), "a.b", "metadata.namespace: came 'a.b', expected a name of at most 63"),
        (
            ("metadata", "labels"),
            {"a.b/c": 3},
            "metadata.labels['a.b/c']: came 3, expected a text: put it into quotes.",
        ),
        (("metadata", "uid"), "1", "metadata.uid: came '1', expected no such field, but name, namespace, labels only."),
        (("spec",), None, "spec: came nothing, expected a mapping of dataset, minSize, maxSize, replicaSpecs."),
        (("spec", "maxsize"), 4, "spec.maxsize: came 4, expected no such field, but dataset, minSize, maxSize, rep"),
        (("spec", "dataset"), GONE, "spec.dataset: came nothing, expected 1 to 128 letters"),
        (("spec", "dataset"), "../x", "spec.dataset: came '../x', expected 1 to 128 letters"),
        (("spec", "dataset"), "a/b", "spec.dataset: came 'a/b'"),
        (("spec", "dataset"), "ä", "spec.dataset: came 'ä'"),
        (("spec", "dataset"), "a" * 129, "spec.dataset: came 'aaa"),
        (("spec", "dataset"), 7, "spec.dataset: came 7"),
        (("spec", "minSize"), GONE, "spec.minSize: came nothing, expected a number of pods from 1 to 100,000."),
        (("spec", "minSize"), "2", "spec.minSize: came '2', expected a number of pods"),
        (("spec", "minSize"), True, "spec.minSize: came True, expected a number of pods"),
        (("spec", "minSize"), 0, "spec.minSize: came 0, expected a number of pods"),
        (("spec", "minSize"), 5, "spec.minSize: came 5, expected at most maxSize, which is 4."),
        (("spec", "maxSize"), 2.0, "spec.maxSize: came 2.0, expected a number of pods"),
        (("spec", "maxSize"), 100_001, "spec.maxSize: came 100001, expected a number of pods"),
        (
            ("spec", "replicaSpecs"),
            {},
            "spec.replicaSpecs.template: came nothing, expected a mapping of metadata, spec.",
        ),
        (("spec", "replicaSpecs", "replicas"), 2, "spec.replicaSpecs.replicas: came 2, expected no such field"),
        (
            ("spec", "replicaSpecs", "template", "containers"),
            [],
            "template.containers: came an empty list, expected no",
        ),
        (POD, GONE, "spec.replicaSpecs.template.spec: came nothing, expected a mapping with containers."),
        ((*POD, "containers"), GONE, "template.spec.containers: came nothing, expected a list of at least one"),
        ((*POD, "containers"), [], "template.spec.containers: came nothing, expected a list of at least one"),
        ((*POD, "containers"), {}, "template.spec.containers: came an empty mapping, expected a list."),
        ((*POD, "containers"), ["train"], "template.spec.containers[0]: came 'train', expected a mapping."),
        ((*POD, "restartPolicy"), "OnFailure", "restartPolicy: came 'OnFailure', expected Never, or nothing"),
        ((*POD, "hostNetwork"), True, "dnsPolicy: came nothing, expected ClusterFirstWithHostNet"),
        ((*POD, "volumes"), [{"name": "dataset"}], "volumes[0].name: came 'dataset', expected another name"),
        ((*POD, "volumes"), [{}], "volumes[0].name: came nothing, expected a name of at most 63"),
        ((*FIRST, "name"), GONE, "containers[0].name: came nothing, expected a name"),
        ((*FIRST, "name"), "pull-dataset", "containers[0].name: came 'pull-dataset', expected another name"),
        ((*POD, "initContainers"), [container(name="pull-dataset")], "initContainers[0].name: came 'pull-dataset'"),
        ((*FIRST, "image"), GONE, "containers[0].image: came nothing, expected the name of an image."),
        ((*FIRST, "command"), "torchrun", "containers[0].command: came 'torchrun', expected a list."),
        ((*FIRST, "args"), ["--nnodes", 64], "containers[0].args[1]: came 64, expected a text: put it into quotes."),
        ((*FIRST, "env"), [{"name": "A", "value": 1}], "containers[0].env[0].value: came 1, expected a text"),
        ((*FIRST, "env"), [{"value": "1"}], "containers[0].env[0].name: came nothing, expected a text."),
        ((*FIRST, "volumeMounts"), [{"name": "a"}], "volumeMounts[0].mountPath: came nothing"),
        (
            (*FIRST, "resources"),
            {"limits": {"nvidia.com/gpu": "two"}},
            "limits['nvidia.com/gpu']: came 'two', expected a",
        ),
        ((*FIRST, "resources"), {"limits": []}, "resources.limits: came an empty list, expected a mapping."),
        ((*FIRST, "securityContext"), "root", "containers[0].securityContext: came 'root', expected a mapping."),
        (
            ("spec", "replicaSpecs", "template", "metadata"),
            {"labels": {"job-name": "x"}},
            "template.metadata.labels['job-name']: came 'x', expected no label that the Job itself gives.",
        ),
    ],
)
def test_what_is_wrong_is_named(path: tuple[str | int, ...], value: Any, told: str) -> None:
    """File, field, what came and what was expected."""
    with pytest.raises(JobError, match=r"^job\.yaml: ") as caught:
        TrainingJob.parse(changed(path, value), FieldPath("job.yaml"))
    assert told in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "job", 3])
def test_what_is_no_mapping_is_no_job(document: Any) -> None:
    """Whatever else it is."""
    with pytest.raises(JobError, match=r"^job\.yaml: the document: came .*, expected a mapping\.$"):
        TrainingJob.parse(document, FieldPath("job.yaml"))


@pytest.mark.parametrize(
    ("mount", "is_there"),
    [
        ("/datasets/my_dataset", True),
        ("/datasets//my_dataset/", True),
        ("/datasets/other/../my_dataset/sub", True),
        ("/datasets", False),
        ("/datasets/my_dataset2", False),
        ("/data", False),
    ],
)
def test_an_own_mount_in_the_datasets_place(mount: str, is_there: bool) -> None:
    """However it is spelled it is refused; others are not."""
    document = changed((*FIRST, "volumeMounts"), [{"name": "a", "mountPath": mount}])
    if not is_there:
        TrainingJob.parse(document, FieldPath("job.yaml"))
        return
    with pytest.raises(JobError, match="expected a path that is not in /datasets/my_dataset"):
        TrainingJob.parse(document, FieldPath("job.yaml"))


@given(
    path=st.sampled_from([(), ("metadata",), ("spec",), ("spec", "replicaSpecs"), POD, FIRST]),
    junk=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    data=st.data(),
)
def test_anything_in_a_fields_place_is_read_or_refused(
    path: tuple[str | int, ...], junk: Any, data: st.DataObject
) -> None:
    """By one kind of error; and what is read can be rendered."""
    there: Any = SMALLEST
    for key in path:
        there = there[key]
    field = data.draw(st.sampled_from(sorted(there)) | st.sampled_from(["env", "volumeMounts", "resources", "volumes"]))
    with contextlib.suppress(JobError):
        render(TrainingJob.parse(changed((*path, field), junk), FieldPath("job.yaml")))
