"""Send objects to worker processes, and check before they start what they are sent."""

from __future__ import annotations

import importlib.util
import inspect
import io
import pickle
import pickletools
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import FrameType, FunctionType
from typing import Any

from ...errors import RemoteDataError, WorkerStartError
from ..arguments import check
from ..iter_datapipe import IterDataPipe
from ..shared_names import SHARED
from .by_value import ByValuePickler
from .main_guard import require_main_guard
from .parent_watch import end_starting_worker_with_trainer

_IN_MEMORY = re.compile(r"(?:samples\+[\d-]+\+)?(memory://+[^/]+)", re.IGNORECASE)


class SentToWorkers:
    """Base of objects that are sent to workers, functions and classes that those cannot import by value.

    What cannot be sent, or would fail there, is an error in the process that starts them. A worker ends with its
    trainer, even if it gets no task.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        if get_spawning_popen() is not None and IterDataPipe.getstate_hook is None:  # sent to a new process
            require_main_guard()
            _check_loader_of_torch()
            return pickle.loads, (_packed(self),)
        reduced = super().__reduce_ex__(protocol)
        if IterDataPipe.getstate_hook is None:
            return reduced
        # torch looks for the sources of a pipe by pickling all of its collections, also without workers
        return (
            *reduced[:2],
            {name: part for name, part in _state_in(reduced).items() if _holds_pipes(part)},
            *reduced[3:],
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        end_starting_worker_with_trainer()


class SentFunction(SentToWorkers):
    """A function that a loader sends to its workers.

    Args:
        function: to call.
        argument: of the loader, such as ``PrefetchingLoader(worker_init_fn=...)``.
    """

    def __init__(self, function: Callable[..., Any], argument: str) -> None:
        self._function, self.argument = function, argument

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class _Pickler(ByValuePickler):
    def __init__(self) -> None:
        super().__init__()
        self.dispatch_table = ChainMap(ForkingPickler(self.file).dispatch_table, super().dispatch_table)
        self.owners: list[tuple[object, Mapping[str, Any]]] = []
        """Objects whose attributes are arguments of a user, and these."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, SentToWorkers):
            reduced = super(SentToWorkers, value).__reduce_ex__(self.proto)
            self.owners.append((value, _state_in(reduced)))
            return reduced
        if isinstance(value, IterDataPipe):
            self.owners.append((value, vars(value)))
        return super().reducer_override(value)


class _WithoutFunctions(_Pickler):
    """Leaves out the functions that go by value, whose texts may name a store that the chain does not read."""

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        return (str, ()) if isinstance(value, type | FunctionType) and reduced is not NotImplemented else reduced


def _state_in(reduced: Any) -> dict[str, Any]:
    return reduced[2] if len(reduced) > 2 and isinstance(reduced[2], dict) else {}


def _packed(value: object) -> bytes:
    if (error := _failure(pickler := _Pickler(), value)) is not None:
        for owner, state in [] if isinstance(error, RemoteDataError) else reversed(pickler.owners):
            for name, part in state.items():
                if not isinstance(part, IterDataPipe) and (cause := _failure(_Pickler(), part)) is not None:
                    why = f"cannot be sent to a worker process: {cause}. Open files and locks where they are used"
                    raise _refused(owner, name, part, why) from cause
        raise error
    data = pickler.file.getvalue()
    if re.search(b"memory://", data, re.IGNORECASE):
        without_functions = _WithoutFunctions()
        without_functions.dump(value)
        _refuse_memory(without_functions.file.getvalue())
    return data


def _failure(pickler: pickle.Pickler, value: object) -> Exception | None:
    try:
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001  # whatever its class does
        return error
    return None


def _refuse_memory(data: bytes) -> None:
    """Raise an error if a pickle holds a URL of ``memory://``."""
    for _, argument, _ in pickletools.genops(data):
        text = str(argument, "latin-1") if isinstance(argument, bytes | bytearray) else argument
        if isinstance(text, str) and (found := _IN_MEMORY.match(text)) is not None:
            raise WorkerStartError(
                f"{found[1]} is in the memory of this process, which worker processes do not share. Read it by threads "
                "(thread_loader) or with num_workers=0, or write the data to files."
            )


def _check_loader_of_torch() -> None:
    """Check what torch's DataLoader sends beside the object that is being pickled: later pipes, and its own functions.

    Raises:
        WorkerStartError: names what cannot be imported by a new process.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "start":
        frame = frame.f_back
    process: Any = None if frame is None else frame.f_locals.get("self")
    target: Any = getattr(process, "_target", None)
    if getattr(target, "__module__", None) != "torch.utils.data._utils.worker":
        return
    sent = dict(zip(inspect.signature(target).parameters, process._args, strict=False))
    last = getattr(sent.get("dataset"), "_datapipe", None)  # DataLoader itself wraps the last pipe
    own = {"dataset": last, "collate_fn": sent.get("collate_fn"), "worker_init_fn": sent.get("init_fn")}
    _require_imported("DataLoader", own)


def _require_imported(owner: object, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, SentToWorkers):
            continue
        if isinstance(value, IterDataPipe):  # one of torch's
            _require_imported(value, vars(value))
            continue
        _failure(pickler := _Pickler(), value)
        # With dill, DataLoader sends a chain by value if it does not pickle
        if pickler.by_value and (
            owner == "DataLoader"
            or importlib.util.find_spec("dill") is None
            or _failure(pickle.Pickler(io.BytesIO()), value) is None
        ):
            why = (
                "torch's DataLoader cannot send to a worker process. Use stateful_loader or PrefetchingLoader, which "
                "can, or a function of a module"
            )
            raise _refused(owner, name, pickler.by_value[0], why)


def _refused(owner: object, attribute: str, value: object, why: str) -> WorkerStartError:
    what = f"the class {value.__qualname__!r}" if isinstance(value, type) else check.a_kind(value)
    if isinstance(value, FunctionType):
        kind = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__!r}"
        code = value.__code__
        what = f"{kind} ({code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno})"
    return WorkerStartError(f"{_place(owner, attribute)} holds {what}, which {why}. num_workers=0 needs no processes.")


def _place(owner: object, attribute: str) -> str:
    """Describe an attribute by the argument with which it was passed."""
    if isinstance(owner, str):
        return f"{owner}({attribute}=...)"
    if isinstance(owner, SentFunction):
        return owner.argument
    kind = type(owner)
    names = (*SHARED.items(), *IterDataPipe.functions.items())
    name = next((name for name, made in names if kind in (made, *getattr(made, "args", ()))), None)
    name = name or getattr(kind, "shown_as", kind.__name__)
    argument = attribute.removeprefix("_")
    known = argument in inspect.signature(kind.__init__).parameters
    return f"{name}({argument}=...)" if known else f"{name}(...)"


def _holds_pipes(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, IterDataPipe) or any(isinstance(part, IterDataPipe) for part in parts)
