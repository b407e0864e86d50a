"""Objects taken out of a page by expressions are those that an XML parser finds."""

from __future__ import annotations

import datetime as dt
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.storage import Entry
from torchdata_remote.storage.protocol import normalized_etag
from torchdata_remote.storage.s3.page_parser import to_page
from torchdata_remote.storage.s3.page_text import Objects, take_objects

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
MORE = "<Name>b</Name><IsTruncated>false</IsTruncated>"
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
EXTRA = st.sampled_from(
    [
        "",
        "<StorageClass>STANDARD</StorageClass>",
        "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>",
        "<Owner><ID>1</ID><DisplayName/></Owner>",
        "<Owner><Key>no key</Key><ID></ID></Owner>",
        "<RestoreStatus>\n  <IsRestoreInProgress>false</IsRestoreInProgress>\n</RestoreStatus>",
    ]
)
ETAG = st.sampled_from(["", "&quot;{}&quot;", '"{}"', "{}", "&#34;{}&#x22;", "W/&quot;{}&quot;"])


@st.composite
def objects(draw: st.DrawFn) -> str:
    """An object as some server may write it: fields in any order, spaces between them."""
    etag = draw(ETAG).format(draw(st.sampled_from(["0cc175b9", "d41d8cd9-2"])))
    fields = [
        f"<Key>{escape(draw(TEXT))}</Key>",
        f"<Size>{draw(st.integers(0, 10**12))}</Size>",
        f"<ETag>{etag}</ETag>",
        "<LastModified>2026-01-02T03:04:05.000Z</LastModified>",
        draw(EXTRA),
    ]
    between = draw(st.sampled_from(["", "\n", "  "]))
    return f"<Contents>{between.join(draw(st.permutations(fields)))}</Contents>{between}"


def page_of(*contents: str, head: str = HEAD, more: str = MORE) -> bytes:
    return f"{head}{more}{''.join(contents)}</ListBucketResult>".encode()


def parsed(body: bytes) -> list[tuple[str | None, ...]]:
    """Key, size and etag of each object, by a parser."""
    root = ET.fromstring(body)
    space = root.tag[: root.tag.find("}") + 1]
    found = root.findall(f"{space}Contents")
    return [tuple(one.findtext(space + name) for name in ("Key", "Size", "ETag")) for one in found]


def taken(body: bytes) -> Objects:
    found = take_objects(body)
    assert found is not None
    return found[0]


@given(contents=st.lists(objects(), min_size=1, max_size=5))
def test_objects_are_those_of_a_parser(contents: list[str]) -> None:
    """Whatever the order of their fields, also if it changes within a page."""
    body = page_of(*contents)
    found = take_objects(body)
    if found is None:
        assert len({one.replace(" ", "").replace("\n", "") for one in contents}) > 1  # with too many shapes
        return
    (keys, sizes, etags, modified), rest = found
    assert [(key, str(size), etag) for key, size, etag in zip(keys, sizes, etags, strict=True)] == [
        (key, str(int(size or "")), normalized_etag(etag)) for key, size, etag in parsed(body)
    ]
    assert set(modified) == {"2026-01-02T03:04:05.000Z"}
    assert parsed(rest) == []
    assert ET.fromstring(rest).findtext("{*}IsTruncated") == "false"


@given(cut=st.integers(0, 400), junk=st.sampled_from(["", "<", ">", "</Key>", "<Key>", "&", "\x00", "<Size>1</Size>"]))
def test_a_damaged_page_is_left_to_a_parser_or_read_like_by_it(cut: int, junk: str) -> None:
    """No object is made up of the fields of two."""
    one = "<Contents><Key>{}</Key><Size>7</Size><ETag>&quot;e&quot;</ETag></Contents>"
    text = page_of(*(one.format(key) for key in "abcd")).decode()
    body = (text[:cut] + junk + text[cut + 5 :]).encode()
    found = take_objects(body)
    if found is None:
        return
    try:
        expected = parsed(body)
    except ET.ParseError:  # by what was between the objects, or is left in the rest
        assert set(found[0].keys) <= set("abcd")
        assert set(found[0].sizes) == {7}
        return
    assert [(key, str(size)) for key, size in zip(found[0].keys, found[0].sizes, strict=True)] == [
        (key, str(int(size or ""))) for key, size, _ in expected
    ]


@pytest.mark.parametrize(
    "content",
    [
        "<!-- <Contents><Key>no</Key><Size>1</Size></Contents> -->",
        "<Contents><Key><![CDATA[a&b]]></Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key></Contents>",
        "<Contents><Size>1</Size></Contents>",
        "<Contents><Key></Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Key>b</Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Size>-1</Size></Contents>",
        "<Contents><Key>a&eacute;</Key><Size>1</Size></Contents>",
        "<Contents><Key>a\r\nb</Key><Size>1</Size></Contents>",
        "<Contents><Key>a&#10;b</Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Size>1</Size></Contents><A/><Contents><Key>b</Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Size>1</Size><Owner></Contents>",
        "<Contents><Key>a</Key><Size>1</Size><Owner a='1'/></Contents>",
        "",
    ],
)
def test_what_these_expressions_do_not_match_is_left_to_a_parser(content: str) -> None:
    assert take_objects(page_of(content)) is None


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_other_encodings_are_left_to_a_parser(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><ListBucketResult><Contents><Key>\xe9</Key><Size>1</Size>'
    assert take_objects(f"{text}</Contents></ListBucketResult>".encode(encoding)) is None
    assert take_objects(f"{text}</Contents></ListBucketResult>".encode()) is None


def test_objects_of_different_shapes_keep_their_order() -> None:
    """As in a bucket where only the newer ones have checksums."""
    one = "<Contents><Key>{}</Key>{}<Size>{}</Size></Contents>"
    body = page_of(*(one.format(n, "<ChecksumType>A</ChecksumType>" * (n % 3 == 0), n) for n in range(9)))
    assert taken(body).sizes == list(range(9))


@pytest.mark.parametrize("keys", [["a+b", "c%2Fd"], ["%0a", "b"], ["%e9", "%C3%A9"], ["plain"]])
def test_keys_are_decoded_as_botocore_does(keys: list[str]) -> None:
    """Also where a key has a line feed, or is no UTF-8; without EncodingType they are left as they are."""
    from botocore.compat import unquote_str

    found = taken(page_of(*(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)))
    page = {"TorchdataRemoteObjects": found, "IsTruncated": False}
    assert [one.path for one in to_page(page, list).entries] == keys
    assert [one.path for one in to_page({**page, "EncodingType": "url"}, list).entries] == list(map(unquote_str, keys))


def test_times_are_converted_where_they_are_asked_for() -> None:
    """Seconds without fractions, as in HEAD; an unknown format is none."""
    one = "<Contents><Key>{}</Key><LastModified>{}</LastModified><Size>0</Size></Contents>"
    body = page_of(one.format("a", "2026-01-02T03:04:05.678Z"), one.format("a/", ""), one.format("b", "soon"))
    page = to_page({"TorchdataRemoteObjects": taken(body), "IsTruncated": False}, list)
    when_s = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc).timestamp()
    assert page.entries == [Entry("a", 0, None, when_s), Entry("b", 0, None, None)]
