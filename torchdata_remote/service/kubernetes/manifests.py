"""Kubernetes objects of a job: an indexed Job, and the Service by which its pods find the first one.

The first pod (index 0) hosts the rendezvous store of torchrun. Its host name is ``NAME-0``, and a headless Service of
the same name resolves to its address. So torchrun in the first pod recognises itself as the host by its host name,
even before DNS knows the name.

- *Fewer pods than maxSize fit into the cluster:* the others wait for nodes. Training starts with minSize pods (after
  30 s in which others may join), and restarts from its checkpoint when another pod joins.
- *A pod dies:* torchrun restarts the processes of the remaining pods, or waits for minSize. An evicted pod is replaced
  and not counted; a failed one is replaced three times. After that the training continues without it, as long as
  minSize pods are left.
- *The first pod dies:* the store is lost, and torchrun ends everywhere; all pods are created again, and resume from
  the checkpoint.
- *Some pods finish early:* torchrun waits 300 s for the others. When it has succeeded in the first pod, or in minSize
  pods, the Job has succeeded, and pods that still wait for a node are removed.
"""

from __future__ import annotations

from typing import Any

from .pods import RENDEZVOUS_PORT, first_pod, pod_template
from .settings import RenderSettings
from .training_job import TrainingJob

_RETRIES_OF_A_POD = 3


def render(job: TrainingJob, settings: RenderSettings | None = None) -> list[dict[str, Any]]:
    """Render the objects to apply, for Kubernetes 1.31 or newer: a Service and a Job.

    Args:
        job: to run.
        settings: source and storage of its dataset.

    Returns:
        list[dict]: manifests, in the order to apply them.

    Example:
        >>> containers = [{"name": "train", "image": "train:1", "command": ["torchrun", "main.py"]}]
        >>> template = {"spec": {"containers": containers}}
        >>> job = TrainingJob(name="pets", labels={}, dataset="pets", min_size=1, max_size=4, template=template)
        >>> service, indexed_job = render(job)
        >>> service["metadata"]["name"], indexed_job["spec"]["completions"]
        ('pets-0', 4)
    """
    return [_service(job), _job(job, settings or RenderSettings())]


def _service(job: TrainingJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, first_pod(job)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {
                "batch.kubernetes.io/job-name": job.name,
                "batch.kubernetes.io/job-completion-index": "0",
            },
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def _job(job: TrainingJob, settings: RenderSettings) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, job.name),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.max_size,
            "parallelism": job.max_size,
            "backoffLimitPerIndex": _RETRIES_OF_A_POD,
            "maxFailedIndexes": job.max_size - job.min_size,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "successPolicy": {"rules": [{"succeededIndexes": "0"}, {"succeededCount": job.min_size}]},
            "template": pod_template(job, settings),
        },
    }


def _metadata(job: TrainingJob, name: str) -> dict[str, Any]:
    return {
        "name": name,
        **({} if job.namespace is None else {"namespace": job.namespace}),
        **({"labels": dict(job.labels)} if job.labels else {}),
    }
