"""A real S3 server whose answers are broken on their way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers.s3 import S3Server
from torchdata_remote.testing import Faults, FaultyStore


@dataclass(frozen=True)
class FaultyS3(S3Server):
    """A server behind a faulty store: the same keys, another address. Buckets are made without faults."""

    behind: S3Server

    def new_bucket(self) -> str:
        return self.behind.new_bucket()


@contextmanager
def faulty(server: S3Server, faults: Faults | None = None, *, seed: int = 0) -> Iterator[tuple[FaultyS3, FaultyStore]]:
    """The server as its clients see it through a ``FaultyStore``, and that store."""
    with FaultyStore(server.endpoint_url, faults, seed=seed) as store:
        yield FaultyS3(f"faulty-{server.name}", store.endpoint_url, server.key, server.secret, server), store
