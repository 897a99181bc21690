"""GPUNormalize beside a copy on the device and beside the usual operations one by one.

    python benchmarks/gpu/normalize.py [--device cpu] [--quick]

Inputs and outputs take turns among several, so that none comes from the cache. Bytes are those that can't be avoided: of the
integers read and of the floats written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from part import Result, Run, Setting, Wrong, activities, main, repeat, rows_of
from torch import Tensor

from fastdata import GPUNormalize
from fastdata.bench.harness import interleave

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
COPY, ASKED = "copy on the device, of 1 GiB", "uint8, channels_last"
INPUTS = 8

Call = Callable[[Tensor], Tensor]


def measure(setting: Setting) -> Result:
    rows, side = (4, 32) if setting.quick else (256, 224)
    images = torch.from_numpy(setting.inputs.pixels(rows, side)).permute(0, 3, 1, 2)
    result = Result([f"{rows} x 3 x {side} x {side}, ImageNet's mean and std, bfloat16 unless a row says otherwise."])
    takers = contestants(setting, images)
    for name, taker in list(takers.items()):
        try:
            taker.compare(name, result)
        except (RuntimeError, NotImplementedError) as error:  # of torch, where it can't do that
            if name == ASKED:
                raise
            del takers[name]
            result.left_out[name] = f"{type(error).__name__}: {error}"
    ceiling = Copy(setting)
    calls = {COPY: ceiling.measure} | {name: taker.measure for name, taker in takers.items()}
    runs = interleave(calls, seconds=setting.seconds(0.2), repeats=setting.rounds, warmup=setting.warmup)
    result.rows = rows_of(runs, COPY, "GB/s", 1e-9)
    kernels = {name: taker.kernels() for name, taker in takers.items()}
    for row in result.rows[1:]:
        name = row["name"]
        row["note"] = f"{takers[name].size / row['rate']['median'] / 1e3:,.1f} us, {kernels[name]:g} kernels"
    result.ask(f"kernels of a call, {ASKED}", 1, kernels[ASKED], most=True)
    for name in (ASKED, "uint8, contiguous"):
        share = next(row for row in result.rows if row["name"] == name)["of_ceiling"]["median"]
        result.ask(f"{name}: share of what a copy moves", 0.8, share)
    return result


def contestants(setting: Setting, images: Tensor) -> dict[str, Taker]:
    def module(**options: Any) -> GPUNormalize:
        return GPUNormalize(MEAN, STD, **{"dtype": torch.bfloat16, **options}).to(setting.device)

    def compiled(made: GPUNormalize) -> Call:
        return torch.compile(made, backend="inductor" if setting.cuda else "eager")

    last, plain = images.contiguous(memory_format=torch.channels_last), images.contiguous()
    deep = (last.to(torch.int32) * 257).to(torch.uint16)
    exact = reference(last).to(setting.device)

    def taker(call: Call, x: Tensor, bound: float = 3e-3) -> Taker:
        return Taker(setting, call, x, exact, bound)

    return {
        ASKED: taker(module(), last),
        "uint8, contiguous": taker(module(), plain),
        "uint8, channels_last, to float32": taker(module(dtype=torch.float32), last, bound=1e-6),
        "uint16, channels_last": taker(module(), deep),
        "uint8, channels_last, compiled": taker(compiled(module()), last),
        "one by one in float32, then bfloat16": taker(one_by_one(setting, torch.float32), last),
        "one by one in bfloat16": taker(one_by_one(setting, torch.bfloat16), last, bound=3e-2),
    }


def reference(images: Tensor) -> Tensor:
    """In float64."""
    mean, std = (torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1) for numbers in (MEAN, STD))
    return (images.double() / 255 - mean) / std


def one_by_one(setting: Setting, dtype: torch.dtype) -> Call:
    """As most programs do it."""
    mean, std = (torch.tensor(numbers, dtype=dtype, device=setting.device).view(-1, 1, 1) for numbers in (MEAN, STD))
    return lambda x: x.to(dtype).div_(255).sub_(mean).div_(std).to(torch.bfloat16)


class Taker:
    """A way to normalize.

    Args:
        want: of the input, float64. bound: of the error, |output - want| / |want| over all numbers.
    """

    def __init__(self, setting: Setting, call: Call, x: Tensor, want: Tensor, bound: float) -> None:
        self.setting, self.call, self.want, self.bound = setting, call, want, bound
        self.inputs = [x.to(setting.device, copy=True) for _ in range(INPUTS)]
        self.outputs: list[Any] = [None] * 4  # these are kept, so that their memory is not the next one's
        self.size = 0

    def __call__(self, number: int) -> None:
        self.outputs[number % len(self.outputs)] = self.call(self.inputs[number % len(self.inputs)])

    def compare(self, name: str, result: Result) -> None:
        """Check what comes out; this also compiles what is to be compiled."""
        out = self.call(self.inputs[0])
        error = float(torch.linalg.vector_norm(out.double() - self.want) / torch.linalg.vector_norm(self.want))
        if not error <= self.bound:
            raise Wrong(f"{name} is {error:.1e} off")
        result.checked.append(f"{name}: {error:.1e} off float64")
        self.size = self.inputs[0].nbytes + out.nbytes

    def measure(self, seconds: float) -> Run:
        return during(self.setting, self, self.size, seconds)

    def kernels(self) -> float:
        """Of a call."""
        return len(activities(self.setting, lambda: [self(k) for k in range(10)])) / 10


class Copy:
    """The ceiling: large enough that the cache does not matter."""

    def __init__(self, setting: Setting) -> None:
        count = 1 << (20 if setting.quick else 30)
        self.setting = setting
        self.source = torch.randint(256, (count,), dtype=torch.uint8, device=setting.device)
        self.target = torch.empty_like(self.source)

    def measure(self, seconds: float) -> Run:
        return during(self.setting, lambda _: self.target.copy_(self.source), 2 * self.source.nbytes, seconds)


def during(setting: Setting, call: Callable[[int], Any], size: int, seconds: float) -> Run:
    """Bytes of enough calls in a row to fill the time, which one short try tells."""
    once = repeat(setting, call, 10) / 10
    calls = max(10, int(seconds / once))
    return Run(calls * size, repeat(setting, call, calls), 0.0)


if __name__ == "__main__":
    main(measure)
