"""Run trainings on Kubernetes: render a ``TrainingJob`` as manifests that need no operator in the cluster.

``yaml_documents`` reads and writes YAML, ``field_path`` locates errors in it, ``training_job`` parses a job and
``pod_template`` checks its pod template, ``pods`` adds the dataset and torchrun's settings to that template, and
``manifests`` creates the objects. PyYAML is in the extra ``[service]``; only ``yaml_documents`` needs it.
"""

from .manifests import render
from .settings import RenderSettings
from .training_job import TrainingJob

__all__ = ["RenderSettings", "TrainingJob", "render"]
