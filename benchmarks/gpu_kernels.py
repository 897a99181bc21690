"""The kernels that torch.compile makes for a GPU, on a machine without one: how many, and whether they compile for sm_90.

python -m pip install triton; python benchmarks/gpu_kernels.py

Inductor lowers the graph of each module as if its tensors were on an H100, and Triton compiles the kernels to PTX. Nothing runs.
This uses private parts of torch, and was tried with torch 2.13 and Triton 3.9.
"""

from __future__ import annotations

import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastdata import GPUNormalize, NextToken, Ragged
from fastdata.gpu.crops import Stack
from fastdata.gpu.planes import planes_to_floats

CONSTANTS = "cb", "cr", "gray", "luma", "low", "high"
H100 = GPUTarget("cuda", 90, 32)
DEVICE = torch.device("cuda", 0)
PROPERTIES = types.SimpleNamespace(
    name="H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
)


def pretend() -> None:
    """Let inductor and Triton find an H100."""

    def same(value: Any) -> Any:
        return staticmethod(lambda *_: value)

    answers = {"get_device_properties": PROPERTIES, "get_compute_capability": 90, "is_available": True, "is_triton_capable": True}
    for name, value in {**answers, "current_device": 0, "device_count": 1, "raise_if_triton_unavailable": None}.items():
        setattr(CudaInterface, name, same(value))
    CudaInterface.Worker.get_device_properties = same(PROPERTIES)
    CudaInterface.Worker.current_device = same(0)
    torch.cuda.get_device_properties = lambda *_: PROPERTIES
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.current_device = lambda: 0
    driver = types.SimpleNamespace(get_current_target=lambda: H100, get_current_device=lambda: 0)
    triton.runtime.driver._active = driver
    config.compile_threads = 1


def generated(function: Callable[..., Any], *inputs: Tensor, dynamic: bool) -> str:
    """Return the program that inductor makes of a function for a GPU."""
    mode = "symbolic" if dynamic else "fake"
    with enable_python_dispatcher():  # for the decompositions that are written in Python, as torch.compile has it
        module = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode=mode)(*inputs)
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, FakeTensor):
                each.fake_device, fake = DEVICE, each.fake_mode
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": DEVICE}
    examples = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    graph = GraphLowering(module, example_inputs=examples, shape_env=fake.shape_env, is_inference=True)
    with V.set_debug_handler(DebugContext()), V.set_graph_handler(graph), V.set_fake_mode(fake):
        graph.run(*examples)
        code = graph.codegen()[0]
    return code if isinstance(code, str) else code.value


class Kernels:
    """Stands for inductor's AsyncCompile in a generated program, and keeps the sources of its kernels."""

    def __init__(self, program: str) -> None:
        self.sources = dict[str, str]()
        for part in program.split("async_compile.triton('")[1:]:
            name, _, rest = part.partition("', '''")
            self.sources[name] = rest.partition("''', device_str")[0]
        lines = [line for line in program.splitlines() if not line.lstrip().startswith("#")]
        self.launches = sum(".run(" in line for line in lines)
        self.others = sum("extern_kernels." in line or "torch.ops.aten." in line for line in lines)


def ptx(name: str, source: str, folder: Path) -> str:
    """Compile a kernel for an H100. Triton reads its source from a file in the folder."""
    found: dict[str, Any] = {}

    def keep(**options: Any) -> Callable[[Any], Any]:
        return lambda kernel: found.update(options, kernel=kernel) or kernel

    from torch._inductor.runtime import triton_heuristics

    before = {kind: getattr(triton_heuristics, kind) for kind in ("pointwise", "reduction", "persistent_reduction")}
    path = folder / f"{name}_{abs(hash(source))}.py"
    path.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))
    try:
        for kind in before:
            setattr(triton_heuristics, kind, keep)
        exec(compile(path.read_text(), path, "exec"), {"__file__": str(path), "__name__": name})
    finally:
        for kind, function in before.items():
            setattr(triton_heuristics, kind, function)
    signature = found["triton_meta"]["signature"]
    blocks = {key: 128 if key == "XBLOCK" else 8 for key, kind in signature.items() if kind == "constexpr"}
    return triton.compile(ASTSource(found["kernel"], signature, constexprs=blocks), target=H100).asm["ptx"]


def pixels_to(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return what GPUNormalize does while it is compiled."""

    def run(x: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        return torch.addcmul(bias, x, scale).to(dtype)

    return run


def planes_to(dtype: torch.dtype) -> Callable[..., Tensor]:
    def run(x: Tensor, cb: Tensor, cr: Tensor, gray: Tensor, luma: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return planes_to_floats(x, dict(zip(CONSTANTS, (cb, cr, gray, luma, low, high), strict=True)), dtype)

    return run


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    found: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        normalize = GPUNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], dtype=dtype)
        for kind, (bias, scale) in {
            torch.uint8: (normalize.bias8, normalize.scale8),
            torch.uint16: (normalize.bias16, normalize.scale16),
        }.items():
            for layout in (torch.contiguous_format, torch.channels_last):
                name = f"GPUNormalize, {kind}, {layout}, to {dtype}".replace("torch.", "")
                found[name] = pixels_to(dtype), (images.to(kind).to(memory_format=layout), bias, scale)
        planes = GPUNormalize(0.5, 0.25, dtype=dtype, yuv420=True)
        found[f"GPUNormalize of planes, to {dtype}".replace("torch.", "")] = (
            planes_to(dtype),
            (torch.zeros(8, 1, 48, 32, dtype=torch.uint8), *(getattr(planes, name) for name in CONSTANTS)),
        )
    tokens = torch.zeros(8, 129, dtype=torch.uint16)
    found["NextToken"] = NextToken(), (tokens,)
    found["NextToken with documents"] = NextToken(), (tokens, torch.zeros(8, 129, dtype=torch.int16))
    found["Ragged.padded(5)"] = lambda v, o: Ragged(v, o).padded(5), (torch.zeros(7, 4), torch.tensor([0, 3, 3, 7]))
    stack = Stack(4, (32, 32, 3), torch.uint8, 0, torch.device("cpu"))
    places = torch.zeros(8, 24, dtype=torch.int32)

    def cut(memory: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        stack.memory = memory
        return stack.cut(rows, columns)

    found["crops of resident images"] = cut, (stack.memory, places, places)
    return found


def main() -> None:
    pretend()
    print("| module | shapes | kernels | other calls | fma in PTX |\n|---|---|--:|--:|--:|")
    for name, (function, inputs) in cases().items():
        for dynamic in (False, True):
            kernels = Kernels(generated(function, *inputs, dynamic=dynamic))
            with tempfile.TemporaryDirectory() as folder:
                compiled = [ptx(*item, Path(folder)) for item in kernels.sources.items()]
            fma = sum(text.count("fma.rn.f32") for text in compiled)
            print(f"| {name} | {'any' if dynamic else 'fixed'} | {kernels.launches} | {kernels.others} | {fma} |", flush=True)


if __name__ == "__main__":
    main()
