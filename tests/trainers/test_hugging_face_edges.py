"""Accelerate and the transformers ``Trainer`` in one process: the edges of an epoch, a checkpoint, an evaluation."""

from __future__ import annotations

import importlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import torchdata_remote as tdr
from torchdata_remote.errors import EmptyShareError, SplitTwiceError, StateError

from .data import NUM_SAMPLES, NUM_STREAMS, loader_of, numbers_of, pipe_of

STATE_FILE = "trainer_state.json"


@cache
def hf() -> Any:
    """``hugging_face_program``, which takes 4 s to import: in the process that runs these tests alone."""
    return importlib.import_module("tests.trainers.hugging_face_program")


def prepared(dataset: Path, *, batch_size: int = 16, **options: Any) -> tuple[Any, tdr.loaders.StatefulLoader]:
    """An accelerator of this process, and a loader that it has prepared."""
    accelerator = hf().Accelerator(cpu=True, **options)
    loader = loader_of("stateful_loader(pipe)", dataset, batch_size=batch_size, num_workers=0)
    assert accelerator.prepare(loader) is loader
    return accelerator, loader


def test_accumulation_is_synchronised_at_the_end_and_metrics_keep_the_whole_last_batch(dataset: Path) -> None:
    """8 batches, 3 to a step: after the 3rd, the 6th and the last, in each epoch."""
    accelerator, loader = prepared(dataset, gradient_accumulation_steps=3)
    model = torch.nn.Linear(4, 1)
    for _ in range(2):
        synchronised, numbers = [], []
        for batch in loader:
            numbers += accelerator.gather_for_metrics(batch["number"]).tolist()
            with accelerator.accumulate(model):
                synchronised.append(accelerator.sync_gradients)
        assert synchronised == [False, False, True, False, False, True, False, True]
        assert sorted(numbers) == list(range(NUM_SAMPLES))
        assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("stop", [1, 7, 8])
def test_a_state_under_accelerate_excludes_the_prefetched_batch(dataset: Path, stop: int) -> None:
    """``end_of_dataloader`` prefetches a batch; the state is that of the consumer, also after ``break``."""
    accelerator, loader = prepared(dataset)
    (_, resumed), (_, again) = prepared(dataset), prepared(dataset)
    batches = iter(loader)
    for number in range(stop):
        next(batches)
        assert accelerator.gradient_state.end_of_dataloader == (number == 7)
    resumed.load_state_dict(loader.state_dict())
    expected = [numbers_of(batch) for batch in batches]
    assert [numbers_of(batch) for batch in resumed] == expected
    assert len(expected) == 8 - stop
    for _ in loader:
        break
    assert not accelerator.gradient_state.in_dataloader
    again.load_state_dict(loader.state_dict())
    assert (len(list(again)), len(list(loader))) == (7, 8)


def test_batches_are_put_on_the_accelerators_device(dataset: Path) -> None:
    """As those of Accelerate's own loaders."""
    _, loader = prepared(dataset)
    state = hf().PartialState()
    before = state.device
    try:
        state.device = torch.device("meta")
        assert next(iter(loader))["x"].device.type == "meta"
    finally:
        state.device = before


def test_what_would_skip_or_share_batches_is_refused(dataset: Path) -> None:
    """``skip_first_batches``: the loaded state continues by itself; groups of processes that read the same."""
    accelerator, loader = prepared(dataset)
    with pytest.raises(StateError, match=r"skip_first_batches .* accelerator\.load_state\(\)"):
        next(iter(accelerator.skip_first_batches(loader, 2)))
    plain = accelerator.prepare(torch.utils.data.DataLoader(tdr.Resumable(pipe_of(dataset), num_streams=12), 4))
    with pytest.raises(StateError, match="skip_first_batches"):
        list(accelerator.skip_first_batches(plain, 2))
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    accelerator.state.parallelism_config = parallelism.ParallelismConfig(tp_size=2)
    try:
        with pytest.raises(StateError, match=r"Accelerate runs 1 .* groups of 2\), .* sharding_filter_rank\(world="):
            accelerator.prepare(loader)
    finally:
        accelerator.state.parallelism_config = None


@pytest.mark.parametrize("of", [lambda pipe: pipe, tdr.Resumable])
def test_a_split_by_accelerates_own_class_is_refused_unless_each_process_gets_everything(
    of: Any, dataset: Path
) -> None:
    """By ``split=False``, or by a world of one rank; one process loses nothing."""

    def chain(**options: Any) -> Any:
        urls = tdr.IterableWrapper([f"{dataset}/shards/00.tar", f"{dataset}/shards/01.tar"])
        return urls.sharding_filter_rank(**options).shard_tar_reader().to_tuple("__key__")

    def shard(pipe: Any, num_processes: int) -> Any:
        return hf().IterableDatasetShard(of(pipe), batch_size=1, num_processes=num_processes, process_index=0)

    with pytest.raises(
        SplitTwiceError, match=r"accelerate's IterableDatasetShard .*torchdata_remote\.stateful_loader\("
    ):
        next(iter(shard(chain(), 2)))
    assert len(list(shard(chain(), 1))) == 20
    for options in ({"split": False}, {"world": tdr.World()}):
        assert len(list(shard(chain(**options), 2))) == 10


