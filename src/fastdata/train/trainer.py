"""Trainer: the training loop, with correct accumulation, short batches, skipped updates and resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastdata.checkpoint.files import Checkpoints
from fastdata.errors import FastDataError
from fastdata.monitor.best import Best
from fastdata.monitor.checks import CudnnBenchmark, GraphCheck
from fastdata.monitor.logged import NOTHING, means
from fastdata.monitor.profiler import StepProfiler
from fastdata.optim.build import build_optimizer
from fastdata.optim.schedule import Schedule, SchedulerLike
from fastdata.parallel.layout import lay_out
from fastdata.parallel.world import World, device_for
from fastdata.train.arguments import check_arguments, check_counts
from fastdata.train.batches import Epoch, check_part, first_tensor, to_device
from fastdata.train.evaluation import Evaluation
from fastdata.train.finite import MOST_SKIPPED, not_finite
from fastdata.train.options import Options
from fastdata.train.records import Records
from fastdata.train.resuming import Resuming
from fastdata.train.run import Run
from fastdata.train.state import capture, counters, restore
from fastdata.train.step import Step

__all__ = ["Trainer"]


class Trainer:
    """Trains a model on batches from any iterable.

    ``loss_fn(model, batch)`` returns one loss per sample or token: float [B] or [B, T], as torch's losses do with
    ``reduction="none"``. If some of them do not count, it returns ``(losses, mask)``, with a bool mask of the same shape such as
    ``targets != -100``. For everything else, such as weighted losses, it returns ``(loss_sum, count)``: a tensor [] and the number
    of losses in it. A single number is refused, because means of batches cannot be combined.

    The gradient of an update is the sum of the losses that count, divided by their number, over all its micro-batches on all ranks.
    So `accumulate`, short batches and any number of ranks give what one big batch gives, except through layers that look at a whole
    batch, such as BatchNorm. An update whose gradient is not finite is skipped. Fifty skipped in a row, or nothing but skipped
    updates in a run, raise an error.

    Under `torchrun`, each process is a rank. With a `dir`, `fit` resumes from the newest checkpoint there and says so. SIGTERM and
    Ctrl-C save a checkpoint and end the process with exit codes 75 and 130; the latter is also a KeyboardInterrupt. If options
    differ from the saved ones, the new values are used and a warning names both. Only a scheduler of torch keeps its saved
    arguments, rates and momenta.

    Args:
        model: stays yours: the Trainer keeps any wrapper to itself.
        optimizer: an optimizer of the model's parameters, or a function that makes one from them, such as
            ``partial(AdamW, lr=1e-3)``. The Trainer asks such a function for the fused version on a GPU, where there is one.
        device: where the model and batches go; "cuda" is this rank's GPU. None: that GPU, if there is one and the whole model is
            on the CPU; otherwise the model stays, and batches go to the device of its first weight.
        precision: "fp32", "bf16" or "fp16". The last two use autocast; fp16 also a GradScaler.
        accumulate: micro-batches per update. The last update of an epoch takes what is left.
        clip_norm: limit of the norm of the gradient, above 0, applied before each update.
        scheduler: a function of the update's index, or any of torch.optim.lr_scheduler. The functions of `fastdata.optim`, such as
            ``cosine(warmup=500)``, get the number of updates from `fit`.
        channels_last: memory layout of 4-D batches and, without `parallelize`, of 4-D weights.
        compile: True, or a mode of torch.compile. The model is compiled in place.
        ema: decay of an average of the weights. Evaluations then use the average.
        dir: folder for checkpoints and the log. None: write no files and do not resume.
        resume: True: continue from the newest checkpoint of `dir`, if there is one. "require": raise an error if there is none.
            False: start a new run, also after SIGTERM; files of an earlier run move to ``dir/earlier-1``, -2, and so on.
        eval_loss_fn: replaces `loss_fn` in evaluations; returns the same kinds of values.
        metrics: {name: metric} for `evaluate`. A metric is a function(outputs, batch), where outputs are what the model returned to
            `loss_fn`; it returns (sum, count), a tensor with one value per row or token, or a float, the mean over the batch's
            rows. Or it is an object with update, compute and reset, such as torchmetrics', which is updated with (outputs,
            batch[1]). A pair (object, function(outputs, batch)) updates it with what the function returns instead.
        best: "top1:max" or "loss:min": also keep the checkpoint with the best value, as best.pt.
        profile: number of updates to run under torch.profiler, after three warm-up updates; then `fit` ends. The trace goes into
            `dir`. Such a run does not resume and writes neither checkpoints nor a log.
        hooks: {"step": f(trainer), "epoch": f(trainer, record), "eval": f(trainer, results), "save": f(trainer, path), "log":
            f(trainer, record)}. A step, epoch or eval hook that returns True ends the run. "log" gets each record of the log on
            rank 0, with or without a `dir`, to pass it to another logger.
        recompute: classes of the model's modules that keep no activations and run again in the backward pass.
        parallelize: a function, such as one that calls `fully_shard`, that lays the model over the ranks instead of
            DistributedDataParallel, and returns it.
        tf32: whether float32 products may be rounded to TF32. None: leave torch's setting.
        cudnn_benchmark: let cuDNN time its algorithms. It is switched off after three input shapes.
        save_every, keep_last: updates between checkpoints, besides one at the end of each epoch; number of checkpoints to keep.
        log_every: updates between lines of the log. Between two lines the host does not wait for the device.
        tensorboard: write TensorBoard's files into `dir` too.
        progress: draw a progress line, and print one line per epoch.

    Attributes:
        update, epoch: updates tried so far, including skipped ones, and epochs finished.
        results: results of the last evaluation, which ran after update `validated`. `best.value` is the best of its metric.
        stopping: a hook has asked to end the run.
        epoch_open: all batches of the last epoch are used, but `end_epoch` has not run.
        ema: its `.model` holds the averages. None without `ema`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor | tuple[Tensor, Any]],
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        scheduler: SchedulerLike = None,
        channels_last: bool = False,
        compile: bool | str = False,
        ema: float | None = None,
        dir: str | Path | None = None,
        resume: bool | Literal["require"] = True,
        eval_loss_fn: Callable[[Any, Any], Tensor | tuple[Tensor, Any]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        best: str | None = None,
        profile: int | None = None,
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        recompute: Iterable[type[nn.Module]] = (),
        parallelize: Callable[[nn.Module], nn.Module] | None = None,
        tf32: bool | None = None,
        cudnn_benchmark: bool = True,
        save_every: int | None = None,
        keep_last: int = 3,
        log_every: int = 50,
        tensorboard: bool = False,
        progress: bool = True,
    ) -> None:
        check_counts(accumulate=accumulate, log_every=log_every, save_every=save_every, profile=profile)
        check_arguments(clip_norm=clip_norm, resume=resume, dir=dir)
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        target = device_for(device, model)
        self.world = World.join(target)
        self.model, wrapped, self.ema = lay_out(
            model, target, self.world, channels_last=channels_last, compile=compile, ema=ema, recompute=recompute, wrap=parallelize
        )
        self.device = target or next(self.model.parameters()).device
        self.optimizer = build_optimizer(optimizer, self.model, self.device)
        self.schedule = Schedule(scheduler, self.optimizer)
        self._cudnn = CudnnBenchmark() if cudnn_benchmark and self.device.type == "cuda" else None
        self._step = Step(wrapped, loss_fn, self.optimizer, self.world, self.device, self.ema, precision, clip_norm)
        self._evaluation = Evaluation(self._step, eval_loss_fn or loss_fn, metrics or {}, channels_last=channels_last)
        names = ("loss", *(metrics or {}))
        self.best = Best(best, names)
        self.accumulate = accumulate
        self.save_every = save_every
        self._log_every = log_every
        self._channels_last = channels_last
        self.dir = None if dir is None else Path(dir)
        folder = None if profile else self.dir  # a profile is no run to resume
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", self.world, keep_last=keep_last)
        self.records = Records(self, folder, hooks or {}, names, shown=progress, tensorboard=tensorboard)
        self._meter = self.records.meter
        self._logged = self.records.logged
        self.totals = self._step.totals
        self._evaluation.see = self.records.batch_evaluated
        self._graphs = GraphCheck()
        if self.world.rank == 0:
            self._step.see_losses = self._graphs.see
        self._profiler = StepProfiler(profile, self.dir or Path(), rank=self.world.rank) if profile else None
        self.profiling = self._profiler is not None
        if self._profiler:
            self._step.span = self._profiler.span
        self.update = 0
        self.epoch = 0
        self.results = dict[str, float]()
        self.epoch_open = False
        self.validated = -1
        self.stopping = False
        own = {"precision": precision, "accumulate": accumulate, "clip_norm": clip_norm, "ema": ema}
        self._options = Options(self.optimizer, self.schedule, **own)
        self._resuming = Resuming(resume, self._checkpoints, self._options, self.records)
        self._saved: Any = None  # the counters at the last save
        self._pass: Epoch | None = None
        self._resumed: Mapping[str, Any] | None = None  # the place in the epoch that a loaded state gives

    def __repr__(self) -> str:
        parts = f"{type(self.model).__name__}, {type(self.optimizer).__name__}, {self.device}"
        return f"Trainer({parts}, {self.epoch} epochs, {self.update} updates)"

    def steps(self, train: Iterable[Any]) -> Iterator[int]:
        """Train one epoch, or the rest of an interrupted one; yield the number of updates after each update."""
        epoch = self._begin_epoch(train)
        batches = iter(epoch)
        added = 0
        final = False
        while not final:
            with self._meter.waiting(), self._step.span("data"):
                batch, final = next(batches, (None, True))
            if batch is not None:
                self._add(batch, last=final or added == self.accumulate - 1)
                added += 1
            elif added and self.world.size > 1:
                raise FastDataError("the loader ended before its len(): ranks would differ, so an update can't be finished")
            if complete := added == self.accumulate or bool(final and added):
                self._step.update()
                added = 0
            if final:
                next(batches, None)  # end the loader's own epoch
                epoch.over = True
                self.epoch += 1
                self.epoch_open = True
            if complete:
                self._updated()
                yield self.update

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number, such as a second loss: in `loss_fn`, in a step, epoch or eval hook, or in a loop over `steps`.

        The next record, the printed line and TensorBoard's curves show the plain mean, over all ranks, of what was logged under
        this name since the last record. A value logged during an evaluation is one of its results. The host waits for a tensor only
        when the record is written.

        Raises:
            FastDataError: if no run is active.
            TypeError: if the value is not a number.
            ValueError: if the log uses the name itself, or the value is a tensor of several numbers.
        """
        self._logged.add(name, value)

    def _begin_epoch(self, train: Any) -> Epoch:
        self.schedule.check_total()
        self._resuming.start_anew()
        check_part(train, self.world, training=True)
        self._options.see(train)
        self._resuming.report(self.update, self.epoch)
        self._pass = epoch = Epoch(train, self.epoch, self._place(train), self.world)
        self._resumed = None
        total = None if epoch.left is None else math.ceil((epoch.used + epoch.left) / self.accumulate)
        self._meter.begin(self.epoch, epoch.used // self.accumulate, total)
        self._logged.kind = "train"
        if not self.model.training:  # otherwise keep modules that the user has frozen in eval mode
            self._step.model.train()
        self._step.begin()
        return epoch

    @property
    def loss(self) -> Tensor | None:
        """The mean loss of the last update over this rank's samples, float [] on the device. None before the first update."""
        return self._step.loss()

    def _place(self, train: Any) -> Mapping[str, Any] | None:
        """Return where to continue in an epoch: where the last pass over this loader was left, or where a state was taken."""
        if self._pass is not None and self._pass.is_left(train):
            return self._pass.state()
        return self._resumed

    def used(self, train: Any) -> int:
        """Return how many batches of the next epoch are used already, by a pass that was left or before a resume."""
        place = self._place(train)
        return int(place["used"]) if place else 0

    def _add(self, batch: Any, *, last: bool) -> None:
        tensor = first_tensor(batch)
        if tensor is not None and tensor.dim():
            if self._cudnn is not None:
                self._cudnn.see(tensor)
            self._meter.count(getattr(batch, "valid", len(tensor)) * self.world.size)
        with self._step.span("copy"):
            batch, valid = to_device(batch, self.device, channels_last=self._channels_last)
        check = self.update == 0 or (self.update + 1) % self._log_every == 0  # the host waits for the device then anyway
        with self._logged.into(NOTHING) if valid == 0 else nullcontext():
            self._step.add(batch, valid=valid, last=last, check=check)

    def _updated(self) -> None:
        self.update += 1
        self._meter.updated()
        self._graphs.updated()
        if self.update % self._log_every == 0:
            self.records.line()
        self.schedule.updated(self.update - 1)
        if self._profiler and (report := self._profiler.updated()):
            self._meter.tell(report)
            self.stopping = True
        self.records.call("step")

    @property
    def saves(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._checkpoints is not None

    def check_finite(self, *, over: bool = False) -> None:
        """Raise a FastDataError if the last 50 updates were skipped, or, with `over`, if all updates of the run were."""
        skipped = self._step.totals.skipped_in_a_row()
        if skipped >= MOST_SKIPPED or (over and 0 < skipped == self.update):
            raise not_finite(
                skipped, self.model, self._step.loss(), rate=self.schedule.rates()[0], scaled=self._step.scaler.is_enabled()
            )

    def fit(
        self,
        train: Iterable[Any],
        val: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        eval_every: int | None = None,
    ) -> dict[str, float]:
        """Train until `epochs` or `max_steps` is reached, counting those before a resume.

        Args:
            train: an iterable of batches, with as many on every rank, as fastdata's Loader has.
            val: an iterable of batches to evaluate after each epoch, or each `eval_every` updates, and at the end.
            epochs, max_steps: numbers of epochs and updates, at least 1. The limit that is reached first ends the run.
            eval_every: updates between evaluations.

        Returns the results of the last evaluation. With `profile` it ends after the profiled updates.
        """
        return Run(self, train, val, epochs=epochs, max_steps=max_steps, eval_every=eval_every).go()

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Return the mean loss and metrics over a set, on every rank. Each sample counts once. Uses `ema` weights if set."""
        with self._logged.into("eval"):
            results = self._evaluation.run(self.ema.model if self.ema else self.model, loader)
        return {**results, **means(self._logged.read("eval", self.world))}

    def predict(self, loader: Iterable[Any], forward: Callable[[Any, Any], Tensor] | None = None) -> Tensor:
        """Return the model's outputs, float [samples, ...] on the CPU, in the order of the set, on every rank.

        Args:
            forward: ``forward(model, batch)``. None: ``model(batch)``, or ``model(batch[0])`` if the batch is a tuple or list.
        """
        call = forward or (lambda model, batch: model(batch[0] if isinstance(batch, tuple | list) else batch))
        return self._evaluation.predict(self.ema.model if self.ema else self.model, loader, call)

    def validate(self, val: Iterable[Any]) -> dict[str, float]:
        """Evaluate, and pass the results to the schedule, the log, the hook and `best`."""
        with self._meter.paused():
            self.results = self.evaluate(val)
        self.validated = self.update
        self.schedule.evaluated(self.results)
        self.best.see(self.results)
        self.records.evaluated(self.results)
        return self.results

    def end_epoch(self) -> None:
        """End an epoch, after its last update and evaluation: step its schedule, print its line and call its hook."""
        self.records.flush()
        self.schedule.epoch_ended()
        self.epoch_open = False
        self.records.epoch_ended(self.results if self.validated == self.update else {})

    def save(self) -> None:
        """Write a checkpoint in the background, if there is a `dir` and something is new. All ranks call it together."""
        self._resuming.start_anew()
        now = counters(self)
        if self._checkpoints is not None and self._saved != now:
            best = self.best.improved and self.validated == self.update
            with self._meter.paused():
                self._checkpoints.save(self.update, self.state_dict(), best=best, then=lambda path: self.records.call("save", path))
            self._saved = now
            self.best.improved = False

    def resume(self) -> bool:
        """Continue from the newest checkpoint of `dir`, if `resume` allows it and nothing was trained yet. Returns whether it did.

        Raises:
            FastDataError: if no checkpoint can be read, it does not fit, or `resume` is "require" and there is none.
        """
        return not self.update and self._resuming.load(self.load_state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the run continues: tensors, numbers and text. All ranks call it together."""
        place = self._pass.state() if self._pass else self._resumed
        return capture(self, scaler=self._step.scaler, place=place, options=self._options)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken. With another number of ranks, dropout and the like draw other numbers from here on.

        Raises:
            FastDataError: if the state does not fit this Trainer.
        """
        self._resumed = restore(self, state, scaler=self._step.scaler, options=self._options)
        self._pass = None
        self._saved = counters(self)
        self._resuming.settled = True
        self.records.resumed()

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and close the log."""
        if self._profiler:
            self._profiler.close()
        self.records.close()
        if self._checkpoints is not None:
            self._checkpoints.wait()
