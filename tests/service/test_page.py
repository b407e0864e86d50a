"""The page of the service, in a browser."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.servers.chromium import Page, running_chromium
from tests.servers.service import running_service
from tests.service.conftest import TOKEN
from tests.support.service_clients import Dataset, ask, digest_field
from torchdata_remote import ShardWriter

PART_BYTES = 16 << 20


def picture(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a service whose datasets are those of these tests alone."""
    with running_service(tmp_path_factory.mktemp("root")) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def page(browser: Any, service: str) -> Iterator[Page]:
    """What a test leaves in the console and did not look at is its failure."""
    shown = Page(browser, f"http://{service}")
    shown.complaints()
    yield shown
    assert shown.complaints() == []


@pytest.fixture
def dataset(service: str, request: pytest.FixtureRequest) -> Dataset:
    """A dataset that is named after the test."""
    return Dataset(service, request.node.name[:100].replace("[", ".").replace("]", ""))


def printed_by(program: str, folder: Path) -> str:
    """The output of a program, whose loaders start processes."""
    (folder / "train.py").write_text(program)
    run = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def rows(page: Page) -> list[tuple[str, str]]:
    page.until("document.querySelector('[data-of=rows]')?.childElementCount")
    return list(zip(page.texts("tbody td:first-child"), page.texts("tbody td.number"), strict=True))


def test_datasets_are_listed_with_their_sizes(page: Page, dataset: Dataset) -> None:
    """A card for each, with how many files of how many bytes of which kind; it leads to the dataset."""
    dataset.fill({"a.csv": b"1" * 1500, "b/c.csv": b"2" * 1000})
    name = dataset.name
    page.open()
    card = f'[data-name="{name}"]'
    page.until("document.querySelector(arguments[0])?.textContent.includes('kB')", card)
    assert page.text(f"{card} .facts") == "2 files · 2.5 kB"
    assert page.text(f"{card} .kind") == "files"
    page.click(f"{card} a")
    page.until("document.title.startsWith(arguments[0])", name)


def test_a_dataset_is_created(page: Page, service: str) -> None:
    """By its name; one that the pattern does not allow is not sent; the server's own sentence says what is wrong."""
    page.open()
    page.element("#new-name").send_keys("no spaces")
    page.click(".create button")
    assert "Letters, digits" in page.text("#new-fault")
    page.element("#new-name").clear()
    page.element("#new-name").send_keys("created.by-hand_1")
    page.click(".create button")
    assert page.text("h1[data-of=name]") == "created.by-hand_1"
    page.until("!document.querySelector('div[data-of=empty]').hidden")
    assert "/datasets/created.by-hand_1/files/" in page.text("div[data-of=empty] [data-of=curl]")
    page.open()
    page.element("#new-name").send_keys("created.by-hand_1")
    page.click(".create button")
    assert "created.by-hand_1" in page.until("document.querySelector('#new-fault').textContent")
    (complaint,) = page.complaints()
    assert "409" in complaint


def test_a_folder_of_pictures_is_uploaded_and_shown(page: Page, service: str, dataset: Dataset, tmp_path: Path) -> None:
    """It keeps its paths; sizes, labels and pictures are shown; the displayed code trains from it."""
    name = dataset.name
    for number in range(9):
        path = tmp_path / "pets" / ("cat" if number % 3 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture("red" if number % 3 else "blue"))
    (tmp_path / "pets" / ".DS_Store").write_bytes(b"not wanted")
    page.open(name)
    page.choose("folder", tmp_path / "pets")
    page.wait_for_uploads(9)
    assert page.script("const all = document.querySelector('[data-of=all]'); return all.value === all.max")
    expected = sorted(f"pets/{'cat' if number % 3 else 'dog'}/{number}.jpg" for number in range(9))
    assert dataset.paths() == expected
    page.until("document.querySelector('.sheet img').naturalWidth")
    assert page.texts(".bars .name") == ["cat", "dog"]
    assert page.texts(".bars .count") == ["6", "3"]
    assert "9 files" in page.text("[data-of=facts]")
    page.click("td.folder a")
    page.until("document.querySelectorAll('td.folder').length === 2")
    assert rows(page) == [("cat/", ""), ("dog/", "")]
    assert "(9, 3, 224, 224)" in printed_by(page.text("[data-of=code]"), tmp_path)


def test_shards_are_shown_with_labels_and_pictures(page: Page, dataset: Dataset, tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=4) as writer:
        for number in range(10):
            writer.write({"__key__": f"{number}", "jpg": picture("green"), "cls": number % 2})
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    dataset.fill({**files, "classes.json": b'{"n0": {"id": 0, "name": "fox"}, "n1": {"id": 1, "name": "owl"}}'})
    name = dataset.name
    page.open(name)
    page.until("document.querySelector('.sheet img').naturalWidth")
    assert page.texts(".bars li") == ["fox5", "owl5"]
    assert "3 shards · 10 samples" in page.text("[data-of=facts]")
    assert f"{dataset.address}/{dataset.name}/" in page.text("[data-of=code]")


