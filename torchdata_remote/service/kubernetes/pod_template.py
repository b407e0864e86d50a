"""Check that a dataset and torchrun's settings can be added to a pod template.

Nothing else is checked: whether the rest is valid depends on the version of Kubernetes.
"""

from __future__ import annotations

import posixpath
from typing import Any

from .field_path import FieldPath, dns_label, mapping, mappings, part, text, texts

INIT_CONTAINER, VOLUME = "pull-dataset", "dataset"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")  # resources of which one is one device
RESERVED_LABELS = ("batch.kubernetes.io/", "job-name", "controller-uid")  # set by the Job on its pods


def require_template(template: dict[str, Any], field: FieldPath, *, folder: str) -> None:
    """Require a template that the dataset can be added to.

    Args:
        template: a ``PodTemplateSpec``.
        field: its path.
        folder: at which the dataset will be mounted.

    Raises:
        JobError: for a field that is missing, of another type, or reserved; names the field.
    """
    metadata, at = part(template, "metadata", field), field.at("metadata")
    for kind in ("labels", "annotations"):
        for key, value in part(metadata, kind, at).items():
            if not isinstance(value, str):
                raise at.at(kind).at(key).wrong(value, "a text: put it into quotes")
            if kind == "labels" and key.startswith(RESERVED_LABELS):
                raise at.at(kind).at(key).wrong(value, "no label that the Job itself gives")
    if template.get("spec") is None:
        raise field.missing("spec", "a mapping with containers")
    spec, field = mapping(template["spec"], field.at("spec")), field.at("spec")
    if spec.get("restartPolicy") not in (None, "Never"):
        raise field.at("restartPolicy").wrong(
            spec["restartPolicy"], "Never, or nothing: torchrun restarts processes, and the Job makes new pods"
        )
    if spec.get("hostNetwork") and spec.get("dnsPolicy") != "ClusterFirstWithHostNet":
        raise field.at("dnsPolicy").wrong(
            spec.get("dnsPolicy"), "ClusterFirstWithHostNet beside hostNetwork, so that the first pod is found"
        )
    for volume, where in mappings(spec, "volumes", field):
        if dns_label(volume, "name", where) == VOLUME:
            raise where.at("name").wrong(VOLUME, "another name: this volume is added")
    containers = mappings(spec, "containers", field)
    if not containers:
        raise field.missing("containers", "a list of at least one container")
    for container, where in (*containers, *mappings(spec, "initContainers", field)):
        _require_container(container, where, folder)


def _require_container(container: dict[str, Any], field: FieldPath, folder: str) -> None:
    if dns_label(container, "name", field) == INIT_CONTAINER:
        raise field.at("name").wrong(INIT_CONTAINER, "another name: this container is added")
    text(container, "image", field, expected="the name of an image")
    texts(container, "command", field)
    texts(container, "args", field)
    for variable, where in mappings(container, "env", field):
        text(variable, "name", where)
        if not isinstance(variable.get("value", ""), str):
            raise where.at("value").wrong(variable["value"], "a text: put it into quotes")
    for mount, where in mappings(container, "volumeMounts", field):
        path = posixpath.normpath(text(mount, "mountPath", where))
        if f"{path}/".startswith(f"{folder}/"):
            raise where.at("mountPath").wrong(
                mount["mountPath"], f"a path that is not in {folder}, where the dataset is mounted"
            )
    part(container, "securityContext", field)
    resources, at = part(container, "resources", field), field.at("resources")
    for kind in ("limits", "requests"):
        amounts = part(resources, kind, at)
        for name in amounts.keys() & set(GPUS):
            if not str(amounts[name]).isdecimal():
                raise at.at(kind).at(name).wrong(amounts[name], "a number of devices")
