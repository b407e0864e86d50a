"""Group a batch of members at once, if each sample has the extensions of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .sample import KEY, URL, Sample

# Characters; of longer keys, hashes are remembered
LONG_KEY = 200


class SamplePattern(NamedTuple):
    """The members of a sample, in their order.

    Args:
        endings: of their names, from the first dot on, which ends the key.
        extensions: the same in lower case, without that dot.
    """

    endings: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def keys_in(self, names: Sequence[str], current: str, begun: Sequence[str]) -> list[str] | None:
        """Return the keys of the samples that begin in a batch; ``None`` if its members have to be looked at singly.

        Each name is compared with what the pattern demands, by a few operations on all names together.

        Args:
            names: of the members.
            current: key of the sample that began before the batch.
            begun: endings of its members so far.
        """
        num_begun, width = len(begun), len(self.endings)
        rest = [current + ending for ending in self.endings[num_begun:]]
        start = len(rest)
        if not width or tuple(begun) != self.endings[:num_begun] or names[:start] != rest:
            return None
        firsts, ending = names[start::width], self.endings[0]
        if not firsts:
            return []
        lines = "\n".join(firsts)
        keys = f"{lines}\n".split(f"{ending}\n")
        is_whole = not keys.pop() and len(keys) == len(firsts) == lines.count("\n") + 1
        # The dot of the ending is the first one
        if not is_whole or lines.count(".") != len(keys) * ending.count(".") or need_care(f"\n{lines}"):
            return None
        for number in range(1, width):
            others, ending = names[start + number :: width], self.endings[number]
            if others and "\n".join(others) != f"{ending}\n".join(keys[: len(others)]) + ending:
                return None
        return keys if len(lines) <= LONG_KEY or max(map(len, keys)) <= LONG_KEY else None

    def samples(self, keys: Sequence[str], values: Sequence[Any], url: str) -> list[Sample]:
        """Return the samples of these keys; the last one may lack members.

        Args:
            keys: with a prefix, if there is one.
            values: data of all members.
            url: of the shard.
        """
        width = len(self.extensions)
        num_whole = len(values) // width
        whole = keys[:num_whole]
        if width == 2:
            one, two = self.extensions
            pairs = zip(whole, values[::2], values[1::2])  # noqa: B905  # the last first has no second
            samples = [{KEY: key, URL: url, one: first, two: second} for key, first, second in pairs]
        else:
            samples = [{KEY: key, URL: url} for key in whole]
            for number, extension in enumerate(self.extensions):
                for sample, value in zip(samples, values[number::width]):  # noqa: B905  # as above
                    sample[extension] = value
        if num_whole < len(keys):
            last = zip(self.extensions, values[num_whole * width :])  # noqa: B905  # as above
            samples.append({KEY: keys[-1], URL: url, **dict(last)})
        return samples


def need_care(lines: str) -> bool:
    """Return whether a path, each after a line break, may be ``.``, ``..``, absolute, hidden or ``__meta__``."""
    # A single character is found at the speed of memchr
    return (
        "\n." in lines
        or "\0" in lines
        or ("/" in lines and ("/." in lines or "\n/" in lines))
        or ("__" in lines and ("/__" in lines or "\n__" in lines))
    )