# The transformers Trainer


def trained(
    dataset: Path, output: Path, *callbacks: Any, stop_at: int | None = None, load: Path | None = None,
    kind: Any = None, train_dataset: Any = None, eval_dataset: Any = None, workers: int = 0, **options: Any,
) -> tuple[Any, list[list[int]]]:  # fmt: skip
    """A trainer that has trained, and the samples of each epoch."""
    model = hf().Model()
    trainer = (kind or hf().ChainTrainer)(
        model, hf().arguments(str(output), workers, **options), eval_dataset=eval_dataset,
        train_dataset=pipe_of(dataset) if train_dataset is None else train_dataset,
        callbacks=[hf().Epochs(model, stop_at), *callbacks],
    )  # fmt: skip
    trainer.train(None if load is None else str(load))
    return trainer, model.epochs


def test_epochs_are_counted_by_the_loader_where_the_batch_size_changes(dataset: Path, tmp_path: Path) -> None:
    """5 batches of 4 leave 100 samples: 17 batches of 6, where an epoch has 20."""
    epochs: list[float] = []
    trained(dataset, tmp_path, stop_at=5, num_train_epochs=3)
    trainer, after = trained(
        dataset, tmp_path, hf().At("on_step_begin", lambda state, _: epochs.append(state.epoch)), num_train_epochs=3,
        load=tmp_path / "checkpoint-5", per_device_train_batch_size=6,
    )  # fmt: skip
    assert [len(epoch) for epoch in after] == [100, 120, 120]
    assert epochs == pytest.approx([5 / 30, *(n / 20 for n in range(4, 60))])
    assert trainer.state.epoch == 3
    assert trainer.state.global_step == trainer.state.max_steps == 5 + 17 + 40


def test_a_training_that_has_ended_is_not_continued(dataset: Path, tmp_path: Path) -> None:
    trained(dataset, tmp_path, save_strategy="epoch")
    trainer, after = trained(dataset, tmp_path, load=tmp_path / "checkpoint-30")
    assert (after, trainer.state.global_step) == ([], 30)


def test_evaluating_on_the_training_dataset_keeps_the_state_of_the_training(dataset: Path, tmp_path: Path) -> None:
    both, again = (tdr.Resumable(pipe_of(dataset), num_streams=NUM_STREAMS) for _ in range(2))
    steps: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 5}
    _, before = trained(dataset, tmp_path, stop_at=10, train_dataset=both, eval_dataset=both, **steps)
    _, after = trained(dataset, tmp_path, train_dataset=again, load=tmp_path / "checkpoint-10")
    assert sorted(before[0] + after[0]) == list(range(NUM_SAMPLES))


def test_datasets_of_other_kinds_are_taken(dataset: Path, tmp_path: Path) -> None:
    """Several evaluations by name, predictions, and what is no chain."""
    plain = list(pipe_of(dataset))
    trainer, epochs = trained(dataset, tmp_path, train_dataset=plain, eval_dataset={"a": pipe_of(dataset), "b": plain})
    assert sorted(epochs[0]) == list(range(NUM_SAMPLES))
    assert {"eval_a_runtime", "eval_b_runtime"} <= trainer.evaluate().keys()
    for data in (pipe_of(dataset), plain):
        assert len(trainer.predict(data).predictions[-1]) == NUM_SAMPLES


def test_the_last_complete_checkpoint_is_kept_until_the_next_one_is_complete(dataset: Path, tmp_path: Path) -> None:
    class Killed(hf().ChainTrainer):  # type: ignore[misc]
        def _save_checkpoint(self, *args: Any, **options: Any) -> None:
            super()._save_checkpoint(*args, **options)
            if self.state.global_step == 10:
                raise KeyboardInterrupt  # before Trainer calls on_save

    with pytest.raises(KeyboardInterrupt):
        trained(dataset, tmp_path, kind=Killed, save_strategy="steps", save_steps=5, save_total_limit=1)
    assert [folder for folder in tmp_path.glob("checkpoint-*") if (folder / STATE_FILE).exists()]


