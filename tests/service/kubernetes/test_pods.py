"""What is added to the pods' template."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

from tests.support.kubernetes_documents import container, job
from torchdata_remote.service.kubernetes import RenderSettings
from torchdata_remote.service.kubernetes.pods import first_pod, pod_template


def pod(*containers: dict[str, Any], settings: RenderSettings | None = None, **spec: Any) -> dict[str, Any]:
    """The rendered specification of a pod."""
    template = pod_template(job(containers=list(containers), **spec), settings or RenderSettings())
    rendered: dict[str, Any] = template["spec"]
    return rendered


def environment(rendered: dict[str, Any]) -> dict[str, str | None]:
    """Return the environment as a dict; ``None`` for variables with valueFrom."""
    return {variable["name"]: variable.get("value") for variable in rendered["env"]}


def test_pods_have_torchruns_settings() -> None:
    """All that an elastic rendezvous at the first pod needs."""
    rendered = pod(container())["containers"][0]
    assert environment(rendered) == {
        "PET_NNODES": "2:4",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "pets",
        "PET_RDZV_ENDPOINT": "pets-0:29400",
        "PET_RDZV_CONF": "join_timeout=86400,read_timeout=3600",
        "PET_MAX_RESTARTS": "10",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_LOCAL_ADDR": None,
    }
    assert rendered["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize(
    ("limits", "processes"),
    [
        ({"nvidia.com/gpu": 8}, "8"),
        ({"nvidia.com/gpu": "2", "cpu": "4"}, "2"),
        ({"amd.com/gpu": 1}, "1"),
        ({"cpu": "4"}, None),
        ({"nvidia.com/gpu": 0}, None),
        ({"nvidia.com/mig-1g.5gb": 2}, None),
    ],
)
def test_torchrun_starts_a_process_per_gpu(limits: dict[str, Any], processes: str | None) -> None:
    """Without GPUs torchrun decides."""
    rendered = pod(container(resources={"limits": limits}))["containers"][0]
    assert environment(rendered).get("PET_NPROC_PER_NODE") == processes


def test_variables_of_the_template_have_precedence() -> None:
    """Also those with valueFrom."""
    own = [
        {"name": "PET_NNODES", "value": "3"},
        {"name": "PET_RDZV_CONF", "valueFrom": {"configMapKeyRef": {"key": "a"}}},
    ]
    rendered = pod(container(env=[*own, {"name": "A", "value": "$(PET_RDZV_ID)"}]))["containers"][0]["env"]
    names = [variable["name"] for variable in rendered]
    assert len(set(names)) == len(names)
    assert [variable for variable in rendered if variable["name"] in ("PET_NNODES", "PET_RDZV_CONF")] == own
    assert names.index("PET_RDZV_ID") < names.index("A"), "Kubernetes expands what stands before only"


def test_the_dataset_is_mounted_in_all_containers() -> None:
    """Read-only, but for the init container that pulls, which runs after the template's own."""
    first = container(volumeMounts=[{"name": "out", "mountPath": "/out"}])
    spec = pod(
        first,
        container(name="side"),
        initContainers=[container(name="prepare")],
        volumes=[{"name": "out", "emptyDir": {}}],
        settings=RenderSettings(volume="pvc:scratch"),
    )
    mount = {"name": "dataset", "mountPath": "/datasets/my_dataset", "subPath": "my_dataset"}
    assert spec["containers"][0]["volumeMounts"] == [*first["volumeMounts"], {**mount, "readOnly": True}]
    assert spec["containers"][1]["volumeMounts"] == [{**mount, "readOnly": True}]
    prepare, pull = spec["initContainers"]
    assert prepare == container(name="prepare")
    assert pull["volumeMounts"] == [mount]
    assert spec["volumes"] == [
        {"name": "out", "emptyDir": {}},
        {"name": "dataset", "persistentVolumeClaim": {"claimName": "scratch"}},
    ]


def test_the_init_container_pulls_as_the_first_containers_user() -> None:
    """With its resources, but without GPUs and privileges."""
    resources = {
        "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1, "hugepages-2Mi": "4Mi"},
        "requests": {"cpu": "2"},
    }
    security = {"runAsUser": 1000, "runAsNonRoot": True, "privileged": True, "capabilities": {"add": ["IPC_LOCK"]}}
    first = container(imagePullPolicy="Always", resources=resources, securityContext=security)
    settings = RenderSettings(service="data.ml:80", token_secret="tokens")
    (pull,) = pod(first, container(name="side", image="side:1"), settings=settings)["initContainers"]
    assert pull == {
        "name": "pull-dataset",
        "image": "train:1",
        "command": ["torchdata-remote", "pull", "datasets://data.ml:80/my_dataset", "/datasets/my_dataset"],
        "imagePullPolicy": "Always",
        "env": [
            {"name": "TORCHDATA_REMOTE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}}},
            {"name": "TORCHDATA_REMOTE_TOKEN_HOSTS", "value": "data.ml:80"},
        ],
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "2"}},
        "securityContext": {
            "runAsUser": 1000,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "dataset", "mountPath": "/datasets/my_dataset"}],
    }


def test_the_pulling_image_can_be_another_one() -> None:
    """With its own pull policy; the training does not get the token."""
    settings = RenderSettings(image="tools:2", token_secret="tokens")
    spec = pod(container(imagePullPolicy="Never"), settings=settings)
    (pull,) = spec["initContainers"]
    assert (pull["image"], "imagePullPolicy" in pull) == ("tools:2", False)
    assert "TORCHDATA_REMOTE_TOKEN" not in environment(spec["containers"][0])


def test_other_fields_of_the_template_are_unchanged() -> None:
    """And the template itself is not modified."""
    own = {
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
    }
    original = job(**own)
    before = repr(original)
    spec = pod_template(original, RenderSettings())["spec"]
    assert {name: spec[name] for name in own} == own
    assert repr(original) == before


def test_only_the_first_pod_hosts_the_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """It recognises itself by its host name, before DNS knows it."""

    def unknown(host: str, *_: Any, **__: Any) -> list[Any]:
        if host == first_pod(job()):
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, host, ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    hosts = []
    for index in range(4):
        monkeypatch.setattr(socket, "gethostname", lambda index=index: f"pets-{index}")
        hosts.append(_matches_machine_hostname(first_pod(job())))
    assert hosts == [True, False, False, False]
