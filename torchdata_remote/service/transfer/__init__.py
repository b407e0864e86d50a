"""Copy a local folder to a dataset of a service, and back: in parallel, resumable, verified by SHA-256.

Push: ``local_files`` lists and reads the source folder, ``upload`` sends one file. Pull: ``pull_plan`` compares the
listing with the folder, ``download`` fetches one file, only ``destination`` writes into the folder. The jobs of both
run in ``job_pool``.
"""

from .progress import TransferProgress, Transferred
from .pull import pull
from .push import push

__all__ = ["TransferProgress", "Transferred", "pull", "push"]
