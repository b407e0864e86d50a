"""``TrainingJob``: a dataset, a range of numbers of pods, and the template of the pods."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...storage.dataset_service.protocol import DATASET_NAME
from .field_path import FieldPath, dns_label, mapping, part, text
from .pod_template import require_template

API_VERSION, KIND = "breezeml.ai/v1", "TrainingJob"
_MAX_PODS, _MAX_HOST_NAME = 100_000, 63  # Kubernetes' limits of an indexed Job, and of a host name
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training on a dataset, by as many pods as available, within a range.

    Args:
        name: of the job and its objects.
        namespace: ``None`` for the current one when the manifests are applied.
        labels: of the rendered objects, not of the pods.
        dataset: name of the dataset; mounted at ``/datasets/NAME``.
        min_size: least number of pods to train with.
        max_size: greatest number of pods.
        template: of its pods, a Kubernetes ``PodTemplateSpec``.

    Example:
        >>> containers = [{"name": "train", "image": "train:1", "command": ["torchrun", "main.py"]}]
        >>> job = TrainingJob.parse({
        ...     "apiVersion": "breezeml.ai/v1",
        ...     "kind": "TrainingJob",
        ...     "metadata": {"name": "pets"},
        ...     "spec": {
        ...         "dataset": "my_dataset", "minSize": 1, "maxSize": 4,
        ...         "replicaSpecs": {"template": {"spec": {"containers": containers}}},
        ...     },
        ... }, FieldPath("job.yaml"))
        >>> job.name, job.folder, job.max_size
        ('pets', '/datasets/my_dataset', 4)
    """

    name: str
    namespace: str | None = None
    labels: dict[str, str]
    dataset: str
    min_size: int
    max_size: int
    template: dict[str, Any]

    @property
    def folder(self) -> str:
        """Return the folder at which the dataset is mounted."""
        return f"/datasets/{self.dataset}"

    @classmethod
    def parse(cls, document: Any, field: FieldPath) -> TrainingJob:
        """Parse a document.

        Raises:
            JobError: if it is no valid TrainingJob; names file and field, the value, and what was expected.
        """
        document = mapping(document, field, known=("apiVersion", "kind", "metadata", "spec"))
        for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
            text(document, key, field, pattern=re.escape(expected), expected=expected)
        spec, at = _field(document, "spec", field, ("dataset", "minSize", "maxSize", "replicaSpecs"))
        dataset = text(
            spec,
            "dataset",
            at,
            pattern=DATASET_NAME,
            expected="1 to 128 letters, digits, '.', '_' and '-', of which the first is a letter or a digit",
        )
        min_size, max_size = _size(spec, "minSize", at), _size(spec, "maxSize", at)
        if min_size > max_size:
            raise at.at("minSize").wrong(min_size, f"at most maxSize, which is {max_size}")
        replicas, replicas_at = _field(spec, "replicaSpecs", at, ("template",))
        template, template_at = _field(replicas, "template", replicas_at, ("metadata", "spec"))
        require_template(template, template_at, folder=f"/datasets/{dataset}")
        metadata, metadata_at = _field(document, "metadata", field, ("name", "namespace", "labels"))
        return cls(
            name=_name(metadata, metadata_at, max_size),
            namespace=dns_label(metadata, "namespace", metadata_at) if "namespace" in metadata else None,
            labels=_labels(metadata, metadata_at),
            dataset=dataset,
            min_size=min_size,
            max_size=max_size,
            template=template,
        )


def _field(
    parent: dict[str, Any], key: str, field: FieldPath, known: tuple[str, ...]
) -> tuple[dict[str, Any], FieldPath]:
    if parent.get(key) is None:
        raise field.missing(key, f"a mapping of {', '.join(known)}")
    return mapping(parent[key], field.at(key), known=known), field.at(key)


def _size(spec: dict[str, Any], key: str, field: FieldPath) -> int:
    expected = f"a number of pods from 1 to {_MAX_PODS:,}"
    if spec.get(key) is None:
        raise field.missing(key, expected)
    value = spec[key]
    if type(value) is not int or not 1 <= value <= _MAX_PODS:  # True is an int too
        raise field.at(key).wrong(value, expected)
    return value


def _name(metadata: dict[str, Any], field: FieldPath, max_size: int) -> str:
    """Return the job's name, from which the pods' host names are made."""
    name = text(metadata, "name", field)
    most = _MAX_HOST_NAME - len(f"-{max_size - 1}")
    if _NAME.fullmatch(name) is None or len(name) > most:
        raise field.at("name").wrong(
            name, f"at most {most} lower-case letters, digits and hyphens, the first a letter, the last no hyphen"
        )
    return name


def _labels(metadata: dict[str, Any], field: FieldPath) -> dict[str, str]:
    labels = part(metadata, "labels", field)
    for key, value in labels.items():
        if not isinstance(value, str):
            raise field.at("labels").at(key).wrong(value, "a text: put it into quotes")
    return labels
