"""Tables of texts and of URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.listing.url_table import StringColumn, UrlTable

NAMES = st.text(st.characters(codec="utf-8"), max_size=20) | st.binary(max_size=8).map(
    lambda name: name.decode("utf-8", "surrogateescape")
)
URLS = st.builds(
    RemoteUrl,
    st.text("abcé/.", min_size=1).map("s3://b/{}".format),
    st.none() | st.integers(0, 1 << 50),
    st.none() | st.text("0123456789abcdef-", min_size=1),
)


def fields(url: RemoteUrl) -> tuple[str, int | None, str | None]:
    return str(url), url.size, url.etag


@given(st.lists(NAMES, max_size=8))
def test_a_string_column_returns_its_strings(texts: list[str]) -> None:
    """One by one, by slices, by iteration, and through columns; also names of files that are no UTF-8."""
    kept = StringColumn(texts)
    again = StringColumn.from_columns(**kept.columns())
    again.append("more")
    assert list(again) == [*texts, "more"]
    assert (list(kept), len(kept), kept[1:5:2], kept[::-1]) == (texts, len(texts), texts[1:5:2], texts[::-1])
    assert [kept[index] for index in range(len(texts))] == texts
    with pytest.raises(IndexError):
        kept[len(texts)]


@given(st.lists(URLS, max_size=8))
def test_a_url_table_returns_urls_with_size_and_etag(urls: list[RemoteUrl]) -> None:
    """By index, negative index, slices, and through columns."""
    table = UrlTable(urls)
    again = UrlTable.view(table.columns())
    assert list(map(fields, table)) == list(map(fields, urls))
    assert list(map(fields, table[::-2])) == list(map(fields, urls[::-2]))
    assert [fields(table[-number]) for number in range(1, len(urls) + 1)] == list(map(fields, urls[::-1]))
    assert list(map(fields, again)) == list(map(fields, urls))
    with pytest.raises(IndexError):
        table[len(urls)]


def test_a_url_takes_24_bytes_more_than_its_characters() -> None:
    """24 bytes more than its characters and those of its etag."""
    etag = "d41d8cd98f00b204e9800998ecf8427e"
    urls = [f"s3://bucket/train/n{number:08d}/{number:08d}.JPEG" for number in range(10_000)]
    table = UrlTable(RemoteUrl(url, 94_000, etag) for url in urls)
    characters = sum(len(url) + len(etag) for url in urls)
    assert sum(column.nbytes for column in table.columns().values()) <= characters + 24 * len(urls)


@given(st.lists(NAMES | st.sampled_from(["a.cls", "a.CLS", "é.cLs", ".cls", "cls", "a.clsé"]), max_size=8))
def test_properties_of_all_strings_at_once(texts: list[str]) -> None:
    """Lengths in bytes, ASCII, and an ending in any case."""
    column = StringColumn(texts)
    assert column.lengths().tolist() == [len(text.encode("utf-8", "surrogateescape")) for text in texts]
    assert column.are_ascii().tolist() == [text.isascii() for text in texts]
    assert column.end_with(".cls").tolist() == [text[-4:].isascii() and text.lower().endswith(".cls") for text in texts]


def test_the_digest_of_texts_depends_on_their_order_and_borders() -> None:
    """Not on their characters alone."""
    digests = {StringColumn(texts).digest() for texts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "c", ""], [])}
    assert len(digests) == 5
    assert StringColumn(["ab", "c"]).digest() in digests
