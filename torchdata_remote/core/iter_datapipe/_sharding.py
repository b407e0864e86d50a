"""Groups of sharding calls, for versions of torch without DataPipes."""

from enum import IntEnum


class SHARDING_PRIORITIES(IntEnum):  # noqa: N801  # torch's name
    """Groups of ``apply_sharding``: ranks and workers together, ranks, workers."""

    DEFAULT = 1
    DISTRIBUTED = 2
    MULTIPROCESSING = 3
