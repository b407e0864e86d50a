"""Trainings in a cluster: a ``TrainingJob`` becomes manifests that Kubernetes knows without anybody's help.

``documents`` is YAML in and out, ``place`` says where in it something is wrong, ``training_job`` reads a job and
``template`` the part of it that is Kubernetes' own, ``pods`` adds the dataset and torchrun's settings to that, and
``manifests`` has the objects around it. PyYAML is of the extra ``[service]``; only ``documents`` needs it.
"""

from .manifests import render
from .settings import RenderSettings
from .training_job import TrainingJob

__all__ = ["RenderSettings", "TrainingJob", "render"]
