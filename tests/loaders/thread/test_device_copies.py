"""Batches that are pinned and copied to a device: on the CPU, on ``meta``, and with a device that records its calls."""

from __future__ import annotations

import threading
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest
import torch

from torchdata_remote.loaders.thread import device_copies
from torchdata_remote.loaders.thread.device_copies import BatchCopies, mapped

from .test_batches_ahead import await_end, loader_of

Pair = namedtuple("Pair", "x y")  # as users write it


def tensors_of(numbers: list[int]) -> dict[str, Any]:
    return {"x": torch.tensor(numbers), "keys": [str(number) for number in numbers]}


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu"), None])
def test_batches_are_on_the_device(device: Any) -> None:
    """What is no tensor stays as it is."""
    batches = list(loader_of(8, collate_fn=tensors_of, device=device))
    assert {batch["x"].device.type for batch in batches} == {getattr(device, "type", device) or "cpu"}
    assert [batch["keys"][0] for batch in batches] == ["0", "4"]


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2.5, "text", b"bytes", None],
        (1, [2, {"a": 3}]),
        Pair(x=[1], y=2),
        OrderedDict(a=1, b=[2]),
        UserDict({"a": 1}),
        {"a": {"b": (1,)}},
    ],
)
def test_parts_without_the_method_stay_as_they_are(batch: Any) -> None:
    """Also the type of each collection."""
    again = mapped(batch, "to", lambda part: pytest.fail("called"))
    assert again == batch
    assert type(again) is type(batch)


def test_each_part_with_the_method_is_replaced() -> None:
    """In collections of each kind; a mapping that cannot be changed becomes a dict."""
    part = torch.zeros(1)

    def to_2(part: Any) -> Any:
        return part + 2

    found = mapped([Pair(part, {"a": part}), MappingProxyType({"b": part})], "to", to_2)
    assert found[0].x.item() == found[0].y["a"].item() == found[1]["b"].item() == 2
    assert part.item() == 0


class _Stream:
    def __init__(self, calls: list[Any], name: str) -> None:
        self.calls, self.name = calls, name

    def record_event(self) -> str:
        self.calls.append((self.name, "record_event"))
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.calls.append((self.name, "waits for", event))


class _Device:
    """A module as ``torch.cuda``, which notes calls with the thread that makes them."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.threads: dict[str, set[str]] = {"consumer": set(), "thread": set()}
        self.side = _Stream(self.calls, "side stream")
        self.current = _Stream(self.calls, "consumer's stream")
        self.active: list[_Stream] = []

    def Stream(self, device: int) -> _Stream:  # noqa: N802  # torch's name
        self.calls.append(("new stream", device))
        return self.side

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        self.active.append(stream)
        yield
        self.active.pop()

    def current_stream(self, device: int) -> _Stream:
        assert threading.current_thread() is threading.main_thread()
        return self.current

    def current_device(self) -> int:
        assert threading.current_thread() is threading.main_thread()
        return 3

    def set_device(self, index: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.calls.append(("set_device", index))


class _Part:
    """A tensor that notes where it is used."""

    def __init__(self, module: _Device, name: str) -> None:
        self.module, self.name = module, name

    def to(self, device: torch.device, *, non_blocking: bool = False) -> _Part:
        on = self.module.active[-1].name if self.module.active else "no stream"
        self.module.calls.append((self.name, "to", str(device), on, non_blocking))
        return _Part(self.module, f"copy of {self.name}")

    def pin_memory(self) -> _Part:
        return _Part(self.module, f"pinned {self.name}")

    def record_stream(self, stream: _Stream) -> None:
        self.module.calls.append((self.name, "record_stream", stream.name))


def test_a_gpu_copies_on_a_stream_of_its_own_for_which_the_consumer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the consumer's current device, which a thread does not inherit."""
    module = _Device()
    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr(module, "is_available", lambda: True, raising=False)
    loader = loader_of(4, device="cuda", pin_memory=True, collate_fn=lambda numbers: {"x": _Part(module, "batch")})
    assert module.calls == []
    (batch,) = list(loader)
    await_end()
    assert batch["x"].name == "copy of pinned batch"
    assert module.calls == [
        ("set_device", 3),
        ("new stream", 3),
        ("pinned batch", "to", "cuda", "side stream", True),
        ("side stream", "record_event"),
        ("consumer's stream", "waits for", "event of side stream"),
        ("copy of pinned batch", "record_stream", "consumer's stream"),
    ]


def test_the_index_of_a_device_is_that_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _Device()
    monkeypatch.setattr(torch, "cuda", module)
    copies = BatchCopies(torch.device("cuda", 1), pin_memory=False)
    copies.made(_Part(module, "batch"))
    assert module.calls[0] == ("new stream", 1)


def test_a_device_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="device must be one of torch's, such as 'cuda', got 'gpu'"):
        device_copies.device_of("gpu")
    with pytest.raises(TypeError, match="device must be a str such as 'cuda'"):
        device_copies.device_of(1.5)


def test_pinning_without_a_gpu_warns() -> None:
    """Instead of doing nothing in silence."""
    with pytest.warns(RuntimeWarning, match="pin_memory=True has no effect"):
        assert len(list(loader_of(8, pin_memory=True))) == 2
