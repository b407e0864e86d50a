"""Labels by file name: ``{"PiC1.JPEG": 1, ...}``, the format of ImageNetTools' ``ClassInfo.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.arguments import int_of
from ..errors import LabelError
from ._sources import Origin


def names_files(document: object) -> bool:
    """Whether a document maps file names, which have an extension, to numbers.

    >>> names_files({"PiC1.JPEG": 1}), names_files({"n02119789": {"id": 1, "name": "kit_fox"}})
    (True, False)
    """
    return (
        isinstance(document, Mapping)
        and bool(document)
        and all(isinstance(key, str) and "." in key.rpartition("/")[2] for key in document)
        and any(int_of(value) is not None for value in document.values())
    )


def read_file_names(document: Mapping[str, object], origin: Origin, *, id_base: int) -> ByFileName:
    """Create a labeller from a document of file names.

    Raises:
        LabelError: for a value that is not a number, or less than ``id_base``.
    """
    labels: dict[str, dict[str, int]] = {}
    for key, value in document.items():
        path = key.removeprefix("./")
        label = origin.label(value, id_base=id_base, what=f"the class of {key!r:.100}")
        of_name = labels.setdefault(path.rpartition("/")[2], {})
        if path in of_name:
            raise origin.error(f"{key!r:.100} occurs twice, once with and once without './' before it.")
        of_name[path] = label
    return ByFileName(labels, origin)


@dataclass(frozen=True)
class ByFileName:
    """Labeller: the class of the file with this name.

    Args:
        labels: base name -> path in the source -> label, counted from 0.
        origin: of the labels, for errors.
    """

    labels: Mapping[str, Mapping[str, int]] = field(repr=False)
    origin: Origin

    def __call__(self, path: str) -> int:
        key = self.key_of(path)
        return self.labels[key.rpartition("/")[2]][key]

    def key_of(self, path: str) -> str:
        """Find a file in the source by the longest suffix of its path, or by the only path that ends with it.

        Raises:
            LabelError: if there is none, or several.
        """
        candidates = self.labels.get(path.rpartition("/")[2], {})
        ends = [key for key in candidates if f"/{path}".endswith(f"/{key}")]
        if ends:
            return max(ends, key=len)
        longer = [key for key in candidates if key.endswith(f"/{path}")]
        if len(longer) == 1:
            return longer[0]
        if longer:
            raise LabelError(
                f"{path!r} may be {longer[0]!r} or {longer[1]!r} of {self.origin.shown}: give paths with folders.",
                url=self.origin.url,
            )
        raise LabelError(
            f"{path!r} is none of the {sum(map(len, self.labels.values())):,} files of {self.origin.shown}, such as "
            f"{next(iter(candidates or next(iter(self.labels.values()))))!r}.",
            url=self.origin.url,
        )

    def of_one_source(self) -> _OfOneSource:
        """Return a labeller for the files of one source. Two files with one name in the source are an error."""
        return _OfOneSource(self, {})


@dataclass(frozen=True)
class _OfOneSource:
    by_name: ByFileName
    seen: dict[str, str] = field(repr=False)  # the source's path -> the file's

    def __call__(self, path: str) -> int:
        key = self.by_name.key_of(path)
        before = self.seen.setdefault(key, path)
        if before != path:
            raise LabelError(
                f"{before!r} and {path!r} have one name, {key!r}, in {self.by_name.origin.shown}, which does not "
                "distinguish them. Add folders to its names.",
                url=self.by_name.origin.url,
            )
        return self.by_name(path)
