"""What ``torchdata_remote.loaders.trainers`` offers."""

from __future__ import annotations

import pytest

from torchdata_remote.loaders import trainers


def test_the_mixin_is_imported_on_first_use() -> None:
    """Without transformers, which the mixin's module imports when it is used."""
    assert trainers.RemoteTrainerMixin.__name__ == "RemoteTrainerMixin"
    assert trainers.__all__ == ["RemoteTrainerMixin"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = trainers.Unknown
