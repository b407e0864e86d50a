"""Jobs for tests."""

from __future__ import annotations

import copy
from typing import Any

from torchdata_remote.service.kubernetes import TrainingJob
from torchdata_remote.service.kubernetes.field_path import FieldPath

SMALLEST: dict[str, Any] = {
    "apiVersion": "breezeml.ai/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "pets"},
    "spec": {
        "dataset": "my_dataset",
        "minSize": 2,
        "maxSize": 4,
        "replicaSpecs": {
            "template": {
                "spec": {"containers": [{"name": "train", "image": "train:1", "command": ["torchrun", "main.py"]}]}
            }
        },
    },
}


def job(**pod_spec: Any) -> TrainingJob:
    """The smallest job, with more in its pods' specification."""
    document = copy.deepcopy(SMALLEST)
    document["spec"]["replicaSpecs"]["template"]["spec"].update(pod_spec)
    return TrainingJob.parse(document, FieldPath("job.yaml"))


def container(**more: Any) -> dict[str, Any]:
    """A container, with more in it."""
    return {"name": "train", "image": "train:1", **more}
