"""torch's DataPipes, without the warnings of their deprecation.

PyTorch plans to deprecate them (https://github.com/pytorch/pytorch/pull/168318). All other modules import them from
here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch  # noqa: F401  # wholly, before a part of it: threads that import different parts break each other's import

from .functional_names import OWN, is_free

Pipe = TypeVar("Pipe", bound=type)

# Their deprecation does not concern users of this package, which has its own: so there are no warnings of imports
# here, of subclasses in this package, or of torchdata. Warnings about the users' own code are still shown.
for _category in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("ignore", "(?s).*DataPipe", _category, r"torchdata(_remote)?\.")
# Of torch's map and filter: our loaders send such functions, and say which loaders do not
warnings.filterwarnings("ignore", "(Lambda|Local) function is not supported by pickle", UserWarning)
with warnings.catch_warnings():
    for _category in (DeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", _category)
    # Not from torch.utils.data, whose names are the deprecated ones
    from torch.utils.data.datapipes import _decorator
    from torch.utils.data.datapipes.datapipe import IterDataPipe as IterDataPipe
    from torch.utils.data.datapipes.iter import Batcher as Batcher
    from torch.utils.data.datapipes.iter import Collator as Collator
    from torch.utils.data.datapipes.iter import Filter as Filter
    from torch.utils.data.datapipes.iter import IterableWrapper as IterableWrapper
    from torch.utils.data.datapipes.iter import Mapper as Mapper
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES as SHARDING_PRIORITIES
    from torch.utils.data.datapipes.utils.common import StreamWrapper as StreamWrapper


def functional_datapipe(name: str) -> Callable[[Pipe], Pipe]:
    """Register the functional name of a pipe of this package."""

    def register(cls: Pipe) -> Pipe:
        OWN[name] = cls
        return _decorator.functional_datapipe(name)(cls) if is_free(name, IterDataPipe.functions) else cls

    return register
