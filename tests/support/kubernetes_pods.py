"""Pods on this machine: a rendered container's command, in its environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.support.ports import free_port


def environment(container: dict[str, Any], port: int) -> dict[str, str]:
    """What Kubernetes would set, with all pods at this machine's own address."""
    found = {variable["name"]: variable.get("value", "127.0.0.1") for variable in container["env"]}
    name, _, _ = found["PET_RDZV_ENDPOINT"].partition(":")
    return {
        **found,
        "PET_RDZV_ENDPOINT": found["PET_RDZV_ENDPOINT"].replace(name, "127.0.0.1").replace("29400", f"{port}"),
    }


def run_pods(container: dict[str, Any], folder: Path, *, num_pods: int) -> list[str]:
    """Run a container's command that many times at once; what each printed.

    Args:
        container: rendered, with ``command`` and ``args``.
        folder: to run in, which is the image's.
        num_pods: at the same time.
    """
    scripts = sysconfig.get_path("scripts")
    own = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    pods = [
        subprocess.Popen(
            [*container["command"], *container.get("args", [])],
            cwd=folder,
            env={**own, **environment(container, port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for port in [free_port()]
        for _ in range(num_pods)
    ]
    try:
        printed = [pod.communicate(timeout=120)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.terminate()  # torchrun ends its workers, which are in sessions of their own
        for pod in pods:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.wait(timeout=60)
            pod.kill()
            pod.wait()
    assert [pod.returncode for pod in pods] == [0] * num_pods, "\n".join(printed)
    return printed
