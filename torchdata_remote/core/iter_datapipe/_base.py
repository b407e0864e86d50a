"""``IterDataPipe`` and ``functional_datapipe``, for versions of torch without them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, TypeVar

from torch.utils.data import IterableDataset

from ..shared_names import is_of_reload

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound="type[IterDataPipe[Any]]")


class IterDataPipe(IterableDataset[T_co]):
    """An ``IterableDataset`` whose subclasses chain by functional names.

    As in torch, ``reset()`` is called when an iteration starts, and a second iterator of a pipe ends the first, because
    both would use the same state.
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    # Set by torch's graph traversal, and unused here
    getstate_hook: ClassVar[Callable[..., Any] | None] = None
    _valid_iterator_id = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__iter__" in vars(cls):
            cls.__iter__ = _one_iterator_at_a_time(cls.__iter__)  # type: ignore[method-assign]

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} needs __iter__.")

    def __getattr__(self, name: str) -> Any:
        try:
            function = IterDataPipe.functions[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None
        return functools.update_wrapper(functools.partial(function, self), function, assigned=("__doc__",))

    @classmethod
    def register_function(cls, function_name: str, function: Callable[..., Any]) -> None:
        """Make ``pipe.function_name(...)`` call ``function(pipe, ...)``."""
        cls.functions[function_name] = function

    @classmethod
    def register_datapipe_as_function(cls, function_name: str, cls_to_register: Callable[..., Any]) -> None:
        """Make ``pipe.function_name(...)`` build this class on the pipe.

        Raises:
            ValueError: if the name is taken.
        """
        taken = cls.functions.get(function_name)
        if taken is not None and not is_of_reload(taken, cls_to_register):
            raise ValueError(f"The functional name {function_name!r} is taken by {taken}; choose another one.")
        function = functools.partial(_build, cls_to_register)
        cls.register_function(function_name, functools.update_wrapper(function, cls_to_register, assigned=("__doc__",)))

    def reset(self) -> None:
        """Called when an iteration starts."""

    def __getstate__(self) -> Any:
        return self.__dict__

    def __repr__(self) -> str:
        return type(self).__qualname__

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]


def _build(cls: Callable[..., Any], source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
    return cls(source_datapipe, *args, **kwargs)


def functional_datapipe(name: str) -> Callable[[P], P]:
    """Register a pipe's functional name.

    Args:
        name: becomes a method of all pipes.
    """

    def register(cls: P) -> P:
        if not (isinstance(cls, type) and issubclass(cls, IterDataPipe)):
            raise TypeError(f"functional_datapipe({name!r}) is for subclasses of IterDataPipe, got {cls!r}.")
        IterDataPipe.register_datapipe_as_function(name, cls)
        return cls

    return register


def _one_iterator_at_a_time(make: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap ``__iter__`` so that its iterators end when a later one starts."""

    def start(self: IterDataPipe[Any]) -> int:
        self._valid_iterator_id += 1
        self.reset()
        return self._valid_iterator_id

    def items(self: IterDataPipe[Any], source: Iterator[Any], number: int) -> Generator[Any, None, None]:
        try:
            for item in source:
                yield item
                if self._valid_iterator_id != number:
                    raise RuntimeError(
                        f"This iterator of {self!r} has been invalidated, because another one was created from the "
                        "same pipe. Build a pipe for each iterator."
                    )
        finally:
            if inspect.isgenerator(source):
                source.close()

    @functools.wraps(make)
    def eager(self: IterDataPipe[Any]) -> Iterator[Any]:
        number = start(self)
        return items(self, make(self), number)

    @functools.wraps(make)
    def lazy(self: IterDataPipe[Any]) -> Iterator[Any]:
        yield from items(self, make(self), start(self))

    return lazy if inspect.isgeneratorfunction(make) else eager
