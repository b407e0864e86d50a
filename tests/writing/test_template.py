from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_remote.errors import RemoteDataError, ShardWriteError, UrlError
from torchdata_remote.writing.template import ShardTemplate

FIELDS = ["{shard}", "{shard:06d}", "{shard:03d}", "{shard:01d}", "{shard:d}"]
TEXTS = st.text(st.characters(exclude_characters="/{}\0", exclude_categories=["Cs"]), max_size=6)


@given(field=st.sampled_from(FIELDS), before=TEXTS, after=TEXTS, index=st.integers(0, 10**7))
def test_a_shard_is_found_under_its_number(field: str, before: str, after: str, index: int) -> None:
    """The number of a URL is the one that it was built from, with any text around it."""
    template = ShardTemplate(f"s3://b/a/{before}{field}{after}.tar")
    url = template.url(index)
    assert url.startswith(f"s3://b/a/{before}")
    assert url.endswith(f"{after}.tar")
    assert template.index(url) == index
    assert template.before == f"s3://b/a/{before}", "what a listing is asked for"


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.zst"])
def test_compressed_endings_are_not_confused(ending: str) -> None:
    """And none of them is mistaken for one of another ending."""
    template = ShardTemplate(f"s3://b/t-{{shard}}{ending}")
    assert template.index(template.url(12)) == 12
    assert template.index("s3://b/t-12.tar") is None
    assert ShardTemplate("s3://b/t-{shard}.tar").index(f"s3://b/t-12{ending}") is None


@pytest.mark.parametrize(("ending", "most"), [(".tar", 250), (".tar.gz", 255)])
def test_a_name_too_long_for_disks_is_refused(tmp_path: Path, ending: str, most: int) -> None:
    """At once, not when the shard or its index is to be written. Bytes count, and stores take more."""
    base = "é" + "n" * (most - len(ending) - 3)
    assert len(ShardTemplate(f"{tmp_path}/{base}{{shard}}{ending}").url(0).rpartition("/")[2].encode()) == most
    with pytest.raises(ShardWriteError, match=f"more than {most} bytes"):
        ShardTemplate(f"{tmp_path}/{base}n{{shard}}{ending}")
    ShardTemplate(f"s3://b/{base}n{{shard}}{ending}")


@given(
    spec=st.text("0123456789dxXbo,_+- <>^=eE%c.n", max_size=4),
    conversion=st.sampled_from(["", "!r", "!s"]),
    index=st.integers(0, 3000),
)
@example(spec="x", conversion="", index=16)
@example(spec=">6", conversion="", index=1)
@example(spec=",", conversion="", index=1234)
@example(spec="+d", conversion="", index=1)
def test_a_format_is_understood_or_refused(spec: str, conversion: str, index: int) -> None:
    """A template that is taken finds its own shards again: what it does not find would be left or overwritten."""
    url_template = f"s3://b/t-{{shard{conversion}:{spec}}}.tar"
    try:
        template = ShardTemplate(url_template)
    except ShardWriteError:
        return
    assert template.index(template.url(index)) == index


@given(field=st.sampled_from(FIELDS), digits=st.text("0123456789٣²", min_size=1, max_size=8))
@example(field="{shard:06d}", digits="7")
@example(field="{shard}", digits="007")
@example(field="{shard}", digits="٣")
def test_only_the_exact_spelling_has_a_number(field: str, digits: str) -> None:
    """Another spelling is another file, which ``overwrite=True`` must not remove."""
    template = ShardTemplate(f"s3://b/t-{field}.tar")
    url = f"s3://b/t-{digits}.tar"
    index = template.index(url)
    assert index is None or template.url(index) == url


def test_other_urls_have_no_number() -> None:
    """Another folder, another name, more before or after."""
    template = ShardTemplate("s3://b/a/t-{shard:03d}.tar")
    for url in (
        "s3://b/t-000.tar",
        "s3://b/a/c/t-000.tar",
        "s3://b2/a/t-000.tar",
        "s3://b/a/t-000.tar.gz",
        "s3://b/a/xt-000.tar",
        "s3://b/a/t-.tar",
        "s3://b/a/t-000xtar",
        "s3://b/a/index.json",
    ):
        assert template.index(url) is None, url


def test_doubled_braces_are_braces() -> None:
    """As in every format string: they are text around the field."""
    template = ShardTemplate("s3://b/a{{b}}-{shard:03d}-{{c}}.tar")
    assert template.url(7) == "s3://b/a{b}-007-{c}.tar"
    assert template.index(template.url(7)) == 7
    assert template.url(7).startswith(template.before)


@pytest.mark.parametrize(
    "url_template",
    [
        "s3://b/t.tar",
        "s3://b/{shard}-{shard}.tar",
        "s3://b/{index}.tar",
        "s3://b/{}.tar",
        "s3://b/{0}.tar",
        "s3://b/{shard}/t.tar",
        "s3://b/{shard}/{shard}.tar",
        "s3://b/{{shard}}.tar",
        "s3://b/{shard.tar",
        "s3://b/shard}.tar",
        "s3://b/{shard:q}.tar",
        "s3://b/{shard.real}.tar",
        "s3://b/{shard[0]}.tar",
        "s3://b/{shard}.tar.xz",
        "s3://b/{shard}.gz",
        "s3://b/{shard}",
        "s3://b/{shard}.zip",
        "s3://b/{shard:{shard}}.tar",
        "",
        "/",
    ],
)
def test_an_invalid_template_is_refused(url_template: str) -> None:
    """The error shows the template and an example of a right one."""
    with pytest.raises(ShardWriteError) as caught:
        ShardTemplate(url_template)
    assert url_template in str(caught.value)
    assert "{shard:06d}.tar" in str(caught.value)


def test_a_template_with_an_invalid_url_is_refused() -> None:
    """A template is no better than its URL."""
    for url_template in ("s3:///{shard}.tar", "s3://{shard}.tar", "file://a/{shard}.tar"):
        with pytest.raises(UrlError):
            ShardTemplate(url_template)


def test_no_error_shows_credentials() -> None:
    """A template with a password is refused without repeating it."""
    for url_template in ("s3://me:SECRET@b/t.tar", "s3://me:SECRET@b/{shard}.tar", "https://me:SECRET@b/{shard}.tar"):
        with pytest.raises(RemoteDataError) as caught:
            ShardTemplate(url_template)
        assert "SECRET" not in str(caught.value)
        assert "SECRET" not in str(caught.value.url)


def test_a_bare_local_path_is_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative, or a base name alone."""
    monkeypatch.chdir(tmp_path)
    here = f"file://{os.getcwd()}"
    assert ShardTemplate(f"{tmp_path}/t-{{shard}}.tar").url(1) == f"file://{tmp_path}/t-1.tar"
    assert ShardTemplate("t-{shard}.tar").url(1) == f"{here}/t-1.tar"
    assert ShardTemplate("a/t-{shard}.tar").url(1) == f"{here}/a/t-1.tar"
    assert ShardTemplate("memory://{shard}.tar").url(1) == "memory://1.tar"
    for url_template in ("t-{shard}.tar", "a/t-{shard}.tar", "memory://{shard}.tar", "memory://a/{shard}.tar"):
        template = ShardTemplate(url_template)
        assert template.index(template.url(12)) == 12