def test_dropped_files_are_uploaded_into_the_shown_folder(page: Page, service: str, dataset: Dataset) -> None:
    """An existing file is replaced only after a confirmation."""
    dataset.fill({"notes/a.txt": b"old"})
    name = dataset.name
    page.open(f"{name}/notes/")
    rows(page)
    page.drop({"a.txt": "new", "b #?%é.txt": "two"})
    page.until("document.querySelector('[data-of=all-text]').textContent.includes('1 there already')")
    page.until("document.querySelectorAll('tbody tr').length === 2")
    assert rows(page) == [("a.txt", "3 B"), ("b #?%é.txt", "3 B")]
    assert dataset.get("notes/a.txt").body == b"old"
    page.click(".jobs .there button")
    page.wait_for_uploads(2)
    assert dataset.get("notes/a.txt").body == b"new"
    (complaint,) = page.complaints()  # of the browser, about the answer 412
    assert "412" in complaint


def test_an_archive_is_unpacked(page: Page, service: str, dataset: Dataset, tmp_path: Path) -> None:
    """If the box is ticked; other files beside it are stored as they are."""
    import zipfile

    name = dataset.name
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("cat/1.txt", "one")
        archive.writestr("dog/2.txt", "two")
    (tmp_path / "beside.csv").write_text("1,2")
    page.open(name)
    page.click("[data-of=unpack]")
    page.choose("files", tmp_path / "both.zip", tmp_path / "beside.csv")
    page.wait_for_uploads(2)
    assert dataset.paths() == ["beside.csv", "cat/1.txt", "dog/2.txt"]


def test_file_names_are_never_markup(page: Page, dataset: Dataset) -> None:
    """Whatever they contain, nothing of it is executed."""
    bad = '<img src=x onerror="window.ran=1">'
    dataset.fill({f"{bad}.txt": b"1", f"{bad}/{bad}&amp;.txt": b"2", '"; drop".txt': b"3"})
    name = dataset.name
    page.open(name)
    assert {path for path, _ in rows(page)} == {f"{bad}.txt", f"{bad}/", '"; drop".txt'}
    page.until("document.querySelector('.bars li')")
    assert page.texts(".bars .name") == [bad]
    page.click("td.folder a")
    page.until("document.querySelector('.crumbs').textContent.includes('<img')")
    page.drop({f"{bad}.txt": "4"})
    page.wait_for_uploads(1)
    page.click(f"button[aria-label={json.dumps(f'Delete {bad}/{bad}.txt')}]")
    assert page.until("document.querySelector('dialog[open]') && document.querySelector('#ask-text').textContent") == (
        f"{bad}/{bad}.txt"
    )
    assert page.script("return window.ran === undefined && !document.querySelector('img[src=x]')")


def test_long_listings_are_shown_page_by_page(page: Page, dataset: Dataset) -> None:
    """A hundred at a time, each once."""
    dataset.fill({f"{number:03}.txt": b"" for number in range(130)})
    name = dataset.name
    page.open(name)
    assert len(rows(page)) == 100
    page.click("[data-of=more]")
    page.until("document.querySelectorAll('tbody tr').length === 130")
    assert [path for path, _ in rows(page)] == [f"{number:03}.txt" for number in range(130)]
    assert page.script("return document.querySelector('[data-of=more]').hidden")


def test_deleting_needs_a_confirmation(page: Page, service: str, dataset: Dataset) -> None:
    """A click for a file, its typed name for a dataset."""
    dataset.fill({"a.txt": b"1", "b.txt": b"2"})
    name = dataset.name
    page.open(name)
    rows(page)
    page.click("button[aria-label='Delete a.txt']")
    page.click("dialog[open] button[value='']")
    page.click("button[aria-label='Delete b.txt']")
    page.click("#ask-yes")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    assert dataset.paths() == ["a.txt"]
    page.click("[data-of=delete]")
    page.element("#ask-input").send_keys(name[:-1])
    assert page.script("return document.querySelector('#ask-yes').disabled")
    page.element("#ask-input").send_keys(name[-1] + "\n")
    page.until("document.querySelector('.cards')")
    assert name not in ask(service, "GET", "/datasets").body.decode()


def watch(page: Page) -> None:
    """Note the digest of each upload."""
    page.script(
        """const { setRequestHeader } = XMLHttpRequest.prototype;
        window.digests = [];
        XMLHttpRequest.prototype.setRequestHeader = function (name, value) {
          if (name === "Repr-Digest") window.digests.push(value);
          setRequestHeader.call(this, name, value);
        };"""
    )


def test_each_upload_has_the_digest_of_its_file(page: Page, service: str, dataset: Dataset) -> None:
    """By which the service compares the bytes that it received."""
    contents = ["x" * size for size in (0, 3, 55, 56, 63, 64, 119, 1000)]  # around the blocks of SHA-256
    page.open(dataset.name)
    watch(page)
    page.drop({f"{len(content)}.csv": content for content in contents})
    page.wait_for_uploads(len(contents))
    assert set(page.script("return window.digests")) == {digest_field(content.encode()) for content in contents}


def test_the_page_works_with_a_token(browser: Any, guarded: str) -> None:
    """In the address of the page, as browsers send what was typed."""
    page = Page(browser, f"http://me:{quote(TOKEN, safe='')}@{guarded}")
    page.open()
    page.element("#new-name").send_keys("guarded")
    page.click(".create button")
    page.until("document.querySelector('[data-of=drop]')")
    page.drop({"a.csv": "1,2"})
    page.wait_for_uploads(1)
    assert rows(page) == [("a.csv", "3 B")]
    assert TOKEN not in page.text("[data-of=code]")
    assert page.complaints() == []
