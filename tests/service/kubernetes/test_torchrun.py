"""torchrun reads what is rendered, and needs nothing on its command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from torch.distributed.run import config_from_args, parse_args

from tests.support.kubernetes_documents import container, job
from tests.support.kubernetes_pods import environment, run_pods
from torchdata_remote.service.kubernetes import RenderSettings
from torchdata_remote.service.kubernetes.pods import pod_template

MAIN = """
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit("a process that ends")
total = torch.ones(1)
dist.all_reduce(total)
names = ["RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"]
with open(f"{dist.get_rank()}.json", "w") as file:
    json.dump({**{name: os.environ[name] for name in names}, "total": total.item()}, file)
dist.destroy_process_group()
import os
import sys
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


def test_torchrun_reads_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment alone."""
    trains = container(resources={"limits": {"nvidia.com/gpu": 8}})
    (rendered,) = pod_template(job(containers=[trains]), RenderSettings())["spec"]["containers"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which torchrun would set
    for name, value in environment(rendered, 29_400).items():
        monkeypatch.setenv(name, value)
    config, command, arguments = config_from_args(parse_args(["main.py"]))  # type: ignore[no-untyped-call]  # torch's
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 4, 8)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "127.0.0.1:29400", "pets")
    assert config.rdzv_configs.items() >= {"join_timeout": "86400", "read_timeout": "3600"}.items()
    assert (config.max_restarts, config.local_addr) == (10, "127.0.0.1")
    assert (command, arguments) == (sys.executable, ["-u", "main.py"])


def test_pods_form_one_world_and_restart_after_a_failure(tmp_path: Path) -> None:
    """With plain ``torchrun main.py``; also when a pod joins late."""
    (tmp_path / "main.py").write_text(MAIN)
    trains = container(command=["torchrun", "main.py"], env=[{"name": "PET_NNODES", "value": "2"}])
    (rendered,) = pod_template(job(containers=[trains]), RenderSettings())["spec"]["containers"]
    printed = run_pods(rendered, tmp_path, num_pods=2)
    assert any("a process that ends" in one for one in printed)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found == [
        {
            "RANK": f"{rank}",
            "WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "pets",
            "TORCHELASTIC_MAX_RESTARTS": "10",
            "total": 2.0,
        }
        for rank in range(2)
    ]
