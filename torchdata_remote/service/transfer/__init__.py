"""Copy a local folder to a dataset of a service, and back: in parallel, resumable, verified by SHA-256.

``pull`` writes through ``destination`` only. ``jobs`` has what both share: the dataset, threads,
retries, groups of small files.
"""

from .progress import TransferProgress, Transferred
from .pull import pull
from .push import push

__all__ = ["TransferProgress", "Transferred", "pull", "push"]
