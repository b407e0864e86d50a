"""An S3 server behind a proxy that breaks its responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers.s3 import S3Server
from torchdata_remote.testing import Faults, FaultyStore


@dataclass(frozen=True)
class FaultyS3(S3Server):
    """The faulty proxy of an S3 server: the same keys, another address. Buckets are created without faults."""

    upstream: S3Server

    def new_bucket(self) -> str:
        return self.upstream.new_bucket()


@contextmanager
def faulty(server: S3Server, faults: Faults | None = None, *, seed: int = 0) -> Iterator[tuple[FaultyS3, FaultyStore]]:
    """Run a ``FaultyStore`` in front of a server."""
    with FaultyStore(server.endpoint_url, faults, seed=seed) as store:
        yield FaultyS3(f"faulty-{server.name}", store.endpoint_url, server.key, server.secret, server), store
