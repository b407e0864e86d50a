"""The transformers ``Trainer`` in one process: what it does at the edges of an epoch, a checkpoint, an evaluation."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.waiting import wait_for
from torchdata_remote.errors import EmptyShareError, RemoteDataError, StateError

from .data import NUM_SAMPLES, NUM_STREAMS, of_sample, pipe_of

pytest.importorskip("transformers")
from transformers import Trainer, TrainerCallback

from torchdata_remote.loaders.trainers import RemoteTrainerMixin
from torchdata_remote.loaders.trainers.trainer_batches import TrainerBatches

from .transformers_program import ChainTrainer, Epochs, Model, _arguments

LOADER_FILE = "torchdata_remote.json"
multiprocessing.set_forkserver_preload(["tests.trainers.transformers_program"])  # workers are forked in less time


class At(TrainerCallback):  # type: ignore[misc]  # no types are read of it
    """Calls a function at each event of a name."""

    def __init__(self, event: str, function: Callable[[Any, Any], None]) -> None:
        setattr(self, event, lambda args, state, control, **_: function(state, control))


def trained(
    dataset: Path, output: Path, *callbacks: Any, stop_at: int | None = None, load: Path | None = None,
    kind: Any = ChainTrainer, train_dataset: Any = None, eval_dataset: Any = None, workers: int = 0, **options: Any,
) -> tuple[Any, list[list[int]]]:  # fmt: skip
    """A trainer that has trained, and the samples of each epoch."""
    model = Model()
    trainer = kind(
        model, _arguments(str(output), workers, **options), eval_dataset=eval_dataset,
        train_dataset=pipe_of(dataset) if train_dataset is None else train_dataset,
        callbacks=[Epochs(model, stop_at), *callbacks],
    )  # fmt: skip
    trainer.train(None if load is None else str(load))
    return trainer, model.epochs


def test_with_another_number_of_workers_trainer_reads_all_batches_left(dataset: Path) -> None:
    """3 batches of 4 by 0 workers leave 108 samples: 27 batches, but 28 (54 + 54 samples) with 2 workers.

    An epoch has 30 batches with both, so ``Trainer`` would end this one after 27: two samples would be lost.
    """

    def loader(num_workers: int) -> tdr.StatefulLoader:
        return tdr.stateful_loader(
            pipe_of(dataset), batch_size=4, num_workers=num_workers, num_streams=NUM_STREAMS, state_of_all_ranks=True
        )

    steps: list[Any] = []

    def batches_of(num_workers: int, **options: Any) -> TrainerBatches:
        return TrainerBatches(loader(num_workers), accumulation=1, num_steps=steps.__len__, **options)

    before = batches_of(0)
    batches = before.batches()
    for _ in range(3):
        steps.append(next(batches))
    saved = {"record": before.record(), "num_steps_saved": 3}
    assert len(batches_of(0, **saved)) == 30
    after = batches_of(2, **saved)
    with pytest.raises(TypeError, match="counts steps"):  # so that Trainer does, too
        len(after)
    assert after.max_steps(num_epochs=2) == 3 + 28 + 30


def test_workers_end_with_each_evaluation_unless_they_are_persistent(dataset: Path, tmp_path: Path) -> None:
    others = set(multiprocessing.active_children())

    def workers() -> set[Any]:
        return set(multiprocessing.active_children()) - others

    for persistent in (False, True):
        arguments = _arguments(str(tmp_path), 1, dataloader_persistent_workers=persistent)
        trainer = ChainTrainer(Model(), arguments, eval_dataset=pipe_of(dataset))
        for other in (None, None, pipe_of(dataset)):
            trainer.evaluate(other)
            if persistent:
                assert len(workers()) == 1
            else:
                wait_for(lambda: not workers())  # a busy machine takes its time to end one
        assert not trainer.accelerator._dataloaders
    for batches in trainer._kept.values():
        batches.end_workers()


def test_evaluating_on_the_training_dataset_keeps_the_state_of_the_training(dataset: Path, tmp_path: Path) -> None:
    both = tdr.Resumable(pipe_of(dataset), num_streams=NUM_STREAMS)
    _, before = trained(
        dataset, tmp_path, stop_at=10, train_dataset=both, eval_dataset=both, eval_strategy="steps", eval_steps=5
    )
    again = tdr.Resumable(pipe_of(dataset), num_streams=NUM_STREAMS)
    _, after = trained(dataset, tmp_path, train_dataset=again, load=tmp_path / "checkpoint-10")
    assert sorted(before[0] + after[0]) == list(range(NUM_SAMPLES))


def test_a_resumable_that_has_listed_is_not_listed_again(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset / "shards", tmp_path / "shards")
    listed = tdr.Resumable(pipe_of(tmp_path), num_streams=NUM_STREAMS)
    listed.list_now()
    (tmp_path / "shards" / "index.json").unlink()
    _, epochs = trained(dataset, tmp_path, train_dataset=listed)
    assert sorted(epochs[0]) == list(range(NUM_SAMPLES))


def test_a_checkpoint_that_is_saved_without_on_save_has_the_loaders_state(dataset: Path, tmp_path: Path) -> None:
    """As ``enable_jit_checkpoint=True`` does at SIGTERM, and hyperparameter search in folders of its own."""

    class Preempted(ChainTrainer):
        def training_step(self, *args: Any, **options: Any) -> Any:
            if self.state.global_step == 3:
                self.get_train_dataloader()  # which callbacks may call
                self._save_checkpoint(self.model, trial=None)
            return super().training_step(*args, **options)

        def _get_output_dir(self, trial: Any) -> str:
            return str(tmp_path / "run-0")

    _, before = trained(dataset, tmp_path, kind=Preempted)
    _, after = trained(dataset, tmp_path, load=tmp_path / "run-0" / "checkpoint-3")
    assert after[0] == before[0][3 * 4 :]  # the step in which it was saved is done again


def test_the_last_complete_checkpoint_is_kept_until_the_next_one_is_complete(dataset: Path, tmp_path: Path) -> None:
    class Killed(ChainTrainer):
        def _save_checkpoint(self, *args: Any, **options: Any) -> None:
            super()._save_checkpoint(*args, **options)
            if self.state.global_step == 10:
                raise KeyboardInterrupt  # before Trainer calls on_save

    with pytest.raises(KeyboardInterrupt):
        trained(dataset, tmp_path, kind=Killed, save_strategy="steps", save_steps=5, save_total_limit=1)
    assert [folder for folder in tmp_path.glob("checkpoint-*") if (folder / LOADER_FILE).exists()]


def test_training_resumes_after_an_epoch_that_a_callback_ended_early(dataset: Path, tmp_path: Path) -> None:
    def end_early(state: Any, control: Any) -> None:
        control.should_epoch_stop = state.global_step == 4

    _, before = trained(dataset, tmp_path, At("on_step_end", end_early), stop_at=8, num_train_epochs=2)
    _, after = trained(dataset, tmp_path, load=tmp_path / "checkpoint-8", num_train_epochs=2)
    assert sorted(before[1] + after[0]) == list(range(NUM_SAMPLES))


def test_training_resumes_after_a_stop_between_two_steps(dataset: Path, tmp_path: Path) -> None:
    """A stop asked for within an accumulation: Trainer has read 12 batches, and stepped after 8."""
    seen = []

    def stop(state: Any, control: Any) -> None:
        seen.append(state.global_step)
        if len(seen) == 7:
            control.should_save = control.should_training_stop = True

    options: dict[str, Any] = {"gradient_accumulation_steps": 4}
    trained(dataset, tmp_path, At("on_substep_end", stop), **options)
    _, after = trained(dataset, tmp_path, load=tmp_path / "checkpoint-2", **options)
    assert len(after[0]) == NUM_SAMPLES - 8 * 4  # what no step was made of is trained on


@pytest.mark.parametrize("damage", ["empty", "half", "list", "no loader", "half a state", "no state"])
def test_a_damaged_record_is_refused_by_its_name(dataset: Path, tmp_path: Path, damage: str) -> None:
    trained(dataset, tmp_path, stop_at=3)
    file = tmp_path / "checkpoint-3" / LOADER_FILE
    text = file.read_text()
    record = json.loads(text)
    damaged = {
        "empty": "",
        "half": text[: len(text) // 2],
        "list": "[]",
        "no loader": json.dumps({key: value for key, value in record.items() if key != "loader"}),
        "half a state": json.dumps({**record, "loader": {"all_ranks": record["loader"]["all_ranks"][:100]}}),
        "no state": json.dumps({**record, "loader": None}),
    }
    file.write_text(damaged[damage])
    with pytest.raises(RemoteDataError, match=LOADER_FILE):
        trained(dataset, tmp_path, load=tmp_path / "checkpoint-3")


@pytest.mark.parametrize("missing", [LOADER_FILE, "trainer_state.json"])
def test_the_error_of_an_incomplete_checkpoint_names_the_newest_complete_one(
    dataset: Path, tmp_path: Path, missing: str
) -> None:
    trained(dataset, tmp_path, stop_at=15, save_strategy="steps", save_steps=5)
    (tmp_path / "checkpoint-15" / missing).unlink()
    with pytest.raises(RemoteDataError, match=f"checkpoint-15/{missing}: .* interrupted.*checkpoint-10'"):
        trained(dataset, tmp_path, load=tmp_path / "checkpoint-15")


@pytest.mark.parametrize("base", [Trainer, ChainTrainer])
def test_resuming_with_a_users_own_loader_is_refused(dataset: Path, tmp_path: Path, base: Any) -> None:
    """Trainer does not store its position: the mixin warns before the first checkpoint."""

    class OwnLoader(base):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(tdr.stateful_loader(pipe_of(dataset), batch_size=4))

    options: dict[str, Any] = {"kind": OwnLoader, "train_dataset": [], "save_strategy": "steps", "save_steps": 3}
    with pytest.warns(RuntimeWarning, match="cannot be resumed") if base is ChainTrainer else nullcontext():
        trained(dataset, tmp_path, stop_at=3, **options)
    with pytest.raises(StateError, match=r"RemoteTrainerMixin.* train_dataset=pipe|train_dataset=pipe .*Remote"):
        trained(dataset, tmp_path, load=tmp_path / "checkpoint-3", **options)


def test_epochs_are_counted_by_the_loader_where_trainer_counts_steps(dataset: Path, tmp_path: Path) -> None:
    """5 batches of 4 leave 100 samples: 17 batches of 6, where an epoch has 20."""
    epochs: list[float] = []
    trained(dataset, tmp_path, stop_at=5, num_train_epochs=3)
    trainer, after = trained(
        dataset, tmp_path, At("on_step_begin", lambda state, _: epochs.append(state.epoch)), num_train_epochs=3,
        load=tmp_path / "checkpoint-5", per_device_train_batch_size=6,
    )  # fmt: skip
    assert [len(epoch) for epoch in after] == [100, 120, 120]
    assert epochs == pytest.approx([5 / 30, *(n / 20 for n in range(4, 60))])
    assert trainer.state.epoch == 3
    assert trainer.state.global_step == trainer.state.max_steps == 5 + 17 + 40


def test_each_training_on_one_resumable_starts_at_its_position(dataset: Path, tmp_path: Path) -> None:
    """A chain that tells no length, so that the loader counts the epochs."""
    pipe = tdr.stream_shards(f"{dataset}/shards/").map(of_sample)
    trainer, first = trained(
        dataset, tmp_path, train_dataset=tdr.Resumable(pipe, num_streams=NUM_STREAMS), max_steps=10
    )
    trainer.model.epochs = []
    trainer.train()
    assert trainer.model.epochs == first


def test_auto_find_batch_size_trains_the_same_number_of_epochs(dataset: Path, tmp_path: Path) -> None:
    """The steps to the end were counted with the batches that did not fit."""

    class Small(ChainTrainer):
        def training_step(self, *args: Any, **options: Any) -> Any:
            if self._train_batch_size > 3:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(*args, **options)

    options: dict[str, Any] = {"num_train_epochs": 2}
    _, before = trained(dataset, tmp_path, stop_at=5, **options)
    options |= {"auto_find_batch_size": True, "gradient_accumulation_steps": 3}
    _, after = trained(dataset, tmp_path, kind=Small, load=tmp_path / "checkpoint-5", **options)
    assert sorted(before[0] + after[-2]) == sorted(after[-1]) == list(range(NUM_SAMPLES))


class Threads(ChainTrainer):
    """Its batches are made by threads."""

    num_threads = 2


def test_threads_take_the_place_of_workers(dataset: Path, tmp_path: Path) -> None:
    """A checkpoint that they have saved is resumed by workers, and by them again."""
    trainer, before = trained(dataset, tmp_path, kind=Threads, stop_at=5)
    assert isinstance(trainer.accelerator._dataloaders[0], tdr.ThreadLoader)
    for kind in (Threads, ChainTrainer):
        _, after = trained(dataset, tmp_path, kind=kind, load=tmp_path / "checkpoint-5")
        assert sorted(before[0] + after[0]) == list(range(NUM_SAMPLES))
    with pytest.raises(StateError, match="num_threads=2 and dataloader_num_workers=1"):
        trained(dataset, tmp_path, kind=Threads, workers=1)


def test_a_users_own_way_to_save_checkpoints_is_warned_of(dataset: Path, tmp_path: Path) -> None:
    class OwnSave(ChainTrainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            self.save_model(str(tmp_path / f"checkpoint-{self.state.global_step}"))

    with pytest.warns(RuntimeWarning, match=r"checkpoint-3 .* call self\._save_rng_state\(folder\)"):
        trained(dataset, tmp_path, kind=OwnSave, stop_at=3)


def test_an_epoch_without_a_whole_batch_is_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyShareError, match=r"120 samples .* batch of 200 .*dataloader_drop_last=False"):
        trained(dataset, tmp_path, dataloader_drop_last=True, per_device_train_batch_size=200)


def test_a_mixin_after_trainer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"class Wrong\(RemoteTrainerMixin, Trainer\)"):

        class Wrong(Trainer, RemoteTrainerMixin):  # type: ignore[misc]
            pass


def test_a_plain_trainer_warns_where_it_repeats_samples(dataset: Path, tmp_path: Path) -> None:
    """One process, second epoch: the chain begins with its first order, of which Trainer skips the first batches."""
    _, before = trained(dataset, tmp_path, kind=Trainer, num_train_epochs=2, stop_at=34)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _, after = trained(dataset, tmp_path, kind=Trainer, num_train_epochs=2, load=tmp_path / "checkpoint-34")
    repeats = sorted(before[1] + after[0]) != list(range(NUM_SAMPLES))
    assert not repeats or any("repeat" in str(warning.message) for warning in warned)
