"""Generate the Python code to train from a dataset of the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..fetch.listing.patterns import escape_url

ADDRESS = "datasets://HOST:PORT/NAME"  # placeholder: the page puts the dataset's address here
PLAIN = '"secure": False'  # True where the service is behind https
_MAX_WORKERS = 4
_WIDTH = 100

_PREPARE = '''
def prepare(image):
    """Convert to a tensor of one size; put augmentation here."""
    pixels = np.array(image.resize((224, 224)))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255
'''


@dataclass(frozen=True)
class TrainingData:
    """The part of a dataset that the code reads.

    Args:
        folder: below the dataset, with a trailing slash, or empty.
        pattern: glob over base names; empty for all files.
        members: extensions, of which each sample has one.
        are_images: whether these members are images.
        labelled: whether samples have a ``cls`` member.
        classes: names in the order of their numbers, for samples whose folder is their class.
        are_shards: whether the URLs are shards, rather than files of one sample each.
        num_urls: shards or files that match; each worker needs at least one.
    """

    folder: str
    pattern: str = ""
    members: Sequence[str] = ()
    are_images: bool = False
    labelled: bool = False
    classes: Sequence[str] = ()
    are_shards: bool = False
    num_urls: int = 1


def image_folder_code(folder: str) -> str:
    """Generate code for loose images whose folders are their classes.

    Args:
        folder: below the dataset, with a trailing slash, or empty.
    """
    return _script(
        folder,
        prepare=True,
        make=["images = tdr.RemoteImageFolder(url, transform=prepare, storage_options=options)"],
        loader="DataLoader(images, batch_size=64, shuffle=True, num_workers=4)",
        loop=["for batch, labels in loader:", "    print(tuple(batch.shape), labels[:8].tolist())"],
    )


def files_code(folder: str) -> str:
    """Generate code for files of any kind, by number."""
    return _script(
        folder,
        prepare=False,
        make=["files = tdr.RemoteFiles(url, storage_options=options)"],
        loader="DataLoader(files, batch_size=8, shuffle=True, num_workers=4, collate_fn=list)",
        loop=["for batch in loader:", "    for address, data in batch:", "        print(address, len(data))"],
    )


def stream_code(source: TrainingData) -> str:
    """Generate code for streamed samples, of shards or of loose files."""
    function = "stream_shards" if source.are_shards else "stream_files"
    pattern = f"pattern={_quoted(source.pattern)}, " if source.pattern else ""
    member, label = _quoted(";".join(source.members)), source.labelled or bool(source.classes)
    make = ["pipe = (", f"    tdr.{function}(url, {pattern}storage_options=options)"]
    if source.classes:
        make += [f"    {line}" for line in _wrapped(".label_from_path(classes=[", source.classes, "])")]
    if source.are_images or source.labelled:
        make.append("    .decode_sample()")
    make.append(f'    .to_tuple({member}, "cls")' if label else f'    .to_tuple({member}, "__key__")')
    if source.are_images:
        make.append("    .map(prepare, input_col=0)")
    make.append(")")
    workers = min(_MAX_WORKERS, source.num_urls) if source.num_urls > 1 else 0
    second = "labels" if label else "keys"
    if source.are_images:
        loader = f"DataLoader(pipe, batch_size=64, num_workers={workers})"
        shown = f"{second}[:8].tolist()" if label else f"{second}[:2]"
        loop = [f"for batch, {second} in loader:", f"    print(tuple(batch.shape), {shown})"]
    else:
        loader = f"DataLoader(pipe, batch_size=8, num_workers={workers}, collate_fn=list)"
        one = second[:-1]
        loop = ["for batch in loader:", f"    for data, {one} in batch:", f"        print({one}, len(data))"]
    return _script(source.folder, prepare=source.are_images, make=make, loader=loader, loop=loop)


def _script(folder: str, *, prepare: bool, make: list[str], loader: str, loop: list[str]) -> str:
    imports = [*(["import numpy as np", "import torch"] if prepare else []), "import torchdata_remote as tdr"]
    lines = [*imports, "from torch.utils.data import DataLoader", ""]
    lines += [
        f"url = {_quoted(ADDRESS + '/' + escape_url(folder))}",
        f"options = {{{PLAIN}}}  # a token: TORCHDATA_REMOTE_TOKEN and TORCHDATA_REMOTE_TOKEN_HOSTS",
        *(["", *_PREPARE.splitlines(), ""] if prepare else []),
        "",
        *make,
        "",
        'if __name__ == "__main__":',
        f"    loader = {loader}",
        *(f"    {line}" for line in loop),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a Python literal with double quotes, as in the other lines."""
    return json.dumps(text, ensure_ascii=False)


def _wrapped(before: str, names: Sequence[str], after: str) -> list[str]:
    """Wrap a list of names over several lines."""
    whole = before + ", ".join(map(_quoted, names)) + after
    if len(whole) <= _WIDTH:
        return [whole]
    lines, line = [before], "   "
    for name in names:
        if len(line) + len(_quoted(name)) > _WIDTH:
            lines.append(line)
            line = "   "
        line += f" {_quoted(name)},"
    return [*lines, line, after]
