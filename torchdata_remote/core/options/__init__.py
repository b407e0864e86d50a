"""Option objects: frozen, validated on construction, with units in their names and no secret in their ``repr``."""

from .credential_file import FALLBACK_NAMES
from .fetching import MIB, PROGRESS_BYTES, Backend, FetchOptions, RetryPolicy, policy_of
from .stores import StorageOptions

__all__ = [
    "FALLBACK_NAMES",
    "MIB",
    "PROGRESS_BYTES",
    "Backend",
    "FetchOptions",
    "RetryPolicy",
    "StorageOptions",
    "policy_of",
]