def test_training_resumes_after_an_epoch_that_ended_early_and_between_two_steps(dataset: Path, tmp_path: Path) -> None:
    """A stop within an accumulation: Trainer has read 12 batches, and stepped after 8."""

    def end_early(state: Any, control: Any) -> None:
        control.should_epoch_stop = state.global_step == 4

    _, before = trained(dataset, tmp_path, hf().At("on_step_end", end_early), stop_at=8, num_train_epochs=2)
    _, after = trained(dataset, tmp_path, load=tmp_path / "checkpoint-8", num_train_epochs=2)
    assert sorted(before[1] + after[0]) == list(range(NUM_SAMPLES))
    seen = []

    def stop(state: Any, control: Any) -> None:
        seen.append(state.global_step)
        if len(seen) == 7:
            control.should_save = control.should_training_stop = True

    options: dict[str, Any] = {"gradient_accumulation_steps": 4}
    trained(dataset, tmp_path, hf().At("on_substep_end", stop), **options)
    _, after = trained(dataset, tmp_path, load=tmp_path / "checkpoint-2", **options)
    assert len(after[0]) == NUM_SAMPLES - 8 * 4  # what no step was made of is trained on


@pytest.fixture(scope="module")
def checkpoint(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of steps 5, 10 and 15."""
    output = tmp_path_factory.mktemp("checkpoints")
    trained(dataset, output, stop_at=15, save_strategy="steps", save_steps=5)
    return output


def test_a_checkpoint_without_the_position_or_with_a_damaged_one_is_refused(
    dataset: Path, checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint / "checkpoint-5", tmp_path / "checkpoint-5")
    file = tmp_path / "checkpoint-5" / STATE_FILE
    text = file.read_text()
    state = json.loads(text)
    for callbacks in ({}, {**state["stateful_callbacks"], tdr.__name__: {"attributes": {"all_ranks": "{"}}}):
        file.write_text(json.dumps({**state, "stateful_callbacks": callbacks}))
        with pytest.raises(StateError, match=f"{STATE_FILE} does not contain|damaged"):
            trained(dataset, tmp_path, load=tmp_path / "checkpoint-5")
    for cut in ("", text[: len(text) // 2], "[]"):
        file.write_text(cut)
        with pytest.raises(StateError, match=rf"checkpoint-5/{STATE_FILE} does not contain .* interrupted"):
            trained(dataset, tmp_path, load=tmp_path / "checkpoint-5")
    file.unlink()
    with pytest.raises(StateError, match=rf"checkpoint-5/{STATE_FILE} does not contain .* interrupted"):
        trained(dataset, tmp_path, load=tmp_path / "checkpoint-5")


@pytest.mark.parametrize("base", ["Trainer", "ChainTrainer"])
def test_resuming_with_a_users_own_loader_is_refused(dataset: Path, tmp_path: Path, base: str) -> None:
    """Trainer does not store its position."""

    class OwnLoader(getattr(hf(), base)):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(tdr.stateful_loader(pipe_of(dataset), batch_size=4))

    options: dict[str, Any] = {"kind": OwnLoader, "train_dataset": [], "save_strategy": "steps", "save_steps": 3}
    trained(dataset, tmp_path, stop_at=3, **options)
    with pytest.raises(StateError, match=r"RemoteTrainerMixin.* train_dataset=pipe|train_dataset=pipe .*Remote"):
        trained(dataset, tmp_path, load=tmp_path / "checkpoint-3", **options)


def test_threads_take_the_place_of_workers(dataset: Path, tmp_path: Path) -> None:
    """A checkpoint that they have saved is resumed without them, and by them again."""
    _, before = trained(dataset, tmp_path, kind=hf().Threads, stop_at=5)
    for kind in (hf().Threads, hf().ChainTrainer):
        _, after = trained(dataset, tmp_path, kind=kind, load=tmp_path / "checkpoint-5")
        assert sorted(before[0] + after[0]) == list(range(NUM_SAMPLES))
    with pytest.raises(StateError, match="num_threads=2 and dataloader_num_workers=1"):
        trained(dataset, tmp_path, kind=hf().Threads, workers=1)


def test_what_cannot_train_is_refused_before_the_first_batch(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyShareError, match=r"120 samples .* batch of 200 .*dataloader_drop_last=False"):
        trained(dataset, tmp_path, dataloader_drop_last=True, per_device_train_batch_size=200)


def test_a_plain_trainer_does_not_resume_within_an_epoch_of_a_chain(dataset: Path, tmp_path: Path) -> None:
    """It would skip the first batches of the first epoch's order."""
    trained(dataset, tmp_path, kind=hf().Trainer, num_train_epochs=2, stop_at=34)
    with pytest.raises(StateError, match=r"skip_first_batches .* class MyTrainer\(RemoteTrainerMixin, Trainer\)"):
        trained(dataset, tmp_path, kind=hf().Trainer, num_train_epochs=2, load=tmp_path / "checkpoint-34")
