"""Check the options of ``stateful_loader`` before torch does, in the words of its documentation."""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..core.arguments import check
from ..core.arguments.amounts import seconds, whole, whole_or_none
from ..core.arguments.suggestions import did_you_mean


def require_chain(pipe: object) -> None:
    """Refuse what is not a chain of pipes.

    Raises:
        TypeError: names what reads such a thing instead.
    """
    if isinstance(pipe, IterableDataset):
        return
    advice = "Begin a chain by tdr.stream_shards(url) or IterableWrapper([url]).list_remote()."
    if hasattr(pipe, "batches"):
        advice = "A map-style dataset is read by tdr.PrefetchingLoader, or by torch's DataLoader."
    elif isinstance(pipe, Dataset):
        advice = "A map-style dataset is read by torch's DataLoader."
    elif isinstance(pipe, DataLoader):
        advice = "Pass the chain itself, not a loader of it."
    elif callable(pipe):
        advice = "Pass what it returns: call it."
    elif hasattr(pipe, "__iter__") and not isinstance(pipe, str | bytes):
        advice = "Write IterableWrapper(items) to make a chain of it."
    shown = check.shown(pipe) if isinstance(pipe, type | str) else f"a {type(pipe).__name__}"
    raise check.marked(TypeError(f"pipe must be a chain of pipes, got {shown}. {advice}"))


def check_loader_options(
    *, batch_size: Any, num_workers: Any, prefetch_factor: Any, pin_memory: Any, context: Any, timeout_s: Any,
    functions: dict[str, Any], flags: dict[str, Any],
) -> None:  # fmt: skip
    """Check the kinds of all options.

    Raises:
        TypeError, ValueError: for the first one that is wrong; says what to write.
    """
    whole_or_none("batch_size", batch_size)
    whole("num_workers", num_workers, at_least=0)
    whole_or_none("prefetch_factor", prefetch_factor)
    seconds("timeout_s", timeout_s, positive=False)
    for name, value in flags.items():
        check.flag(name, value)
    if pin_memory is not None:
        check.flag("pin_memory", pin_memory)
    for name, value in functions.items():
        check.function_or_none(name, value, example="a function at the top level of a module")
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in {*methods, "forkserver"}:
            raise check.marked(
                ValueError(
                    f"multiprocessing_context must be one of {', '.join(map(repr, methods))}, got {context!r}"
                    + (did_you_mean(context, methods) or ".")
                )
            )
    elif not hasattr(context, "Process"):
        raise check.marked(
            TypeError(f"multiprocessing_context must be a str such as 'forkserver', got {check.shown(context)}.")
        )
