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

from ...errors import JobError
from ...storage.dataset_service.token import HOSTS_VARIABLE, TOKEN_VARIABLE
from .job import GPUS, INIT_CONTAINER, TEMPLATE, VOLUME, RenderSettings, TrainingJob

_RENDEZVOUS_PORT = 29_400
# a pod that loses a peer fails in a collective, so each lost pod costs the others one restart
_MAX_RESTARTS = 10
# A pod may wait for a node, or for its dataset, much longer than torch's 10 minutes (join) and 60 s (read, until the
# first pod listens): the pods that wait for it would give up and lose what they pulled.
_RENDEZVOUS = "join_timeout=86400,read_timeout=3600"
_COPIED_SECURITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile")
_RETRIES_OF_A_POD = 3


def render(job: TrainingJob, settings: RenderSettings | None = None) -> list[dict[str, Any]]:
    """Render the objects to apply, for Kubernetes 1.31 or newer: a Service and a Job.

    Args:
        job: to run.
        settings: source and storage of its dataset.

    Returns:
        list[dict]: manifests, in the order to apply them.

    Raises:
        JobError: if the template is none.

    Example:
        >>> containers = [{"name": "train", "image": "train:1", "command": ["torchrun", "main.py"]}]
        >>> template = {"spec": {"containers": containers}}
        >>> job = TrainingJob(metadata={"name": "pets"}, dataset="pets", min_size=1, max_size=4, template=template)
        >>> service, indexed_job = render(job)
        >>> service["metadata"]["name"], indexed_job["spec"]["completions"]
        ('pets-0', 4)
    """
    try:
        return [_service(job), _job(job, settings or RenderSettings())]
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        what = f"{'.'.join(TEMPLATE)} is no template of pods ({type(error).__name__}: {error})"
        raise JobError(f"{job.source}: {what}. See kubectl explain pod.spec.") from error


def _service(job: TrainingJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**job.metadata, "name": _first_pod(job)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {
                "batch.kubernetes.io/job-name": job.name,
                "batch.kubernetes.io/job-completion-index": "0",
            },
            "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT}],
        },
    }


def _job(job: TrainingJob, settings: RenderSettings) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job.metadata,
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
            "template": _pod_template(job, settings),
        },
    }


def _first_pod(job: TrainingJob) -> str:
    """Return the host name of the first pod, which hosts the rendezvous: an indexed Job gives it this name."""
    return f"{job.name}-0"


def _pod_template(job: TrainingJob, settings: RenderSettings) -> dict[str, Any]:
    """Return the template of the job's pods: nothing in its own template is replaced."""
    spec = dict(job.template["spec"])
    spec["restartPolicy"] = spec.get("restartPolicy") or "Never"  # a Job counts failures by pod only then
    containers = spec["containers"]
    mount = {"name": VOLUME, "mountPath": job.folder, **settings.sub_path_of(job.dataset)}
    # after the job's own init containers, which may set up the network
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _init_container(job, settings, containers[0], mount)]
    spec["containers"] = [_with_dataset(one, mount, _torchrun_settings(job, one)) for one in containers]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, **settings.volume_of(job.dataset)}]
    return {**job.template, "spec": spec}


def _torchrun_settings(job: TrainingJob, container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the environment variables of ``torchrun``, whose command line has precedence.

    Without GPUs in the container's limits torchrun chooses the number of processes, which is one.
    """
    limits = (container.get("resources") or {}).get("limits") or {}
    num_gpus = sum(int(limits.get(name, 0)) for name in GPUS)
    settings = {
        "PET_NNODES": f"{job.min_size}:{job.max_size}",
        **({"PET_NPROC_PER_NODE": str(num_gpus)} if num_gpus else {}),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": job.name,
        "PET_RDZV_ENDPOINT": f"{_first_pod(job)}:{_RENDEZVOUS_PORT}",
        "PET_RDZV_CONF": _RENDEZVOUS,
        "PET_MAX_RESTARTS": str(_MAX_RESTARTS),
        # Restarted processes would find the addresses of the last round in torchrun's own store, and connect to them
        # (torch 2.13). So rank 0 has a store of its own, a new one in each round.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # Any pod can become rank 0, to which the others connect: only the first one has a name in DNS.
    address = {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [*({"name": name, "value": value} for name, value in settings.items()), address]


def _with_dataset(container: dict[str, Any], mount: dict[str, Any], settings: list[dict[str, Any]]) -> dict[str, Any]:
    own = container.get("env") or []
    names = {variable["name"] for variable in own}
    added = [variable for variable in settings if variable["name"] not in names]
    mounts = [*(container.get("volumeMounts") or ()), {**mount, "readOnly": True}]
    return {**container, "env": [*added, *own], "volumeMounts": mounts}  # so that its own can refer to what was added


def _init_container(
    job: TrainingJob, settings: RenderSettings, first: dict[str, Any], mount: dict[str, Any]
) -> dict[str, Any]:
    """Return the init container that pulls, with user and resources of the first container, but without GPUs."""
    image = settings.image or first["image"]
    url = f"datasets://{settings.service}/{job.dataset}"
    container = {"name": INIT_CONTAINER, "image": image, "command": ["torchdata-remote", "pull", url, job.folder]}
    if image == first["image"] and first.get("imagePullPolicy"):
        container["imagePullPolicy"] = first["imagePullPolicy"]
    if settings.token_secret is not None:
        secret = {"secretKeyRef": {"name": settings.token_secret, "key": "token"}}
        container["env"] = [
            {"name": TOKEN_VARIABLE, "valueFrom": secret},
            {"name": HOSTS_VARIABLE, "value": settings.service},
        ]
    resources = _resources_of(first)
    if resources:
        container["resources"] = resources
    own = first.get("securityContext") or {}
    container["securityContext"] = {
        **{name: own[name] for name in _COPIED_SECURITY if name in own},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    container["volumeMounts"] = [mount]
    return container


def _resources_of(first: dict[str, Any]) -> dict[str, Any]:
    """Return CPU, memory and disk of the first container: quotas may require them, and are free until it starts."""
    found: dict[str, Any] = {}
    for kind, amounts in (first.get("resources") or {}).items():
        if kind in ("limits", "requests"):
            plain = {name: amount for name, amount in (amounts or {}).items() if "/" not in name and "huge" not in name}
            found.update({kind: plain} if plain else {})
    return found
