"""Trainer: the training loop, with correct accumulation, short batches, skipped updates and resume."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from fastdata.errors import FastDataError, warn_user
from fastdata.optim import Curve, is_whole, need
from fastdata.train.checkpoint import Checkpoints, apply_options, load_states, options_of, random_state, restore_random, states
from fastdata.train.checks import CudnnBenchmark, GraphCheck, not_finite
from fastdata.train.contexts import WARMUP, Interrupted, noted_signals, profiled
from fastdata.train.epoch import Epoch, check_rank, first_tensor
from fastdata.train.evaluate import evaluate, predict, sort_metrics
from fastdata.train.log import RECORDED, Log, Means, ProgressDisplay, RunTotals
from fastdata.train.schedule import Schedule, SchedulerLike
from fastdata.train.step import Step
from fastdata.train.world import PRECISIONS, Compute, World, build_optimizer, device_for, lay_out

CALLBACKS = ("step", "epoch", "eval", "save", "log")
FORMAT = 4  # of a state
COUNTERS = ("update", "epoch", "epoch_open", "validated")
MAX_SKIPPED = 50  # updates in a row; fp16 may need about twenty to find its scale
STOP = 1  # why a run ends: a callback asked for it; or the number of a signal
TERMINATED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class Trainer:
    """Trains a model on batches from any iterable.

    ``loss_fn(model, batch)`` returns one loss per sample or token: float [B] or [B, T], as torch's losses do with
    ``reduction="none"``. If some of them do not count, it returns ``(losses, mask)``, with a bool mask of the same shape such as
    ``targets != -100``. For everything else, such as weighted losses, it returns ``(loss_sum, count)``: a tensor [] and the number
    of losses in it, or the sum of their weights. A single number is refused, because means of batches cannot be combined.

    The gradient of an update is that of sum / number, over the losses that count, in all its micro-batches on all ranks.
    So `accumulate`, short batches and any number of ranks give what one big batch gives, except through layers that look at a whole
    batch, such as BatchNorm. An update whose gradient is not finite is skipped; fifty in a row, or all of a run, are an error.

    Under `torchrun`, each process is a rank. With a `dir`, a new Trainer continues from the newest checkpoint there. SIGTERM and
    Ctrl-C save a checkpoint and end the process with exit codes 75 and 130. If options differ from the saved ones, the new values
    are used and a warning names both. Only a scheduler of torch keeps its saved arguments, rates and momenta.

    Args:
        model: trained in place; the Trainer keeps any wrapper to itself.
        optimizer: an optimizer of the model's parameters, or a function that makes one from them, such as
            ``partial(AdamW, lr=1e-3)``. On a GPU, the Trainer asks such a function for the fused version, if it has one.
        device: where the model and batches go; "cuda" is this rank's GPU. None: that GPU, if there is one and the whole model is
            on the CPU; otherwise the device of the model's first weight.
        precision: "fp32", "bf16" or "fp16". The last two use autocast; fp16 also uses a GradScaler.
        tf32: whether float32 products may use TF32, or None to leave torch's setting.
        accumulate: micro-batches per update. The last update of an epoch takes what is left.
        clip_norm: limit of the norm of the gradient, above 0, applied before each update.
        scheduler: a function of the update's index, such as ``cosine(warmup=500)`` of `fastdata.optim`, which gets the number of
            updates from `fit`; or one of torch.optim.lr_scheduler. OneCycleLR, CyclicLR and schedulers that contain them step after
            each update; ReduceLROnPlateau after each evaluation, with the loss; all others after each epoch. Or give a pair:
            (scheduler, "update"), (scheduler, "epoch"), or (ReduceLROnPlateau, name of a metric).
        compile: True, or a mode of torch.compile. The model is compiled in place.
        channels_last: use this layout for 4-D tensors of batches and, without `parallelize`, for 4-D weights.
        cudnn_benchmark: let cuDNN time its algorithms. This is switched off after six input shapes.
        recompute: classes of the model's modules that keep no activations and run again in the backward pass.
        ema: decay of an average of the weights. Evaluations then use the average.
        parallelize: a function, such as one that calls `fully_shard`, that distributes the model over the ranks, in place of
            DistributedDataParallel, and returns it.
        metrics: {name: metric} for `evaluate`. A metric is a function(outputs, batch), where outputs are what the model returned to
            `loss_fn`; it returns (sum, count), one value per row or token as a tensor, or the mean over the batch's rows as a
            float. Or it is an object with update, compute and reset, as in torchmetrics, which is updated with (outputs,
            batch[1]). In a pair (object, f), the object is updated with what f(outputs, batch) returns.
        dir: folder for checkpoints, the log, and TensorBoard's files if tensorboard is installed, or None to write no files.
        resume: True: continue from the newest checkpoint of `dir`, if there is one. "require": raise an error if there is none.
            False: start anew, even after SIGTERM; files of an earlier run move to ``dir/earlier-1``, -2, and so on.
        save_every, keep_last: updates between checkpoints, besides one at the end of each epoch; number of checkpoints to keep.
        log_every: updates between lines of the log. Between lines, with a fused optimizer, the host does not wait for the device.
        profile: number of updates to run under torch.profiler, after three others; then `fit` ends. The trace goes into `dir`, or
            the current folder. Such a run does not resume and writes neither checkpoints nor a log.
        callbacks: {"step": f(trainer), "epoch": f(trainer, record), "eval": f(trainer, results), "save": f(trainer, path), "log":
            f(trainer, record)}. A step, epoch or eval callback that returns True ends the run. "log" gets each record of the log
            on rank 0, with or without a `dir`, to pass it to another logger.

    Attributes:
        update, epoch: updates tried so far, including skipped ones, and epochs finished.
        results: results of the last evaluation, which ran after update `validated`.
        stopping: whether a callback has asked to end the run.
        epoch_open: whether all batches of the last epoch are used, but `end_epoch` has not run.
        ema: its `.model` holds the averages. None without the argument `ema`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor | tuple[Tensor, Any]],
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        tf32: bool | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        scheduler: SchedulerLike = None,
        compile: bool | str = False,
        channels_last: bool = False,
        cudnn_benchmark: bool = True,
        recompute: Iterable[type[nn.Module]] = (),
        ema: float | None = None,
        parallelize: Callable[[nn.Module], nn.Module] | None = None,
        metrics: Mapping[str, Any] | None = None,
        dir: str | Path | None = None,
        resume: bool | Literal["require"] = True,
        save_every: int | None = None,
        keep_last: int = 3,
        log_every: int = 50,
        profile: int | None = None,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        _check_counts(accumulate=accumulate, log_every=log_every, save_every=save_every, keep_last=keep_last, profile=profile)
        need(precision in PRECISIONS, "precision", precision, f"one of {', '.join(PRECISIONS)}")
        need(clip_norm is None or 0 < clip_norm < math.inf, "clip_norm", clip_norm, "above 0, or None")
        may_resume = resume in (True, False) or (resume == "require" and dir is not None)
        need(may_resume, "resume", resume, "True, False, or, with a dir, 'require'")
        self._callbacks = dict(callbacks or {})
        need(self._callbacks.keys() <= set(CALLBACKS), "callbacks", [*self._callbacks], f"among {', '.join(CALLBACKS)}")
        need(not set(metrics or {}) & set(RECORDED), "metrics", [*(metrics or {})], f"names other than {', '.join(RECORDED)}")
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        target = device_for(device, model)
        self.world = World.join(target or next(model.parameters()).device)
        self.model, wrapped, self.ema = lay_out(
            model, target, self.world, channels_last=channels_last, compile=compile, ema=ema, recompute=recompute, wrap=parallelize
        )
        self.device = target or next(self.model.parameters()).device
        self.optimizer = build_optimizer(optimizer, self.model, self.device)
        self._options = options_of(self.optimizer, precision=precision, accumulate=accumulate, clip_norm=clip_norm, ema=ema)
        self._options["scheduler"] = repr(scheduler) if isinstance(scheduler, Curve) else None
        self.schedule = Schedule(scheduler, self.optimizer)
        self.accumulate = accumulate
        self.dir = None if dir is None else Path(dir)
        self.update = 0
        self.epoch = 0
        self.results = dict[str, float]()
        self.epoch_open = False
        self.validated = -1
        self.stopping = False
        self._main = self.world.rank == 0
        self._save_every = save_every
        self._log_every = log_every
        self._profile = profile
        self._profiler: torch.profiler.profile | None = None
        self._loss_fn = record_function("loss_fn")(loss_fn) if profile else loss_fn
        self._metrics = sort_metrics(metrics or {})
        self._taken = (*RECORDED, *(metrics or {}))
        self._compute = Compute(self.world, self.device, PRECISIONS[precision], channels_last)
        self._graphs = GraphCheck()
        self._step = Step(wrapped, self._loss, self.optimizer, self._compute, clip_norm=clip_norm, ema=self.ema)
        self._cudnn = CudnnBenchmark() if cudnn_benchmark and self.device.type == "cuda" else None
        folder = None if profile else self.dir  # a profile is no run to resume
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", self.world, keep_last=keep_last)
        self._log = Log(folder if self._main else None)
        self._progress = ProgressDisplay(shown=self._main)
        self._counts = RunTotals()
        self._line_mark = self._epoch_mark = self._counts.mark()
        self._means = Means()
        self._muted = False  # the batch only fills up what other ranks have
        self._pass: Epoch | None = None
        self._resumed: Mapping[str, Any] | None = None  # the place in the epoch that a loaded state gives
        self._random: dict[str, Any] | None = None  # the generators' state that it gives
        self._resume(resume)
        self._saved = self._counters()

    def fit(
        self,
        train: Iterable[Any],
        val: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        eval_every: int | None = None,
    ) -> dict[str, float]:
        """Train until `epochs` or `max_steps` is reached. Epochs and updates before a resume count, too.

        Args:
            train: an iterable of batches, equally many on every rank, such as fastdata's Loader.
            val: an iterable of batches to evaluate after each epoch, or after every `eval_every` updates, and at the end.
            epochs, max_steps: numbers of epochs and updates, at least 1. The limit that is reached first ends the run.
            eval_every: updates between evaluations.

        Returns the results of the last evaluation. With `profile`, `fit` ends after the profiled updates, and evaluates nothing.
        """
        _check_counts(epochs=epochs, max_steps=max_steps, eval_every=eval_every)
        if epochs is None and max_steps is None:
            raise ValueError("fit needs epochs or max_steps, or it would never end")
        last_epoch, last_update = epochs or math.inf, max_steps or math.inf
        self._ending = 0
        self.schedule.begin(self._count_updates(train, last_epoch, last_update), evaluated=val is not None)
        if self._profile is not None:
            last_epoch, last_update, val = math.inf, self.update + WARMUP + self._profile, None
        self._restore_random()

        def is_unfinished() -> bool:
            return self.epoch_open or (self.epoch < last_epoch and self.update < last_update)

        if self._main and self.update and not is_unfinished():
            finished = f"the run is finished (epochs: {self.epoch}, updates: {self.update})"
            warn_user(f"nothing was trained: {finished}. Raise epochs or max_steps, or pass resume=False or another dir")
        with (
            noted_signals(active=self._checkpoints is not None) as received,  # otherwise a signal ends the process at once
            profiled(self._profile if self._main else None, self.dir or Path(), self._progress.write_line) as self._profiler,
        ):
            try:
                while not self._ending and is_unfinished():
                    for update in self.steps(train) if not self.epoch_open else ():
                        if eval_every and update % eval_every == 0:
                            self.validate(val)
                        self._decide(received)
                        if self._save_every and update % self._save_every == 0 and not self._ending:
                            self.save()
                        if self._ending or update >= last_update:
                            break
                    if self.epoch_open and self._ending <= STOP:
                        if eval_every is None:
                            self.validate(val)
                        self.end_epoch()
                        self._decide(received)
                        self.save()
                self._flush(over=True)
                if self._ending <= STOP:
                    self.validate(val)
                self.save()
            finally:
                self.close()
            self._decide(received)  # a signal may have come after the last update
        if self._ending > STOP:
            self._exit()
        return self.results

    def steps(self, train: Iterable[Any]) -> Iterator[int]:
        """Train one epoch, or the rest of an interrupted one; after each update, yield the number of updates."""
        epoch = self._begin_epoch(train)
        batches = iter(epoch)
        added = 0
        final = False
        while not final:
            started = time.perf_counter()
            batch, final = next(batches, (None, True))
            self._counts["wait_s"] += time.perf_counter() - started
            if batch is not None:
                added += 1
                self._add(batch, last=final or added == self.accumulate or epoch.total is None)
            if complete := added == self.accumulate or bool(final and added):
                self._step.update()
                added = 0
            if final:
                next(batches, None)  # end the loader's own epoch
                self.epoch += 1
                self.epoch_open = True
            if complete:
                self.update += 1
                self._progress.bar.update()
                self._graphs.updated()
                if self.update % self._log_every == 0:
                    self._flush()
                self.schedule.updated(self.update - 1)
                if self._profiler is not None:
                    self._profiler.step()
                self._call("step")
                yield self.update

    def _begin_epoch(self, train: Any) -> Epoch:
        self._restore_random()
        check_rank(train, self.world)
        self._pass = epoch = Epoch(train, self.epoch, self._position_in(train), self.world)
        self._resumed = None
        total = None if epoch.total is None else math.ceil(epoch.total / self.accumulate)
        self._progress.begin(self.epoch + 1, epoch.used // self.accumulate, total)
        self._line_mark = self._epoch_mark = self._counts.mark()
        if not self.model.training:  # otherwise keep modules that the user has frozen in eval mode
            self._step.model.train()
        self._step.begin()
        return epoch

    def _position_in(self, train: Any) -> Mapping[str, Any] | None:
        """Return where to continue in an epoch: where the last pass over this loader was left, or where a state was taken."""
        if self._pass is not None and self._pass.loader is train and not self._pass.over:
            return self._pass.state()
        return self._resumed

    def _restore_random(self) -> None:
        if self._random is not None:
            restore_random(self._random)
        self._random = None

    def _add(self, batch: Any, *, last: bool) -> None:
        batch, valid = self._compute.to_device(batch)
        tensor = first_tensor(batch)
        if tensor is not None and tensor.dim():
            if self._cudnn is not None:
                self._cudnn.record_shape(tensor)
            self._counts["rows"] += (len(tensor) if valid is None else valid) * self.world.size
        self._step.add(batch, valid=valid, last=last)

    def _loss(self, model: Any, batch: Any) -> Any:
        self._muted = getattr(batch, "valid", None) == 0
        result = self._loss_fn(model, batch)
        self._muted = False
        if self._main:
            self._graphs.check(result)
        return result

    def _count_updates(self, train: Any, last_epoch: float, last_update: float) -> float:
        """Return the number of updates of the whole run, including those before a resume; math.inf if it is not known."""
        with suppress(TypeError):  # a DataLoader may have a len() that raises
            batches = len(train)
            place = self._position_in(train)
            first = math.ceil((batches - (int(place["used"]) if place else 0)) / self.accumulate)  # rest of the current epoch
            left = (last_epoch - self.epoch - 1) * math.ceil(batches / self.accumulate) + first
            return min(last_update, self.update + max(left, 0))
        return last_update

    def _decide(self, received: list[int]) -> None:
        """Decide whether the run ends here, for all ranks, since a signal or a callback may have reached only one."""
        self._ending = self.world.largest(max([self._ending, STOP * self.stopping, *received]))

    def _exit(self) -> None:
        """End the process after a signal, once everything is saved."""
        cause = "interrupted" if self._ending == signal.SIGINT else "SIGTERM"
        self._progress.write_line(f"{cause}: saved at update {self.update} in {self.dir}; the same command continues from there.")
        self.world.leave()
        if self._ending == signal.SIGTERM:
            raise SystemExit(TERMINATED)
        raise KeyboardInterrupt if hasattr(sys, "ps1") else Interrupted  # an interactive session does not end

    @property
    def loss(self) -> Tensor | None:
        """The mean loss of the last update over this rank's samples, float [] on the device. None before the first update."""
        return self._step.loss()

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Return the mean loss and metrics over a set, on every rank. Each sample counts once. Uses `ema` weights if set."""
        before, self._means = self._means, Means()
        try:
            model = self.ema.model if self.ema else self.model
            return evaluate(model, loader, self._loss, self._metrics, self._compute, self._means)
        finally:
            self._means = before

    def predict(self, loader: Iterable[Any], forward: Callable[[Any, Any], Tensor] | None = None) -> Tensor:
        """Return the model's outputs, float [samples, ...] on the CPU, in the order of the set, on every rank.

        Args:
            forward: ``forward(model, batch)``. Default: ``model(batch)``, or ``model(batch[0])`` if the batch is a tuple or list.
        """
        call = forward or (lambda model, batch: model(batch[0] if isinstance(batch, tuple | list) else batch))
        return predict(self.ema.model if self.ema else self.model, loader, call, self._compute)

    def validate(self, val: Iterable[Any] | None) -> dict[str, float]:
        """Evaluate, unless that was done since the last update, and pass the results to the schedule, the log and the callback."""
        if val is None or self.validated == self.update:
            return self.results
        self._flush()
        started = time.perf_counter()
        self.results = self.evaluate(val)
        self._counts["seconds"] -= time.perf_counter() - started
        self.validated = self.update
        self.schedule.evaluated(self.results)
        self._call("eval", self.results)
        self._write("eval", {**self.results, **({"ema": True} if self.ema else {})})
        return self.results

    def end_epoch(self) -> None:
        """End an epoch, after its last update and evaluation: step the schedule, print a line and call the epoch callback."""
        self._flush()
        self.schedule.epoch_ended()
        self.epoch_open = False
        record = self._counts.since(self._epoch_mark)
        results = self.results if self.validated == self.update else {}
        self._progress.end_epoch(self.epoch, record, results)
        record |= {f"eval_{name}": value for name, value in results.items()}
        self._call("epoch", record)
        self._write("epoch", record)

    def _flush(self, *, over: bool = False) -> None:
        """Write a line about the updates since the last line. All ranks call this together; the host waits here."""
        totals, rate = self._step.read_totals(), self.schedule.rates()[0]
        skipped = self._step.skipped_in_a_row
        if skipped >= MAX_SKIPPED or (over and 0 < skipped == self.update):
            raise not_finite(skipped, self.model, self._step.loss(), rate=rate, scaled=self._step.scaler.is_enabled())
        if not totals["updates"]:
            return
        for name, value in totals.items():
            self._counts[name] += value
        record = {**self._counts.since(self._line_mark), "lr": rate}
        self._line_mark = self._counts.mark()
        self._progress.show(self._write("train", record))

    def _write(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write a record with the means of the values logged since the last one, and call the log callback."""
        record = {"kind": kind, "update": self.update, "epoch": self.epoch, **values, **self._means.read(self.world)}
        self._log.write(record)
        if self._main:
            self._call("log", record)
        return record

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number, such as a second loss: in `loss_fn`, in a callback, or in a loop over `steps`.

        The next record has the mean, over all ranks, of what was logged under this name since the last record. What is logged
        during an evaluation is one of its results. The host waits for a tensor only when the record is written.
        """
        need(name not in self._taken, "a name in the log", name, f"other than {', '.join(self._taken)}")
        if not self._muted:
            self._means.add(name, value)

    def _call(self, event: str, *arguments: Any) -> None:
        """Call a callback, if it is set. A step, epoch or eval callback may end the run."""
        if event in self._callbacks and self._callbacks[event](self, *arguments) is True and event in ("step", "epoch", "eval"):
            self.stopping = True

    def _counters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COUNTERS}

    def save(self) -> None:
        """Write a checkpoint in the background, if `dir` is set and something is new. All ranks call it together."""
        if self._checkpoints is not None and self._saved != self._counters():
            started = time.perf_counter()
            self._finish_save()
            self._checkpoints.save(self.update, self.state_dict())
            self._counts["seconds"] -= time.perf_counter() - started
            self._saved = self._counters()

    def _finish_save(self) -> None:
        if self._checkpoints is not None and (path := self._checkpoints.wait()):
            self._call("save", path)

    def _resume(self, resume: bool | str) -> None:
        """Continue from the newest checkpoint of `dir`, if there is one; with False, move the files of an earlier run away."""
        if self._checkpoints is None:
            return
        if not resume:
            if aside := self._checkpoints.set_aside():
                self._progress.write_line(f"resume=False: files of an earlier run were moved from {aside.parent} to {aside}")
            return
        state = self._checkpoints.newest()
        if state is not None:
            self.load_state_dict(state)
            self._progress.write_line(f"resumed after update {self.update}, in epoch {self.epoch + 1}.")
        elif resume == "require":
            raise FastDataError(f"resume is 'require', but {self.dir} has no checkpoint: pass the right dir, or leave resume out")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the run continues: tensors, numbers and text. All ranks call it together."""
        model, optimizer = states(self.model, self.optimizer)
        place = self._pass.state() if self._pass else self._resumed
        return {
            "format": FORMAT,
            "options": self._options,
            "model": model,
            "optimizer": optimizer,
            "ema": None if self.ema is None else states(self.ema.model)[0],
            "scaler": self._step.scaler.state_dict(),
            "schedule": self.schedule.state_dict(),
            **self._counters(),
            "results": self.results,
            "ranks": self.world.gather({"random": self._random or random_state(), "place": place}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken. With another number of ranks, dropout and the like draw other numbers from here on."""
        try:
            if state["format"] != FORMAT:
                raise ValueError(f"its format is {state['format']}, expected {FORMAT}")
            new, old = self._options["optimizer"], state["options"]["optimizer"]
            if new != old and {new, old} != {"Adam", "AdamW"}:  # these two keep the same state per weight
                raise ValueError(f"optimizer {old} was saved, not {new}")
            load_states((state["model"], state["optimizer"]), self.model, self.optimizer)
            if self.ema is not None:
                load_states((state["model"] if state["ema"] is None else state["ema"],), self.ema.model)
            self._step.scaler.load_state_dict(state["scaler"])
            differences = apply_options(self.optimizer, self._options, state["options"], of_torch=self.schedule.of_torch)
            self.schedule.load_state_dict(state["schedule"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise FastDataError(
                f"the checkpoint (dir={self.dir}) is from another model, optimizer, precision, scheduler or fastdata version. To "
                f"continue its run, make the same Trainer; for a new run, pass resume=False, or another dir.\n{error}"
            ) from error
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.results = dict(state["results"])
        ranks = state["ranks"]
        alike = len(ranks) == self.world.size
        self._random = ranks[self.world.rank]["random"] if alike else None
        self._resumed = place = ranks[self.world.rank if alike else 0]["place"]
        self._pass = None
        self._saved = self._counters()
        if differences and self._main:
            warn_user(f"resumed after update {self.update}, in epoch {self.epoch + 1}. {'; '.join(differences)}")
        if not alike and place and place["used"] and "global_batch_size" not in (place["loader"] or {}):
            warn_user(
                f"the checkpoint was made within an epoch, and world_size was {len(ranks)}, but is now {self.world.size}: this "
                "loader cannot divide the rest of the epoch, so samples will repeat. Use fastdata.Loader with global_batch_size="
            )

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and close the log."""
        self._progress.close()
        self._log.close()
        self._finish_save()


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        need(count is None or is_whole(count, 1), name, count, "a whole number, at least 1, or left out")
