"""A TrainingJob is read strictly."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kubernetes_documents import SMALLEST, container
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


def test_a_valid_job_is_parsed() -> None:
    """Names, sizes and the unchanged template."""
    document = changed(("metadata",), {"name": "pets", "namespace": "ml", "labels": {"team": "vision"}})
    job = TrainingJob.parse(document, FieldPath("job.yaml"))
    assert (job.name, job.namespace, job.labels) == ("pets", "ml", {"team": "vision"})
    assert (job.dataset, job.folder, job.min_size, job.max_size) == ("my_dataset", "/datasets/my_dataset", 2, 4)
    assert job.template == SMALLEST["spec"]["replicaSpecs"]["template"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("apiVersion",), "batch/v1", "apiVersion: got 'batch/v1', expected breezeml.ai/v1."),
        (("apiVersion",), GONE, "apiVersion: got nothing, expected breezeml.ai/v1."),
        (("kind",), "Job", "kind: got 'Job', expected TrainingJob."),
        (
            ("status",),
            {},
            "status: got an empty mapping, expected no such field, but apiVersion, kind, metadata, spec",
        ),
        (("metadata",), GONE, "metadata: got nothing, expected a mapping of name, namespace, labels."),
        (("metadata",), ["pets"], "metadata: got a list, expected a mapping."),
        (("metadata", "name"), GONE, "metadata.name: got nothing, expected a text."),
        (("metadata", "name"), "Pets", "metadata.name: got 'Pets', expected at most 61 lower-case letters"),
        (("metadata", "name"), "4pets", "metadata.name: got '4pets', expected at most 61"),
        (("metadata", "name"), "a" * 62, "expected at most 61 lower-case letters"),
        (("metadata", "name"), "pets\n", r"metadata.name: got 'pets\n', expected"),
        (("metadata", "namespace"), "a.b", "metadata.namespace: got 'a.b', expected a name of at most 63"),
        (
            ("metadata", "labels"),
            {"a.b/c": 3},
            "metadata.labels['a.b/c']: got 3, expected a text: put it into quotes.",
        ),
        (("metadata", "uid"), "1", "metadata.uid: got '1', expected no such field, but name, namespace, labels only."),
        (("spec",), None, "spec: got nothing, expected a mapping of dataset, minSize, maxSize, replicaSpecs."),
        (("spec", "maxsize"), 4, "spec.maxsize: got 4, expected no such field, but dataset, minSize, maxSize, rep"),
        (("spec", "dataset"), GONE, "spec.dataset: got nothing, expected 1 to 128 letters"),
        (("spec", "dataset"), "../x", "spec.dataset: got '../x', expected 1 to 128 letters"),
        (("spec", "dataset"), "a/b", "spec.dataset: got 'a/b'"),
        (("spec", "dataset"), "ä", "spec.dataset: got 'ä'"),
        (("spec", "dataset"), "a" * 129, "spec.dataset: got 'aaa"),
        (("spec", "dataset"), 7, "spec.dataset: got 7"),
        (("spec", "minSize"), GONE, "spec.minSize: got nothing, expected a number of pods from 1 to 100,000."),
        (("spec", "minSize"), "2", "spec.minSize: got '2', expected a number of pods"),
        (("spec", "minSize"), True, "spec.minSize: got True, expected a number of pods"),
        (("spec", "minSize"), 0, "spec.minSize: got 0, expected a number of pods"),
        (("spec", "minSize"), 5, "spec.minSize: got 5, expected at most maxSize, which is 4."),
        (("spec", "maxSize"), 2.0, "spec.maxSize: got 2.0, expected a number of pods"),
        (("spec", "maxSize"), 100_001, "spec.maxSize: got 100001, expected a number of pods"),
        (
            ("spec", "replicaSpecs"),
            {},
            "spec.replicaSpecs.template: got nothing, expected a mapping of metadata, spec.",
        ),
        (("spec", "replicaSpecs", "replicas"), 2, "spec.replicaSpecs.replicas: got 2, expected no such field"),
        (
            ("spec", "replicaSpecs", "template", "containers"),
            [],
            "template.containers: got an empty list, expected no",
        ),
        (POD, GONE, "spec.replicaSpecs.template.spec: got nothing, expected a mapping with containers."),
        ((*POD, "containers"), GONE, "template.spec.containers: got nothing, expected a list of at least one"),
        ((*POD, "containers"), [], "template.spec.containers: got nothing, expected a list of at least one"),
        ((*POD, "containers"), {}, "template.spec.containers: got an empty mapping, expected a list."),
        ((*POD, "containers"), ["train"], "template.spec.containers[0]: got 'train', expected a mapping."),
        ((*POD, "restartPolicy"), "OnFailure", "restartPolicy: got 'OnFailure', expected Never, or nothing"),
        ((*POD, "hostNetwork"), True, "dnsPolicy: got nothing, expected ClusterFirstWithHostNet"),
        ((*POD, "volumes"), [{"name": "dataset"}], "volumes[0].name: got 'dataset', expected another name"),
        ((*POD, "volumes"), [{}], "volumes[0].name: got nothing, expected a name of at most 63"),
        ((*FIRST, "name"), GONE, "containers[0].name: got nothing, expected a name"),
        ((*FIRST, "name"), "pull-dataset", "containers[0].name: got 'pull-dataset', expected another name"),
        ((*POD, "initContainers"), [container(name="pull-dataset")], "initContainers[0].name: got 'pull-dataset'"),
        ((*FIRST, "image"), GONE, "containers[0].image: got nothing, expected the name of an image."),
        ((*FIRST, "command"), "torchrun", "containers[0].command: got 'torchrun', expected a list."),
        ((*FIRST, "args"), ["--nnodes", 64], "containers[0].args[1]: got 64, expected a text: put it into quotes."),
        ((*FIRST, "env"), [{"name": "A", "value": 1}], "containers[0].env[0].value: got 1, expected a text"),
        ((*FIRST, "env"), [{"value": "1"}], "containers[0].env[0].name: got nothing, expected a text."),
        ((*FIRST, "volumeMounts"), [{"name": "a"}], "volumeMounts[0].mountPath: got nothing"),
        (
            (*FIRST, "resources"),
            {"limits": {"nvidia.com/gpu": "two"}},
            "limits['nvidia.com/gpu']: got 'two', expected a",
        ),
        ((*FIRST, "resources"), {"limits": []}, "resources.limits: got an empty list, expected a mapping."),
        ((*FIRST, "securityContext"), "root", "containers[0].securityContext: got 'root', expected a mapping."),
        (
            ("spec", "replicaSpecs", "template", "metadata"),
            {"labels": {"job-name": "x"}},
            "template.metadata.labels['job-name']: got 'x', expected no label that the Job itself gives.",
        ),
    ],
)
def test_errors_name_file_field_and_value(path: tuple[str | int, ...], value: Any, message: str) -> None:
    """And what was expected."""
    with pytest.raises(JobError, match=r"^job\.yaml: ") as caught:
        TrainingJob.parse(changed(path, value), FieldPath("job.yaml"))
    assert message in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "job", 3])
def test_a_document_must_be_a_mapping(document: Any) -> None:
    with pytest.raises(JobError, match=r"^job\.yaml: the document: got .*, expected a mapping\.$"):
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
def test_a_mount_inside_the_datasets_folder_is_refused(mount: str, is_there: bool) -> None:
    """However its path is spelled."""
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
def test_any_value_of_a_field_is_parsed_or_refused(path: tuple[str | int, ...], junk: Any, data: st.DataObject) -> None:
    """By JobError; a parsed job can be rendered."""
    parent: Any = SMALLEST
    for key in path:
        parent = parent[key]
    field = data.draw(
        st.sampled_from(sorted(parent)) | st.sampled_from(["env", "volumeMounts", "resources", "volumes"])
    )
    with contextlib.suppress(JobError):
        render(TrainingJob.parse(changed((*path, field), junk), FieldPath("job.yaml")))
