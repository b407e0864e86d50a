"""One rank of Lightning: trainings that are stopped at the edges of an epoch, and resumed."""

from __future__ import annotations

import contextlib
import logging
import pickle
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from .data import loader_of, pipe_of
from .launch import attempt
from .lightning_program import model_of, pipe_without_length, stateful

BATCH = 8  # 15 batches an epoch


def main(*, folder: str) -> None:
    """Report for each case the batches of a whole training, epoch after epoch, and of one that was stopped."""
    import lightning.pytorch as pl
    from lightning.pytorch.utilities import CombinedLoader

    warnings.filterwarnings("ignore", category=UserWarning)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data, model_type = Path(folder), model_of(pl)
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)

    class Failing(model_type):  # type: ignore[misc, valid-type]
        """Fails in a step, before the batch is trained on."""

        def __init__(self, at: int) -> None:
            super().__init__()
            self.at = at

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if len(self.steps) == self.at:
                raise RuntimeError("as wanted")
            return super().training_step(batch, batch_idx)

    def fit(loader: Any, *, model: Any = None, path: Any = None, callbacks: Any = None, **given: Any) -> Any:
        model = model_type() if model is None else model
        with contextlib.suppress(RuntimeError):
            pl.Trainer(
                accelerator="cpu", devices=1, limit_val_batches=0, enable_checkpointing=bool(callbacks),
                callbacks=callbacks, **{"max_epochs": 3, **quiet, **given},
            ).fit(model, loader, ckpt_path=path)  # fmt: skip
        return model.seen

    def make(kind: str, batch_size: int = BATCH) -> Any:
        if kind == "PrefetchingLoader":
            return loader_of(kind, data, batch_size=batch_size, num_workers=0)
        return stateful((pipe_without_length if kind == "no length" else pipe_of)(data), 0, batch_size)

    def flat(seen: Any) -> list[Any]:
        return [[epoch, batch] for epoch, batches in sorted(seen.items()) for batch in batches]

    def resume(kind: str, at: int, batch_size: int, more: dict[str, Any], every: dict[str, Any], loaders: Any) -> Any:
        with tempfile.TemporaryDirectory() as saved:
            checkpoint = pl.callbacks.ModelCheckpoint(saved, "{step}", save_top_k=-1, **every)
            whole = flat(fit(loaders(kind), callbacks=[checkpoint], **more))
            rest = flat(fit(loaders(kind, batch_size), path=f"{saved}/step={at}.ckpt", **more))
        return {"whole": whole, "stopped": whole[:at] + rest}

    def exception(kind: str, at: int) -> Any:
        with tempfile.TemporaryDirectory() as saved:
            first = flat(
                fit(make(kind), model=Failing(at), callbacks=[pl.callbacks.OnExceptionCheckpoint(saved, "failed")])
            )
            rest = flat(fit(make(kind), path=f"{saved}/failed.ckpt"))
        return {"whole": flat(fit(make(kind))), "stopped": first + rest}

    def two(kind: str, batch_size: int = BATCH) -> Any:
        return {"long": make(kind, batch_size), "short": make(kind, 2 * batch_size)}

    def first_ended(kind: str, batch_size: int = BATCH) -> Any:
        return CombinedLoader(two(kind, batch_size), "max_size")

    def one_batch() -> Any:
        loader, alone = make("no length", 120), make("no length", 120)
        trained = [flat(fit(loader, max_epochs=1))[0][1] for _ in range(3)]
        return {"trained": trained, "alone": [batch["number"].tolist() for _ in range(3) for batch in alone]}

    def pickled() -> list[int]:
        loader = pickle.loads(pickle.dumps(make("length")))  # as ddp_spawn does
        return [int(number) for batch in loader for number in batch["number"]]

    step = {"every_n_train_steps": 1}
    for kind in ("length", "no length", "PrefetchingLoader"):
        for at in (1, 15, 30):
            for size in (4, BATCH, 12):
                attempt(f"{kind}, {at}, {size}", partial(resume, kind, at, size, {}, step, make))
    for kind in ("length", "no length"):
        steps = {"max_steps": 40, "max_epochs": None}
        attempt(f"{kind}, max_steps", partial(resume, kind, 15, BATCH, steps, {}, make))
        attempt(f"{kind}, two loaders", partial(resume, kind, 10, BATCH, {}, step, two))
        attempt(f"{kind}, two loaders, other size", partial(resume, kind, 5, 12, {}, step, two))
        for at in (8, 9):
            attempt(f"{kind}, first has ended, {at}", partial(resume, kind, at, BATCH, {}, step, first_ended))
        for at in (5, 14):
            attempt(f"{kind}, exception, {at}", partial(exception, kind, at))
    attempt("one batch", one_batch)
    attempt("pickled", pickled)
