"""``IterDataPipe`` and ``IterableWrapper``, whose functional names type checkers and editors see as methods.

At run time they are torch's, and the functional names are registered as always. ``typed.pyi`` beside this file, written
by ``.ci/make_typed.py`` from the constructors of the pipes, is what type checkers read instead.
"""

from ..core.iter_datapipe import IterableWrapper, IterDataPipe

__all__ = ["IterDataPipe", "IterableWrapper"]
