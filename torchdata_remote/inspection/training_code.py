"""Generate the Python code to train from a dataset of the service, by its files or by what its shards hold."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..fetch.listing.patterns import escape_url
from ..formats.images import IMAGE_FOLDER_SUFFIXES, is_image_name
from .shards import LABEL, SampleCounts

_MAX_WORKERS = 4
_TRAIN = re.compile(r"((?:[^/*?\[\]{}]+/)*?(?:train|training)/).*", re.IGNORECASE)
# The page puts the dataset's address here; "secure" is True where the service is behind https
_SCRIPT = """{imports}import torchdata_remote as tdr
from torch.utils.data import DataLoader

url = {url}
options = {{"secure": False}}  # a token: TORCHDATA_REMOTE_TOKEN and TORCHDATA_REMOTE_TOKEN_HOSTS
{prepare}
{make}

if __name__ == "__main__":
    loader = DataLoader({source}, num_workers={workers}{more})
    for {batch} in loader:
        {loop}
"""
_IMPORTS = "import numpy as np\nimport torch\n"
_PREPARE = '''

def prepare(image):
    """Convert to a tensor of one size; put augmentation here."""
    pixels = np.array(image.resize((224, 224)))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255

'''


def code_for_files(paths: Sequence[str], *, are_images: bool) -> str:
    """Generate code for loose files, or for those below ``train`` if there is such a folder.

    Args:
        paths: below the dataset.
        are_images: whether all files are images.
    """
    folder = _training_folder(paths, least_below=1)
    chosen = [path[len(folder) :] for path in paths if path.startswith(folder)]
    labelled = sum("/" in path for path in chosen)
    if not chosen:
        return ""
    if (
        are_images
        and labelled in (0, len(chosen))
        and any(one.lower().endswith(IMAGE_FOLDER_SUFFIXES) for one in chosen)
    ):
        return _script(
            folder,
            "images = tdr.RemoteImageFolder(url, transform=prepare, storage_options=options)",
            "images, batch_size=64, shuffle=True",
            "batch, labels",
            "print(tuple(batch.shape), labels[:8].tolist())",
            are_images=True,
        )
    return _script(
        folder,
        "files = tdr.RemoteFiles(url, storage_options=options)",
        "files, batch_size=8, shuffle=True",
        "batch",
        "for address, data in batch:\n            print(address, len(data))",
    )


def code_for_shards(paths: Sequence[str], found: SampleCounts) -> str:
    """Generate code for shards, or for those below ``train``.

    Args:
        paths: below the dataset.
        found: in the shards, or some of them.
    """
    folder = _training_folder(paths, least_below=0)
    num_urls = sum(path.startswith(folder) for path in paths)
    num_samples, names = found.samples["all"], found.members.keys() - {LABEL}
    images = sorted(name for name in names if is_image_name(name) and "." not in name)
    are_images = bool(images) and sum(found.members[name] for name in images) == num_samples
    in_all = sorted(name for name in names if found.members[name] == num_samples)
    members = images if are_images else in_all[:1] or sorted(names) or ["__url__"]
    labelled = 0 < num_samples == sum(n for label, n in found.labels.items() if re.fullmatch(r"\d{1,9}", label))
    second = "labels" if labelled else "keys"
    make = ["pipe = (", "    tdr.stream_shards(url, storage_options=options)"]
    if are_images or labelled:
        make.append("    .decode_sample()")
    last = LABEL if labelled else "__key__"
    make.append(f'    .to_tuple({json.dumps(";".join(members), ensure_ascii=False)}, "{last}")')
    if are_images:
        make.append("    .map(prepare, input_col=0)")
    shown = "labels[:8].tolist()" if labelled else "keys[:2]"
    return _script(
        folder,
        "\n".join([*make, ")"]),
        f"pipe, batch_size={64 if are_images else 8}",
        f"batch, {second}" if are_images else "batch",
        f"print(tuple(batch.shape), {shown})"
        if are_images
        else f"for data, {second[:-1]} in batch:\n            print({second[:-1]}, len(data))",
        are_images=are_images,
        workers=min(_MAX_WORKERS, num_urls) if num_urls > 1 else 0,
    )


def _script(
    folder: str, make: str, source: str, batch: str, loop: str, *, are_images: bool = False, workers: int = _MAX_WORKERS
) -> str:
    return _SCRIPT.format(
        imports=_IMPORTS if are_images else "",
        url=json.dumps(f"datasets://HOST:PORT/NAME/{escape_url(folder)}", ensure_ascii=False),
        prepare=_PREPARE if are_images else "",
        make=make,
        source=source,
        workers=workers,
        more="" if are_images else ", collate_fn=list",
        batch=batch,
        loop=loop,
    )


def _training_folder(paths: Sequence[str], *, least_below: int) -> str:
    """Return the folder ``train`` if there is one with at least so many folders below it, else an empty string."""
    for path in paths:
        found = _TRAIN.fullmatch(path)
        if found is not None and path.count("/") >= found[1].count("/") + least_below:
            return found[1]
    return ""
