"""The stores that the tests of all stores run on, and what each of them can do.

A test names what it needs; it is left out for a row that declares that it has not got it. The table in
``docs/stores/index.md`` is compared with these declarations.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchdata_remote import Backend


@dataclasses.dataclass(frozen=True)
class Row:
    """A store, as one of its servers and one of this package's transports provide it.

    Args:
        name: in the names of tests.
        server: fixture that provides it.
        documented: first cell of its line in ``docs/stores/index.md``, which the first row of that name describes.
        tested_on: what runs in the tests, for that line.
        lists: objects can be listed.
        writes: objects can be written and deleted.
        one_winner: of two writers that create one object at once, one gets an error.
        versions: how a replaced object is noticed: ``etag``, or ``size`` where only one of another size is.
        noticed_by: the same in the words of the documentation, if it is neither.
        mutable: a process sees changes; otherwise it reads what was there at its first request.
        processes: other processes see its objects.
        proxied: responses can be broken by a ``FaultyStore``.
        strange_names: takes names with slashes at their ends, or ``.`` and ``..`` between slashes.
        refused_in_names: characters that are an error in a name.
        cleans: when the parts of a killed writer are removed: ``at once`` (there are none), ``next writer``, or
            ``later`` (by the server).
        aborts: the parts of an object that its writer gives up are removed at once.
        lists_uploads: another client sees unfinished multipart uploads.
        parallel: reads of several threads run at the same time.
        served: a dataset service and workers are tried over it; one of each client.
        backend: that reads.
        options: further ones.
        marks: of its tests.
    """

    name: str
    server: str
    documented: str
    tested_on: str
    lists: bool = True
    writes: bool = True
    one_winner: bool = True
    versions: str = "etag"
    noticed_by: str = ""
    mutable: bool = True
    processes: bool = True
    proxied: bool = True
    strange_names: bool = False
    refused_in_names: str = ""
    cleans: str = "next writer"
    aborts: bool = True
    lists_uploads: bool = True
    parallel: bool = True
    served: bool = False
    backend: Backend = Backend.AUTOMATIC
    options: tuple[tuple[str, Any], ...] = ()
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def has(self, need: str) -> bool:
        """Whether the row has what a test needs: the name of a field, or ``field=value``."""
        field, _, value = need.partition("=")
        return bool(getattr(self, field)) if not value else getattr(self, field) == value


_S3 = Row("moto", "moto", "S3", "moto", strange_names=True, served=True)
# They ignore If-None-Match: whether an object exists is asked before it is written
_JUICEFS = dataclasses.replace(
    _S3,
    name="juicefs",
    server="juicefs",
    documented="S3 servers without `If-None-Match`",
    tested_on="JuiceFS's gateway",
    strange_names=False,
    one_winner=False,
    served=False,
)
_FTP = Row(*("ftp", "ftp_folder", "ftp", "pyftpdlib"), versions="size", one_winner=False, proxied=False, parallel=False)
_WEBDAV = dataclasses.replace(
    _FTP, name="webdav", server="webdav_folder", documented="WebDAV", tested_on="wsgidav", one_winner=True, served=False
)
_DATASETS = Row("datasets", "dataset_service", "dataset service", "itself", cleans="later")
ROWS = (
    _S3,
    dataclasses.replace(_S3, name="ceph", server="ceph", tested_on="Ceph", served=False, marks=(pytest.mark.ceph,)),
    _JUICEFS,
    dataclasses.replace(_JUICEFS, name="rclone", server="rclone", tested_on="rclone", lists_uploads=False),
    Row(
        *("gcs", "gcs", "Google Cloud Storage", "a server that speaks its XML API"),
    ),
    Row(*("azurite", "azurite", "Azure Blob Storage", "Azurite"), cleans="later", aborts=False, served=True),
    Row(
        *("hub", "hub_store", "Hugging Face Hub", "a server that speaks its API"),
        writes=False,
        mutable=False,
        noticed_by="etag, of one commit",
    ),
    _DATASETS,
    Row(
        *("http", "plain_http", "https", "Python's server with ranges"),
        lists=False,
        writes=False,
        noticed_by="etag, if the server sends one; otherwise size",
    ),
    Row(
        *("local", "local_folder", "local files", "a local disk"),
        proxied=False,
        noticed_by="change time, size and inode",
    ),
    Row(*("memory",) * 3, "itself", versions="size", processes=False, proxied=False, cleans="at once", parallel=False),
    _FTP,
    dataclasses.replace(_FTP, name="sftp", server="sftp_folder", documented="sftp", tested_on="asyncssh", served=False),
    dataclasses.replace(_WEBDAV, versions="etag", refused_in_names="%#?;"),
)
# Other transports of S3: they keep each promise of a store, and are not trained from once more
TRANSPORTS = (
    # An option without a translation selects s3fs, to read, list and write
    dataclasses.replace(_S3, name="moto by s3fs", options=(("default_fill_cache", False),)),
)


def table() -> str:
    """Return the table of ``docs/stores/index.md``."""
    yes_no = {True: "yes", False: "no"}
    head = ["store", "several requests at once", "lists", "writes", "two writers of one object at once"]
    head += ["a replaced object is noticed by", "tested on"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    first: dict[str, list[Row]] = {}
    for row in ROWS:
        first.setdefault(row.documented, []).append(row)
    for name, rows in first.items():
        row = rows[0]
        winner = ("one gets an error" if row.one_winner else "the last one stays") if row.writes else ""
        cells = (yes_no[row.parallel], yes_no[row.lists], yes_no[row.writes], winner, row.noticed_by or row.versions)
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(row.tested_on for row in rows)} |")
    return "\n".join(lines).replace("|  |", "| |")


def each(*needs: str, transports: bool = False, lines: bool = False) -> pytest.MarkDecorator:
    """Run a test for each row that has what it needs.

    Args:
        needs: fields of the rows.
        transports: for the other transports of S3, too.
        lines: of the others, for the first row only of each line of the documentation, where the client is the same
            for all of them.
    """
    rows = [row for row in ROWS if all(row.has(need) for need in needs)]
    if lines:
        rows = list({row.documented: row for row in reversed(rows)}.values())[::-1]
    if transports:
        rows += [row for row in TRANSPORTS if all(row.has(need) for need in needs)]
    params = [pytest.param(row, id=row.name.replace(" ", "-"), marks=row.marks) for row in rows]
    return pytest.mark.parametrize("row", params, indirect=True, scope="session")
