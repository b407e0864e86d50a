"""Objects beside another one have its place and their own version."""

from __future__ import annotations

import pytest

from torchdata_remote.core.beside import url_beside


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b/0.tar", "s3://b/0.tar.idx"),
        ("s3://b/qu?x.tar", "s3://b/qu?x.tar.idx"),
        ("s3://b/0.tar?versionId=3sL4", "s3://b/0.tar.idx"),
        ("s3://b/0.tar?versionId=3?versionId=", "s3://b/0.tar?versionId=3.idx?versionId="),
        ("HTTPS://host/0.tar?sig=a/b?c", "HTTPS://host/0.tar.idx?sig=a/b?c"),
        ("file:///qu?x.tar", "file:///qu?x.tar.idx"),
        ("memory://b/0.tar?x", "memory://b/0.tar?x.idx"),
        ("/tmp/0.tar", "/tmp/0.tar.idx"),
        ("", ".idx"),
    ],
)
def test_the_ending_is_that_of_the_name(url: str, expected: str) -> None:
    assert url_beside(url, ".idx") == expected
