"""Whether to read by obstore in this process."""

from __future__ import annotations

import warnings

from ..core.options import Backend
from ..errors import StorageError
from . import obstore_reader


def choose_obstore(scheme: str, bucket: str, backend: Backend, *, instead: str) -> tuple[bool, str]:
    """Return whether to read by obstore, and which library is used and why."""
    if backend is Backend.BOTOCORE:
        return False, f"{instead} (backend={backend.value!r})"
    if obstore_reader.is_usable():
        return True, f"obstore (backend={backend.value!r})"
    forked = "This process was forked after its parent had used obstore, which then does not work in it"
    advice = "Pass multiprocessing_context='forkserver' to the DataLoader."
    if backend is Backend.OBSTORE:
        raise StorageError(f"{scheme}://{bucket}: {forked}. {advice}", url=f"{scheme}://{bucket}")
    warnings.warn(
        f"{forked}: {scheme} is read by {instead}, more slowly. {advice}",
        RuntimeWarning,
        stacklevel=2,
    )
    return False, f"{instead} (forked process)"
