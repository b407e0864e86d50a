"""A job for tests of what is rendered from it."""

from __future__ import annotations

from typing import Any

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
