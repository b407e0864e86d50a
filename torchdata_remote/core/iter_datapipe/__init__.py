"""torch's DataPipes where torch has them, otherwise our own.

PyTorch prepares to deprecate them (https://github.com/pytorch/pytorch/pull/168318). Everything else in this package
imports them from here. Both have the same names and attributes: a state that was saved with one loads with the other.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data.datapipes._decorator import functional_datapipe
    from torch.utils.data.datapipes.datapipe import IterDataPipe
    from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    from torch.utils.data.datapipes.utils.common import StreamWrapper
else:
    # A deprecation of them need not concern users of this package, which has its own: not here, not where a module of
    # this package makes a subclass, not where torchdata imports them. What users do themselves is still reported.
    for _category in (DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", "(?s).*DataPipe", _category, r"torchdata(_remote)?\.")
    with warnings.catch_warnings():
        for _category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", _category)
        try:
            # Not from torch.utils.data: those names are the deprecated ones.
            from torch.utils.data.datapipes._decorator import functional_datapipe
            from torch.utils.data.datapipes.datapipe import IterDataPipe
            from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, IterableWrapper, Mapper
            from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
            from torch.utils.data.datapipes.utils.common import StreamWrapper
        except ImportError:
            from ._base import IterDataPipe, functional_datapipe
            from ._pipes import Batcher, Collator, Filter, IterableWrapper, Mapper
            from ._sharding import SHARDING_PRIORITIES
            from ._stream_wrapper import StreamWrapper

__all__ = [
    "SHARDING_PRIORITIES",
    "Batcher",
    "Collator",
    "Filter",
    "IterDataPipe",
    "IterableWrapper",
    "Mapper",
    "StreamWrapper",
    "functional_datapipe",
]
