"""What Kubernetes itself would say of a manifest."""

from __future__ import annotations

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it carries no types

OLDEST = "1.31"  # which has success policies


def require_valid(manifest: dict[str, Any]) -> None:
    """It is what the oldest and the newest Kubernetes know, without one strange field."""
    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)
