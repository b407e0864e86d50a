from __future__ import annotations

import pytest

from torchdata_remote.core.partition import EqualizeMode
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.core.world import World
from torchdata_remote.errors import EmptyShareError, ManifestError
from torchdata_remote.pipes.base.sample_shares import counts_of, order_of, pieces_of

URLS: list[str] = [RemoteUrl(f"s3://b/{number}.tar", num_samples=count) for number, count in enumerate((3, 2))]


def test_counts_are_known_only_if_every_url_has_one() -> None:
    """A single plain URL makes them unknown."""
    assert counts_of(URLS) == [3, 2]
    assert counts_of([*URLS, "s3://b/2.tar"]) is None
    assert counts_of([]) is None


def test_two_slots_share_the_samples_of_two_shards() -> None:
    """Five samples: two and three."""
    order = order_of(URLS, World(0, 2), 0, None)
    assert [sum(piece.last - piece.first for piece in order.share(slot, 2)) for slot in range(2)] == [2, 3]
    assert len(order_of(URLS, World(0, 2), 0, EqualizeMode.DROP)) == 4
    assert len(order_of(URLS, World(0, 2), 0, EqualizeMode.REPEAT)) == 6


def test_url_of_a_piece_differs_from_that_of_its_shard() -> None:
    """It differs from the whole shard's, and names it."""
    pieces = list(pieces_of(URLS, order_of(URLS, World(0, 2), 0, None).share(0, 2)))
    assert len(pieces) == 1
    assert pieces[0] not in URLS
    assert URLS[0] in pieces[0]


@pytest.mark.parametrize(
    ("urls", "equalize", "error", "message"),
    [
        (URLS, None, EmptyShareError, "5 samples for 6 readers"),
        (["s3://b/0.tar"], None, EmptyShareError, "1 shard for 6 readers"),
        ([], EqualizeMode.DROP, EmptyShareError, "There are no shards for 6 readers"),
        (["s3://b/0.tar"], EqualizeMode.DROP, ManifestError, "torchdata-remote manifest"),
        (URLS, EqualizeMode.DROP, EmptyShareError, "5 samples for 6 readers"),
    ],
)
def test_too_few_samples_are_an_error(
    urls: list[str], equalize: EqualizeMode | None, error: type[Exception], message: str
) -> None:
    """In each slot, with what there is and what was asked for."""
    with pytest.raises(error, match=message):
        order_of(urls, World(0, 6), 0, equalize)
