"""``RemoteImageFolder``: torchvision's ``ImageFolder`` on object storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..core import arguments as check
from ..core.arguments import explained
from ..core.options import Backend, RetryPolicy
from ..core.shared_memory import Column
from ..core.urls import redact
from ..fetch.listing.index_file import Index
from ..formats.decoders import rgb
from ..formats.error_policy import raise_error
from ..formats.images import IMAGE_FOLDER_SUFFIXES
from ..formats.labels import Classes, Labeller, NumberedClasses, assign_labels, labeller_of
from .remote_files import OnError, RemoteFiles

NO_CLASS = -1


@explained
class RemoteImageFolder(RemoteFiles):
    """The images below a folder as torchvision's ``ImageFolder``: ``[i] -> (image, label)``.

    The folder may be a prefix of a bucket.

    torch's ``DataLoader`` requests complete batches, whose files are fetched concurrently and decoded in threads.
    Transforms run sequentially in the caller's thread, in the order of the batch, so random transforms give the same
    results as with torchvision.

    Images are files with torchvision's extensions, in the order of ``ImageFolder``: by first folder, by folder and by
    name.

    Args:
        url: of the folder; a glob or a brace range selects some of its files. ``escape_url(name)`` escapes one.
        transform: called with an RGB ``PIL.Image``; returns the item's first element.
        target_transform: called with the label; returns the item's second element.
        index: a list of the files, used instead of listing the folder: URL or path of a JSON array of paths, as written
            by ``torchdata-remote index``, or the list itself. Entries without a scheme are keys in the bucket of the
            URL, or paths below a local folder.
        classes: a labeller of ``tdr.labels`` or your own, from path to class; or names of the parent directories in the
            order of their labels; ``None`` uses the parent directories, sorted. If classes have subdirectories,
            ``labels.from_pattern("^([^/]+)/")`` uses the first directory, as torchvision does. If all images are in the
            folder itself, as in a test set, ``None`` gives them the label -1.
        limit: number of images to use, from the first one; labels do not change. ``None`` uses all.
        storage_options: for the store, in fsspec's vocabulary.
        max_in_flight: maximum number of concurrent requests per worker.
        on_error: called with the error of an image that cannot be read or decoded; returns the item to use instead. If
            it returns ``None``, the error is raised, as by ``raise_error``: a batch is never shorter.
        decoder: from a file's bytes to an image, called in threads; ``decoders.rgb(min_size=256)`` is faster if the
            transform reduces images.
        cache_dir: local folder in which complete files are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        retry: policy for transient errors.
        backend: library that transfers the bytes.

    Attributes:
        classes: names of the classes (list of str); a label is an index into it.
        class_to_idx: class name -> label (dict).

    Raises:
        EmptyListingError: if there are no images.
        LabelError: for an image without a class, with its path.
        DecodeError: for a file that is not an image, with its URL.
        StorageError: for a file that cannot be read, with its URL.

    Example:
        >>> import io, fsspec
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (4, 3)).save(file, "PNG")
        >>> fsspec.filesystem("memory").pipe({"/zoo/cat/1.png": file.getvalue(), "/zoo/ant/1.png": file.getvalue()})
        >>> zoo = RemoteImageFolder("memory://zoo/", transform=lambda image: (image.mode, image.size))
        >>> zoo.classes, zoo[1]
        (['ant', 'cat'], (('RGB', (4, 3)), 1))
    """

    _suffixes = IMAGE_FOLDER_SUFFIXES

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        index: Index | None = None,
        classes: Classes | Labeller | None = None,
        limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_in_flight: int = 64,
        on_error: OnError = raise_error,
        decoder: Callable[[bytes], Any] = rgb,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        retry: RetryPolicy | None = None,
        backend: Backend = Backend.AUTOMATIC,
    ) -> None:
        self.transform = check.function_or_none("transform", transform, example="torchvision.transforms.ToTensor()")
        self.target_transform = check.function_or_none("target_transform", target_transform, example="int")
        self._decode = check.function("decoder", decoder, example="decoders.rgb")
        self._classes = classes
        super().__init__(
            url,
            index=index,
            limit=limit,
            storage_options=storage_options,
            max_in_flight=max_in_flight,
            on_error=on_error,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            retry=retry,
            backend=backend,
        )

    def _label(self, paths: Sequence[str]) -> Mapping[str, Column]:
        classes = vars(self).pop("_classes")  # which workers do not need, and may not be able to get
        self.class_to_idx: dict[str, int] = {}
        if classes is None and not any("/" in path for path in paths):
            return {"labels": np.full(len(paths), NO_CLASS, np.int32)}
        labeller = labeller_of(classes)
        labels, table = assign_labels(labeller, paths)
        self.class_to_idx = {key: entry["id"] for key, entry in table.items()}
        if isinstance(labeller, NumberedClasses):
            self.class_to_idx = dict(labeller.numbers)
        return {"labels": labels}

    @cached_property
    def classes(self) -> list[str]:
        """The name of each label; a label without a class is named by its number."""
        names = {number: name for name, number in self.class_to_idx.items()}
        return [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]

    @property
    def targets(self) -> list[int]:
        """The label of each image."""
        return [*map(int, self._files.labels)]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """URL and label of each image: a new list."""
        return list(zip(map(redact, self._files.urls), self.targets, strict=True))

    def _item(self, number: int, value: Any) -> tuple[Any, Any]:
        label: Any = int(self._files.labels[number])
        image = value if self.transform is None else self.transform(value)
        return image, label if self.target_transform is None else self.target_transform(label)
