"""Pod template of a job: its own one, with the dataset and torchrun's settings added."""

from __future__ import annotations

from typing import Any

from ...storage.dataset_service.token import HOSTS_VARIABLE, TOKEN_VARIABLE
from .pod_template import GPUS, INIT_CONTAINER, VOLUME
from .settings import RenderSettings
from .training_job import TrainingJob

RENDEZVOUS_PORT = 29_400
# a pod that loses a peer fails in a collective, so each lost pod costs the others one restart
_MAX_RESTARTS = 10
# A pod may wait for a node, or for its dataset, much longer than torch's 10 minutes (join) and 60 s (read, until the
# first pod listens): the pods that wait for it would give up and lose what they pulled.
_RENDEZVOUS = "join_timeout=86400,read_timeout=3600"
_COPIED_SECURITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile")


def first_pod(job: TrainingJob) -> str:
    """Return the host name of the first pod, which hosts the rendezvous: an indexed Job gives it this name."""
    return f"{job.name}-0"


def pod_template(job: TrainingJob, settings: RenderSettings) -> dict[str, Any]:
    """Return the template of the job's pods: nothing in its own template is replaced."""
    spec = dict(job.template["spec"])
    containers = spec["containers"]
    mount = {"name": VOLUME, "mountPath": job.folder, **settings.sub_path_of(job.dataset)}
    spec["restartPolicy"] = "Never"  # a Job counts failures by pod only then
    # after the job's own init containers, which may set up the network
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _init_container(job, settings, containers[0], mount)]
    spec["containers"] = [_with_dataset(one, mount, torchrun_settings(job, one)) for one in containers]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, **settings.volume_of(job.dataset)}]
    return {**job.template, "spec": spec}


def torchrun_settings(job: TrainingJob, container: dict[str, Any]) -> list[dict[str, Any]]:
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
        "PET_RDZV_ENDPOINT": f"{first_pod(job)}:{RENDEZVOUS_PORT}",
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
