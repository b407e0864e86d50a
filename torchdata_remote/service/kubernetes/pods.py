"""The pods of a job: its own template, with the dataset and torchrun's settings added."""

from __future__ import annotations

from typing import Any

from .pod_template import GPUS, INIT_CONTAINER, VOLUME
from .settings import RenderSettings
from .training_job import TrainingJob

RENDEZVOUS_PORT = 29_400
_MAX_RESTARTS = (
    10  # whoever loses a peer fails in a collective, so that each pod that goes costs the others one of these
)
# A pod may wait for a node, or for its dataset, much longer than the 10 minutes and the 60 s of torch: those that are
# there already would give up, lose what they pulled, and come again to wait. The latter is for the first pod to listen.
_RENDEZVOUS = "join_timeout=86400,read_timeout=3600"
_COPIED_SECURITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile")


def first_pod(job: TrainingJob) -> str:
    """The name of the pod that ranks meet at: the host name that an indexed Job gives its first one."""
    return f"{job.name}-0"


def pod_template(job: TrainingJob, settings: RenderSettings) -> dict[str, Any]:
    """The template of the job's pods. Its own stays as it is; nothing in it is replaced."""
    spec = dict(job.template["spec"])
    containers = spec["containers"]
    mount = {"name": VOLUME, "mountPath": job.folder, **settings.sub_path_of(job.dataset)}
    spec["restartPolicy"] = "Never"  # a Job counts failures by pod only then
    # behind the job's own, which may be what makes the network work
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _init_container(job, settings, containers[0], mount)]
    spec["containers"] = [_with_dataset(one, mount, torchrun_settings(job, one)) for one in containers]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, **settings.volume_of(job.dataset)}]
    return {**job.template, "spec": spec}


def torchrun_settings(job: TrainingJob, container: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``torchrun`` reads from its environment where its command line does not say otherwise.

    Without GPUs among the container's limits the number of processes is left to torchrun, which then takes one.
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
        # Processes that begin again would find the addresses of the last round in torchrun's own store, and call there
        # (torch 2.13). So rank 0 has a store of its own, a new one in each round.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # Any pod can become rank 0, and the others then connect to it: only the first one has a name that they can look up.
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
    """The container that pulls: as the user that the first one runs as, with what that one may use, but no GPUs."""
    image = settings.image or first["image"]
    url = f"datasets://{settings.service}/{job.dataset}"
    container = {"name": INIT_CONTAINER, "image": image, "command": ["torchdata-remote", "pull", url, job.folder]}
    if image == first["image"] and first.get("imagePullPolicy"):
        container["imagePullPolicy"] = first["imagePullPolicy"]
    if settings.token_secret is not None:
        secret = {"secretKeyRef": {"name": settings.token_secret, "key": "token"}}
        container["env"] = [{"name": "TORCHDATA_REMOTE_TOKEN", "valueFrom": secret}]
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
    """CPU, memory and disk of the first container: quotas may demand them, and the pod needs no more for it."""
    found: dict[str, Any] = {}
    for kind, amounts in (first.get("resources") or {}).items():
        if kind in ("limits", "requests"):
            plain = {name: amount for name, amount in (amounts or {}).items() if "/" not in name and "huge" not in name}
            found.update({kind: plain} if plain else {})
    return found
