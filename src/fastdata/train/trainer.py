"""Trainer: batches in, weights out; the loop that a person would write, with what is easily got wrong got right."""

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
from fastdata.monitor.bottleneck import untried
from fastdata.monitor.habits import Habits
from fastdata.monitor.logged import NOTHING, means
from fastdata.monitor.profiler import StepProfiler
from fastdata.monitor.watch import Watch
from fastdata.optim.build import build_optimizer
from fastdata.optim.schedule import Schedule, SchedulerLike
from fastdata.parallel.layout import lay_out
from fastdata.parallel.world import World, device_for
from fastdata.train.arguments import check_arguments
from fastdata.train.batches import Epoch, check_part, first, ready
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
    """Trains a model on batches of any iterable.

    ``loss_fn(model, batch) -> losses``: one loss for each sample or token, float [B] or [B, T], which is what torch's losses give
    with ``reduction="none"``. Where some of them don't count it returns ``(losses, mask)``, with a mask of bools of the same shape,
    such as ``targets != -100``. ``(loss_sum, count)``, a tensor [] and how many were summed, serves for all else, such as weighted
    losses. A single number is refused: means of batches can't be put together again.

    The gradient of an update is the sum of the losses that count / their number, over all its micro-batches on all ranks. So
    `accumulate`, a short batch and any number of ranks give what one big batch gives, except through layers that look at a whole
    batch, as BatchNorm. An update whose gradient is not finite is skipped. Fifty in a row, or all of a run, end it with an error.

    Started by `torchrun`, each process is a rank. With a `dir`, `fit` goes on from the newest checkpoint there, and says so;
    SIGTERM and Ctrl-C save one, and end the process with exit codes 75 and 130; the second is a KeyboardInterrupt too. Where
    options differ from those that were saved, what is asked for now counts, and a warning names both; only a scheduler of torch
    goes on with its arguments, rates and momenta as saved.

    Args:
        model: stays the user's: what wraps it is the Trainer's own.
        optimizer: of the model's parameters; or what makes one of them, such as ``partial(AdamW, lr=1e-3)``: then it is fused
            on a GPU, where that exists.
        device: where model and batches go: "cuda" is the GPU of this rank. None: that too, if there is one and the whole model lies
            on the CPU; else the model stays, and batches go to its first weight.
        precision: "fp32", "bf16" or "fp16": the last two by autocast, fp16 with a GradScaler.
        accumulate: micro-batches of an update. The last update of an epoch takes what is left.
        clip_norm, clip_value: limits of the gradient, above 0, before each update.
        scheduler: a function of the update's index, or any of torch.optim.lr_scheduler. Those of `fastdata.optim`, such as
            ``cosine(warmup=500)``, take the number of updates from `fit`.
        channels_last: the layout of 4-D batches and, without `parallelize`, of weights.
        compile: True, or a mode of torch.compile; the model is compiled in place.
        ema: decay of an average of the weights, which is then what is evaluated.
        dir: for checkpoints and the log; None: no files, and no resume.
        resume: True: go on from the newest checkpoint of `dir` if there is one. "require": it is an error if there is none. False:
            start anew, also after SIGTERM; what an earlier run left in `dir` is moved to ``dir/earlier-1``, -2, and so on.
        eval_loss_fn: what is evaluated instead of `loss_fn`; it returns what that may return.
        metrics: {name: metric}, for `evaluate`. A metric is function(outputs, batch), where outputs are what `loss_fn` got from the
            model; it returns (sum, count), or a tensor with a value for each row or token, or one float, the mean of the batch's
            rows. Or it is an object with update, compute and reset, such as torchmetrics', which is updated with (outputs,
            batch[1]); a pair (object, function(outputs, batch)) says with what else.
        best: "top1:max" or "loss:min": the checkpoint with the best value is also kept, as best.pt.
        profile: so many updates under torch.profiler, after three others; then `fit` ends. It writes its trace into `dir`, but
            goes on from no checkpoint, and writes neither checkpoints nor a log.
        hooks: {"step": f(trainer), "epoch": f(trainer, record), "eval": f(trainer, results), "save": f(trainer, path), "log":
            f(trainer, record)}. One of the first three that returns True ends the run. "log" gets each record of the log, on
            rank 0, with a `dir` or without: for another program that keeps logs.
        recompute: classes of modules of the model that keep no activations, but run again in the backward pass.
        parallelize: what lays the model over the ranks, instead of DistributedDataParallel: `fully_shard`, say. Returns it.
        tf32: whether float32 products may be rounded to TF32; None: as torch is set.
        cudnn_benchmark: let cuDNN measure its algorithms; off again after three shapes of input.
        save_every, keep_last: updates between checkpoints, beside those at the end of each epoch; and how many of them stay.
        log_every: updates between lines of the log. Between them the host waits for nothing on the device.
        tensorboard, cprofile: write TensorBoard's files into `dir` too; with `profile`, profile Python's functions too.
        progress: draw a line, and print one an epoch.

    Attributes:
        update, epoch: updates tried so far, skipped ones included, and epochs finished.
        results: of the last evaluation, which was after update `validated`; `best.value` is the best of its metric.
        stopping: a hook has asked for the end.
        epoch_open: the batches of the last epoch are used up, but `end_epoch` is to come.
        ema: `.model` has the averages; None without.
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
        clip_value: float | None = None,
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
        cprofile: bool = False,
        progress: bool = True,
    ) -> None:
        check_arguments(
            accumulate=accumulate,
            log_every=log_every,
            save_every=save_every,
            profile=profile,
            clip_norm=clip_norm,
            clip_value=clip_value,
            resume=resume,
            dir=dir,
        )
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        where = device_for(device, model)
        self.world = World.join(where)
        self.model, called, self.ema = lay_out(
            model, where, self.world, channels_last=channels_last, compile=compile, ema=ema, recompute=recompute, wrap=parallelize
        )
        self.device = where or next(self.model.parameters()).device
        self.optimizer = build_optimizer(optimizer, self.model, self.device)
        self.schedule = Schedule(scheduler, self.optimizer)
        self._watch = Watch(self.device, benchmark=cudnn_benchmark)
        watched = self._watch.loss(loss_fn)
        self._step = Step(called, watched, self.optimizer, self.world, self.device, self.ema, precision, clip_norm, clip_value)
        self._evaluation = Evaluation(self._step, eval_loss_fn or loss_fn, metrics or {}, channels_last=channels_last)
        self.best = Best(best, ("loss", *(metrics or {})))
        self.accumulate, self._channels_last = accumulate, channels_last
        self.save_every, self._log_every = save_every, log_every
        self.dir = None if dir is None else Path(dir)
        folder = None if profile else self.dir  # a profile is not a run: nobody is to go on from it
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", self.world, keep_last=keep_last)
        switch = untried(self.model, self.device, precision=precision, channels_last=channels_last, compile=bool(compile))
        names = ("loss", *(metrics or {}))
        self.records = Records(self, folder, hooks or {}, names, shown=progress, tensorboard=tensorboard, switch=switch)
        self._meter, self._logged, self.totals = self.records.meter, self.records.logged, self._step.totals
        self._evaluation.see = self.records.batch_evaluated
        self._profiler = StepProfiler(profile, self.dir or Path(), python=cprofile, rank=self.world.rank) if profile else None
        self._habits = Habits(looks=self.world.rank == 0)
        self._step.see_losses = self._habits.see
        if self._profiler:
            self._step.span = self._profiler.span
        self.update, self.epoch, self.results = 0, 0, dict[str, float]()
        self.epoch_open, self.validated, self.stopping, self.profiling = False, -1, False, self._profiler is not None
        self._saved: Any = None
        own = {"precision": precision, "accumulate": accumulate, "clip_norm": clip_norm, "clip_value": clip_value, "ema": ema}
        self._options = Options(self.optimizer, self.schedule, **own)
        self._resuming = Resuming(resume, self._checkpoints, self._options, self.records)
        self._pass: Epoch | None = None
        self._resumed: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        made = f"{type(self.model).__name__}, {type(self.optimizer).__name__}, {self.device}"
        return f"Trainer({made}, {self.epoch} epochs, {self.update} updates)"

    def steps(self, train: Iterable[Any]) -> Iterator[int]:
        """One epoch, or the rest of one that was resumed or left: yields the number of updates after each."""
        epoch = self._begin(train)
        batches, added, final = iter(epoch), 0, False
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
                next(batches, None)  # the loader's own epoch ends
                epoch.over, self.epoch, self.epoch_open = True, self.epoch + 1, True
            if complete:
                self._updated()
                yield self.update

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number, such as a second loss: in `loss_fn`, in a hook (step, epoch or eval), or in a loop over `steps`.

        The next record has the plain mean of what was logged under this name since the last one, over all ranks, and so have the
        line of output and TensorBoard's curves. What is logged in an evaluation is one of its results. The host waits for a tensor
        when the record is written, not before.

        Raises:
            FastDataError: there is no run.
            TypeError: the value is no number.
            ValueError: the log uses the name itself, or the value is a tensor of several numbers.
        """
        self._logged.add(name, value)

    def _begin(self, train: Any) -> Epoch:
        self.schedule.check_total()
        self._resuming.start_anew()
        check_part(train, self.world, training=True)
        self._options.see(train)
        self._habits.begin()
        self._resuming.tell(self.update, self.epoch)
        self._pass, self._resumed = Epoch(train, self.epoch, self._place(train)), None
        total = None if self._pass.left is None else math.ceil((self._pass.used + self._pass.left) / self.accumulate)
        self._meter.begin(self.epoch, self._pass.used // self.accumulate, total, train)
        self._logged.kind = "train"
        if not self.model.training:  # else leave alone which of its modules are frozen in eval mode
            self._step.model.train()
        self._step.begin()
        return self._pass

    @property
    def loss(self) -> Tensor | None:
        """The mean loss of the last update over this rank's samples, float [] on the device, for a hook; None before the first."""
        return self._step.loss()

    def _place(self, train: Any) -> Mapping[str, Any] | None:
        """Where to go on in an epoch: where a state was taken, or where the last pass over the same loader was left."""
        left = self._pass if self._pass is not None and self._pass.is_left(train) else None
        return self._resumed if left is None else left.state()

    def used(self, train: Any) -> int:
        """Batches of the next epoch that were used before a resume, or before a pass over the same loader was left."""
        place = self._place(train)
        return int(place["used"]) if place else 0

    def _add(self, batch: Any, *, last: bool) -> None:
        tensor = first(batch)
        if tensor is not None and tensor.dim():
            self._watch.see(tensor)
            self._meter.count(getattr(batch, "valid", len(tensor)) * self.world.size)
        with self._step.span("copy"):
            batch, valid = ready(batch, self.device, channels_last=self._channels_last)
        check = self.update == 0 or (self.update + 1) % self._log_every == 0  # when the host waits for the device anyway
        with self._logged.into(NOTHING) if valid == 0 else nullcontext():
            self._step.add(batch, valid=valid, last=last, check=check)

    def _updated(self) -> None:
        self.update += 1
        self._meter.updated()
        self._habits.updated()
        if self.update % self._log_every == 0:
            self.records.line()
        self.schedule.updated(self.update - 1)
        if self._profiler and (report := self._profiler.updated()):
            self._meter.tell(report)
            self.stopping = True
        self.records.call("step")

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints."""
        return self._checkpoints is not None

    def check_finite(self, *, over: bool = False) -> None:
        """Raise a FastDataError if the last 50 updates were skipped; or all there were, where the run is over."""
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
        """Train until so many epochs or updates are done, those before a resume included.

        Args:
            train: an iterable of batches with the same number on every rank, as fastdata's Loader has.
            val: what to evaluate, after each epoch or each `eval_every` updates, and at the end.
            epochs: how many, 1 or more. max_steps: updates, 1 or more. The first that is reached ends the run.

        Returns the results of the last evaluation. With `profile` it ends after that.
        """
        return Run(self, train, val, epochs=epochs, max_steps=max_steps, eval_every=eval_every).go()

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss and metrics over a set, each sample once, the same on every rank. Of the averaged weights, if there are."""
        with self._logged.into("eval"):
            results = self._evaluation.run(self.ema.model if self.ema else self.model, loader)
        return {**results, **means(self._logged.read("eval", self.world))}

    def predict(self, loader: Iterable[Any], forward: Callable[[Any, Any], Tensor] | None = None) -> Tensor:
        """The model's outputs, float [samples, ...] on the CPU, in the order of the set, on every rank.

        Args:
            forward: ``forward(model, batch)``; None: ``model(batch)``, or ``model(batch[0])`` of a tuple.
        """
        call = forward or (lambda model, batch: model(batch[0] if isinstance(batch, tuple | list) else batch))
        return self._evaluation.predict(self.ema.model if self.ema else self.model, loader, call)

    def validate(self, val: Iterable[Any]) -> dict[str, float]:
        """Evaluate, and tell the schedule, the log, the hook and `best`."""
        with self._meter.paused():
            self.results = self.evaluate(val)
        self.validated = self.update
        self.schedule.evaluated(self.results)
        self.best.see(self.results)
        self.records.evaluated(self.results)
        return self.results

    def end_epoch(self) -> None:
        """After the last update of an epoch, and its evaluation: schedules of epochs, the line of output, the hook."""
        self.records.flush()
        self.schedule.epoch_ended()
        self.epoch_open = False
        self.records.epoch_ended(self.results if self.validated == self.update else {})

    def save(self) -> None:
        """Write a checkpoint, in the background, if there is a `dir` and something is new. All ranks call it together."""
        self._resuming.start_anew()
        place = counters(self)
        if self._checkpoints is not None and self._saved != place:
            best = self.best.improved and self.validated == self.update
            with self._meter.paused():
                self._checkpoints.save(self.update, self.state_dict(), best=best, then=lambda path: self.records.call("save", path))
            self._saved, self.best.improved = place, False

    def resume(self) -> bool:
        """Go on from the newest checkpoint of `dir`, if `resume` says so and nothing was trained yet. Returns whether.

        Raises:
            FastDataError: none can be read, it is of something else, or `resume` is "require" and there is none.
        """
        return not self.update and self._resuming.load(self.load_state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how the run goes on: tensors, numbers and text. All ranks call it together."""
        place = self._pass.state() if self._pass else self._resumed
        return capture(self, scaler=self._step.scaler, place=place, options=self._options)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken. With another number of ranks, dropout and the like draw other numbers from here on.

        Raises:
            FastDataError: it is of something else.
        """
        self._pass, self._resumed = None, restore(self, state, scaler=self._step.scaler, options=self._options)
        self._saved, self._resuming.settled = counters(self), True
        self.records.resumed()

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and close the log."""
        if self._profiler:
            self._profiler.close()
        self._habits.close()
        self.records.close()
        if self._checkpoints is not None:
            self._checkpoints.wait()
