"""Trainer: the training loop, with correct accumulation, short batches, skipped updates and resume."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastdata.checkpoint.files import Checkpoints
from fastdata.checkpoint.states import load_states, random_state, restore_random, states
from fastdata.errors import FastDataError, warn_user
from fastdata.monitor.checks import CudnnBenchmark, GraphCheck
from fastdata.monitor.log import Log
from fastdata.monitor.logged import NOTHING, Logged, means
from fastdata.monitor.meter import Meter
from fastdata.monitor.profiler import StepProfiler
from fastdata.optim.build import build_optimizer
from fastdata.optim.schedule import Schedule, SchedulerLike
from fastdata.parallel.layout import lay_out
from fastdata.parallel.signals import Interrupted, Termination
from fastdata.parallel.world import World, device_for
from fastdata.train.batches import Epoch, check_part, first_tensor, to_device
from fastdata.train.evaluation import Evaluation
from fastdata.train.finite import MOST_SKIPPED, not_finite, warn_of_statistics
from fastdata.train.options import Options
from fastdata.train.step import Step

__all__ = ["TERMINATED", "Trainer"]

HOOKS = ("step", "epoch", "eval", "save", "log")
ENDING = HOOKS[:3]  # these may end the run
FORMAT = 2  # of a state
COUNTERS = ("update", "epoch", "epoch_open", "validated")
CONTINUE, STOP, TERMINATE, INTERRUPT = range(4)
VERDICTS = {signal.SIGTERM: TERMINATE, signal.SIGINT: INTERRUPT}
TERMINATED = 75  # EX_TEMPFAIL of sysexits.h: try again later


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
        metrics: {name: metric} for `evaluate`. A metric is a function(outputs, batch), where outputs are what the model returned to
            `loss_fn`; it returns (sum, count), a tensor with one value per row or token, or a float, the mean over the batch's
            rows. Or it is an object with update, compute and reset, such as torchmetrics', which is updated with (outputs,
            batch[1]). A pair (object, function(outputs, batch)) updates it with what the function returns instead.
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
        results: results of the last evaluation, which ran after update `validated`.
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
        metrics: Mapping[str, Any] | None = None,
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
        _check_counts(accumulate=accumulate, log_every=log_every, save_every=save_every, profile=profile)
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise ValueError(
                f"clip_norm is {clip_norm}, which would leave nothing or all of each gradient: give a number above 0, or None"
            )
        if resume not in (True, False, "require") or (resume == "require" and dir is None):
            raise ValueError(f"resume is {resume!r} and dir is {dir}; resume must be True, False, or 'require', which needs a dir")
        self._hooks = dict(hooks or {})
        if unknown := sorted(set(self._hooks) - set(HOOKS)):
            raise ValueError(f"hooks has {', '.join(unknown)}, but there are {', '.join(HOOKS)}")
        if wrong := [name for name, hook in self._hooks.items() if not callable(hook)]:
            raise TypeError(f"hooks[{wrong[0]!r}] is a {type(self._hooks[wrong[0]]).__name__}, but must be a function")
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
        self.accumulate = accumulate
        self.dir = None if dir is None else Path(dir)
        self.update = 0
        self.epoch = 0
        self.results = dict[str, float]()
        self.epoch_open = False
        self.validated = -1
        self.stopping = False
        self._main = self.world.rank == 0
        self._resume = resume
        self._save_every = save_every
        self._log_every = log_every
        self._channels_last = channels_last
        self._step = Step(wrapped, loss_fn, self.optimizer, self.world, self.device, self.ema, precision, clip_norm)
        self._cudnn = CudnnBenchmark() if cudnn_benchmark and self.device.type == "cuda" else None
        self._graphs = GraphCheck()
        if self._main:
            self._step.see_losses = self._graphs.see
        folder = None if profile else self.dir  # a profile is no run to resume
        self._checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", self.world, keep_last=keep_last)
        self._log = Log(folder if self._main else None, tensorboard=tensorboard)
        self._meter = Meter(shown=progress and self._main)
        self._logged = Logged(("loss", *(metrics or {})))
        self._evaluation = Evaluation(self._step, loss_fn, metrics or {}, self._logged, channels_last=channels_last)
        self._profiler = StepProfiler(profile, self.dir or Path(), rank=self.world.rank) if profile else None
        if self._profiler:
            self._step.span = self._profiler.span
        own = {"precision": precision, "accumulate": accumulate, "clip_norm": clip_norm, "ema": ema}
        self._options = Options(self.optimizer, self.schedule, **own)
        self._settled = False  # a state was loaded, or the folder holds nothing of another run
        self._verdict = CONTINUE
        self._last_line = 0  # the update of the last line of the log
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
        self._start_anew()
        check_part(train, self.world, training=True)
        self._options.see(train)
        self._report_resume()
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
            self._write_line()
        self.schedule.updated(self.update - 1)
        if self._profiler and (report := self._profiler.updated()):
            self._meter.tell(report)
            self.stopping = True
        self._call("step")

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
        _check_counts(epochs=epochs, max_steps=max_steps, eval_every=eval_every)
        if epochs is None and max_steps is None:
            raise ValueError("fit needs epochs or max_steps, or it would never end")
        last_epoch = math.inf if epochs is None else epochs
        last_update = math.inf if max_steps is None else max_steps
        val = None if self._profiler else val
        termination = Termination()
        self._verdict = CONTINUE
        self.resume()
        total = self._count_updates(train, last_epoch, last_update)
        self.schedule.begin(total, evaluated=val is not None or self._profiler is not None)
        if self._main and self.update and not (self.epoch_open or (self.epoch < last_epoch and self.update < last_update)):
            where = "" if self.dir is None else f" in {self.dir}"
            warn_user(
                f"nothing was trained: the run{where} is finished, with {self.epoch} epochs and {self.update} updates. To train "
                "longer, ask for more epochs or max_steps; for a new run, pass resume=False or another dir"
            )
        with termination if self._checkpoints else nullcontext():  # without checkpoints, a signal ends the process at once
            try:
                while self._verdict == CONTINUE and (self.epoch_open or (self.epoch < last_epoch and self.update < last_update)):
                    if not self.epoch_open:
                        for update in self.steps(train):
                            if eval_every and update % eval_every == 0:
                                self._validate_once(val)
                            self._decide(termination)
                            if self._save_every and update % self._save_every == 0 and self._verdict == CONTINUE:
                                self.save()
                            if self._verdict != CONTINUE or update >= last_update:
                                break
                    if self.epoch_open and self._verdict < TERMINATE:
                        if eval_every is None:
                            self._validate_once(val)
                        self.end_epoch()
                        self._decide(termination)
                        self.save()
                if self._verdict < TERMINATE:
                    self._check_finite(over=True)
                    self._validate_once(val)
                self._flush()
                self.save()
            finally:
                self.close()
            self._decide(termination)  # a signal may have come after the last update
        if self._verdict >= TERMINATE:
            self._exit()
        return self.results

    def _count_updates(self, train: Any, last_epoch: float, last_update: float) -> float:
        """Return the number of updates of the whole run, including those before a resume; math.inf if it is not known."""
        with suppress(TypeError):  # a DataLoader may have a len() that raises
            batches = len(train)
            place = self._place(train)
            first = math.ceil((batches - (int(place["used"]) if place else 0)) / self.accumulate)  # rest of the current epoch
            left = (last_epoch - self.epoch - 1) * math.ceil(batches / self.accumulate) + first
            return min(last_update, self.update + max(left, 0))
        return last_update

    def _validate_once(self, val: Any) -> None:
        if val is not None and self.validated != self.update:
            self.validate(val)

    def _decide(self, termination: Termination) -> None:
        """Decide whether the run ends here. All ranks agree, because a signal or a hook may have reached only one."""
        if termination.received:
            self._verdict = VERDICTS[termination.received]
        elif self.stopping:
            self._verdict = STOP
        if self.world.size > 1:
            self._verdict = int(self.world.max(torch.tensor(self._verdict), on_hosts=True))

    def _exit(self) -> None:
        """End the process after a signal, once everything is saved."""
        interrupted = self._verdict == INTERRUPT
        cause = "interrupted" if interrupted else "SIGTERM"
        self._meter.tell(f"{cause}: saved at update {self.update} in {self.dir}; the same command continues from there.")
        self.world.leave()
        if not interrupted:
            raise SystemExit(TERMINATED)
        raise KeyboardInterrupt if hasattr(sys, "ps1") else Interrupted  # an interactive session does not end

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
        """Evaluate, and pass the results to the schedule, the log and the hook."""
        with self._meter.paused():
            self.results = self.evaluate(val)
        self.validated = self.update
        self.schedule.evaluated(self.results)
        with self._logged.into("eval"):
            self._call("eval", self.results)
        averaged = {"ema": True} if self.ema else {}
        self._write("eval", {**self.results, **means(self._logged.read("eval", self.world)), **averaged})
        return self.results

    def end_epoch(self) -> None:
        """End an epoch, after its last update and evaluation: step its schedule, print its line and call its hook."""
        self._flush()
        self.schedule.epoch_ended()
        self.epoch_open = False
        record = self._meter.end(self.epoch, self.results if self.validated == self.update else {})
        with self._logged.into("epoch"):
            self._call("epoch", record)
        self._write("epoch", {**record, **means(self._logged.read("epoch", self.world))})

    def _check_finite(self, *, over: bool = False) -> None:
        """Raise a FastDataError if the last 50 updates were skipped, or, with `over`, if all updates of the run were."""
        skipped = self._step.totals.skipped_in_a_row()
        if skipped >= MOST_SKIPPED or (over and 0 < skipped == self.update):
            raise not_finite(
                skipped, self.model, self._step.loss(), rate=self.schedule.rates()[0], scaled=self._step.scaler.is_enabled()
            )

    def _write_line(self) -> None:
        """Write a line about the updates since the last one. Only here does the host wait for the device."""
        self._check_finite()
        self._last_line = self.update
        logged = self._logged.read("train", self.world)
        record = self._meter.read(*self._step.totals.read(), logged, lr=self.schedule.rates()[0])
        if record["skipped"] and self._main:
            warn_of_statistics(self.model)
        self._write("train", record)

    def _flush(self) -> None:
        """Write what no line has reported yet. All ranks call it together."""
        if self._last_line != self.update:
            self._write_line()
        elif logged := self._logged.read("train", self.world):  # by a hook, after the line of this update
            self._meter.add(logged)
            self._write("train", means(logged))

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a record, and call the log hook."""
        record = {"kind": kind, "update": self.update, "epoch": self.epoch, **values}
        self._log.write(record)
        if self._main:
            self._call("log", record)

    def _call(self, hook: str, *arguments: Any) -> None:
        """Call a hook, if it is set. A step, epoch or eval hook may end the run."""
        if hook in self._hooks:
            with self._logged.into(self._logged.kind if hook in ENDING else None):
                stop = self._hooks[hook](self, *arguments) is True
            self.stopping |= stop and hook in ENDING

    def save(self) -> None:
        """Write a checkpoint in the background, if there is a `dir` and something is new. All ranks call it together."""
        self._start_anew()
        now = [getattr(self, name) for name in COUNTERS]
        if self._checkpoints is not None and self._saved != now:
            with self._meter.paused():
                self._checkpoints.save(self.update, self.state_dict(), then=lambda path: self._call("save", path))
            self._saved = now

    def resume(self) -> bool:
        """Continue from the newest checkpoint of `dir`, if `resume` allows it and nothing was trained yet. Returns whether it did.

        Raises:
            FastDataError: if no checkpoint can be read, it does not fit, or `resume` is "require" and there is none.
        """
        if self.update or self._checkpoints is None:
            return False
        if not self._resume:
            self._start_anew()
            return False
        state = self._checkpoints.newest()
        self._settled = True
        if state is None:
            if self._resume == "require":
                raise FastDataError(
                    f"resume is 'require', but {self.dir} has no checkpoint: pass the right dir, or leave resume out"
                )
            return False
        try:
            self.load_state_dict(state)
        except FastDataError as error:
            raise FastDataError(
                f"{self._checkpoints.read} does not fit this Trainer: for a new run, pass resume=False or another dir; to "
                f"continue, make the Trainer as it was: {error}"
            ) from error
        return True

    def _start_anew(self) -> None:
        """Move the files of an earlier run away, unless this run continues it."""
        aside = self._checkpoints.set_aside() if self._checkpoints and not self._settled else None
        self._settled = True
        if aside and self._resume:
            warn_user(
                f"{aside.parent} has checkpoints of an earlier run that was not resumed; they are in {aside} now. To continue it, "
                "call trainer.resume() before trainer.steps()"
            )
        elif aside:
            self._meter.tell(f"resume=False: files of an earlier run in {aside.parent} are in {aside} now")

    def _report_resume(self) -> None:
        """Report once where a run resumes, and which options differ from the saved ones."""
        differences = self._options.differences()
        if differences is None or not self._main:
            return
        text = f"resumed after update {self.update}, in epoch {self.epoch + 1}"
        self._write("resume", {"differences": differences})
        if differences:
            warn_user(f"{text}. {differences}")
        else:
            self._meter.tell(f"{text}.")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides how the run continues: tensors, numbers and text. All ranks call it together."""
        model, optimizer = states(self.model, self.optimizer)
        place = self._pass.state() if self._pass else self._resumed
        return {
            "format": FORMAT,
            "options": self._options.state_dict(),
            "model": model,
            "optimizer": optimizer,
            "ema": None if self.ema is None else states(self.ema.model)[0],
            "scaler": self._step.scaler.state_dict(),
            "schedule": self.schedule.state_dict(),
            **{name: getattr(self, name) for name in COUNTERS},
            "results": self.results,
            "ranks": self.world.gather({"random": random_state(), "place": place}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken. With another number of ranks, dropout and the like draw other numbers from here on.

        Raises:
            FastDataError: if the state does not fit this Trainer.
        """
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            found = f"has {', '.join(map(str, [*state][:8]))}" if isinstance(state, Mapping) else f"is a {type(state).__name__}"
            raise FastDataError(f"expected a state of fastdata's Trainer in format {FORMAT}, but it {found}")
        try:
            self._options.check(state["options"])
            load_states((state["model"], state["optimizer"]), self.model, self.optimizer)
            if self.ema is not None:
                load_states((state["model"] if state["ema"] is None else state["ema"],), self.ema.model)
            self._step.scaler.load_state_dict(state["scaler"])
            self._options.load(state["options"])
            self.schedule.load_state_dict(state["schedule"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise FastDataError(f"the checkpoint is from another model, optimizer, precision or scheduler: {error}") from error
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.results = dict(state["results"])
        ranks = state["ranks"]
        if len(ranks) == self.world.size:
            restore_random(ranks[self.world.rank]["random"])
            self._resumed = ranks[self.world.rank]["place"]
        else:
            self._resumed = ranks[0]["place"]
            self._warn_of_other_ranks(len(ranks))
        self._pass = None
        self._saved = [getattr(self, name) for name in COUNTERS]
        self._settled = True
        self._last_line = self._meter.resumed_at = self.update

    def _warn_of_other_ranks(self, before: int) -> None:
        """Warn if the rest of an epoch cannot be divided among another number of ranks, as only a Loader's can."""
        place = self._resumed
        if place and place["used"] and "global_batch_size" not in (place["loader"] or {}):
            warn_user(
                f"the checkpoint was made in the middle of an epoch by {before} ranks, now there are {self.world.size}, and this "
                "loader cannot divide the rest of the epoch among them: some samples will repeat in it, others be left out. "
                "fastdata.Loader can, with global_batch_size="
            )

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and close the log."""
        if self._profiler:
            self._profiler.close()
        self._logged.kind = None  # from here on, logging a number is an error, because no run is active
        self._meter.close()
        self._log.close()
        if self._checkpoints is not None:
            self._checkpoints.wait()


def _check_counts(**counts: int | None) -> None:
    """Raise a ValueError for anything but None or a whole number of at least 1."""
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < 1):
            raise ValueError(f"{name} is {count!r}, but must be a whole number from 1 on, or left out")
