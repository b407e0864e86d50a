"""Run trainings on Kubernetes: render a ``TrainingJob`` as manifests that need no operator in the cluster.

``documents`` reads and writes YAML, ``job`` parses a job, ``manifests`` adds the dataset and torchrun's settings to its
pods. PyYAML is in the extra ``[service]``; only ``documents`` needs it.
"""

from .job import RenderSettings, TrainingJob
from .manifests import render

__all__ = ["RenderSettings", "TrainingJob", "render"]
