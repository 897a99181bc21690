"""Change the source a little, one place at a time, and see whether the tests notice.

python tools/mutants.py                  a sample of every group of modules
python tools/mutants.py order slots      of these, groups or modules such as store/tree.py; --count N and --seed N choose the sample
python tools/mutants.py order --only 17  one mutant by its number, with the output of its tests

A mutant swaps an operator, changes a number by one, negates a condition, returns None, or leaves a statement out. It is made in a
copy of the repository, so that you can go on working meanwhile. One that survives its tests is printed with its line: a test is
missing, or the code says more than it has to. Tests run in forks of this process, which has imported torch, so that most mutants
take a few seconds.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import faulthandler
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, NamedTuple

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = (".*", "__pycache__", "build", "dist", "mds-env", "shared")
JPEG = "test_jpeg.py test_batch_decode.py test_cut.py"
STORE = "test_store.py test_damaged_stores.py test_growing.py"
LOADS = "test_loader.py test_sampling.py"
# modules of src/fastdata, and the tests of each in the order in which they run
GROUPS = {
    "jpeg": {
        "images/jpeg.py": JPEG,
        "images/jpeg_cut.py": JPEG,
        "images/jpeg_planes.py": "test_jpeg_planes.py",
        "images/batch_decode.py": f"test_batch_decode.py test_jpeg_planes.py {JPEG}",
    },
    "store": {
        "store/format.py": f"{STORE} test_columns.py test_several_images.py",
        "store/tree.py": f"test_tree.py {STORE}",
        "store/shards.py": STORE,
        "store/store.py": STORE,
    },
    "columns": {
        "store/column.py": "test_columns.py test_fields_sources.py test_tokenize.py test_coco.py test_yolo.py",
        "store/columns.py": "test_columns.py test_damaged_stores.py",
        "images/columns.py": "test_columns.py test_fields_sources.py",
    },
    "order": {
        "loader/order.py": f"test_order.py test_lanes.py {LOADS}",
        "loader/lanes.py": "test_lanes.py",
        "loader/plan.py": f"{LOADS} test_lanes.py test_epochs.py test_elastic.py test_foreign.py",
    },
    "slots": {"loader/slots.py": "test_slots.py"},
    "step": {"train/step.py": "test_train_step.py test_not_finite.py"},
}
MODULES = {module: tests for modules in GROUPS.values() for module, tests in modules.items()}

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.Pow: ("**", "*"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
LEFT_OUT = (ast.Raise, ast.AugAssign, ast.Continue, ast.Break, ast.Delete)


class Mutant(NamedTuple):
    """Bytes `start` to `stop` of a file of src/fastdata, on this line, become `new`."""

    module: str
    line: int
    start: int
    stop: int
    new: bytes


def mutants(root: Path, module: str) -> Iterator[Mutant]:
    """Yield all mutants of a module in a copy of the repository.

    Docstrings, annotations, decorators, `strict` of zip, and what only words messages stay as they are.
    """
    data = (root / "src/fastdata" / module).read_bytes()
    begins = [0]
    for line in data.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

    def changed(start: int, stop: int, new: str) -> Mutant:
        return Mutant(module, data.count(b"\n", 0, start) + 1, start, stop, new.encode())

    def replaced(node: ast.AST, new: str) -> Mutant:
        return changed(*span(node), new)

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Mutant]:
        if type(operator) in SWAPS:
            old, new = SWAPS[type(operator)]
            start = data.index(old.encode(), span(left)[1], span(right)[0])
            yield changed(start, start + len(old), new)

    def visit(node: ast.AST) -> Iterator[Mutant]:
        source = data[slice(*span(node))].decode() if hasattr(node, "lineno") else ""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield replaced(node, str(not node.value))
            elif isinstance(node.value, int | float):
                yield replaced(node, f"({node.value} + 1)")
                yield replaced(node, f"({node.value} - 1)")
        elif isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(left, right, operator)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.UnaryOp):
            yield replaced(node, f"({data[slice(*span(node.operand))].decode()})")
        elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield replaced(node.test, f"(not ({data[slice(*span(node.test))].decode()}))")
        elif isinstance(node, ast.Return) and node.value is not None and source != "return None":
            yield replaced(node, "return None")
        elif isinstance(node, LEFT_OUT) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield replaced(node, "pass")
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            yield replaced(node, "pass")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child)

    yield from visit(ast.parse(data))


def shown(root: Path, mutant: Mutant) -> str:
    """Return where a mutant is, and its lines before and after."""
    data = (root / "src/fastdata" / mutant.module).read_bytes()
    start, stop = data.rfind(b"\n", 0, mutant.start) + 1, data.find(b"\n", mutant.stop)
    after = data[start : mutant.start] + mutant.new + data[mutant.stop : stop]
    return f"{mutant.module}:{mutant.line}\n    - {data[start:stop].decode().strip()}\n    + {after.decode().strip()}"


def prepare(folder: Path) -> None:
    """Copy the repository, compile src, and import what takes long but knows nothing of fastdata."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
    compileall.compile_dir(folder / "src", quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(folder / "src"))
    sys.dont_write_bytecode = True
    import cv2
    import lmdb
    import pandas
    import simplejpeg
    import torch.distributed.tensor
    import torch.utils.data
    import xxhash

    assert all((cv2, lmdb, pandas, simplejpeg, torch, xxhash))
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a failure need not be made smaller
    hypothesis.settings.register_profile("mutants", database=None, deadline=None, derandomize=True, phases=phases)
    hypothesis.settings.load_profile("mutants")


class Watch:
    """A pytest plugin that notes how long each test takes, and which lines of some modules it runs in this process."""

    def __init__(self, folder: Path, modules: Iterable[str]) -> None:
        self.files = {str(folder / "src/fastdata" / module): module for module in modules}
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, set[tuple[str, int]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        lines = self.lines[item.nodeid] = set()

        def trace(frame: Any, event: str, value: Any) -> Any:
            if (module := self.files.get(frame.f_code.co_filename)) is None:
                return None
            lines.add((module, frame.f_lineno))
            return trace

        begin = time.monotonic()
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = time.monotonic() - begin


class Choose:
    """A pytest plugin that runs these tests, in this order. One that takes longer than its limit, in seconds, ends the process."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self.places = {test: place for place, test in enumerate(limits)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.places), key=lambda item: self.places[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        faulthandler.dump_traceback_later(self.limits[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def passes(folder: Path, files: Sequence[str], plugin: Any, limit: float, *, quiet: bool = True, result: Any = None) -> bool:
    """Run tests of the copy in a fork, until one fails. Running into the limit, in seconds, is a failure too."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if quiet:
            os.dup2(os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder / 'tmp'}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--rootdir={folder}", f"-c={folder / 'pyproject.toml'}"]
        code = 1
        try:
            code = pytest.main([*options, *(str(folder / "tests" / file) for file in files)], [plugin])
            if result is not None:
                result.write_bytes(pickle.dumps((plugin.seconds, plugin.lines)))
        finally:  # whatever a mutant did, the fork does not go on in the caller
            os._exit(code)
    end = time.monotonic() + limit
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] == 0


def survives(folder: Path, mutant: Mutant, limits: Mapping[str, float], *, quiet: bool) -> bool:
    """Put a mutant into the copy, run the tests, and take it out."""
    path = folder / "src/fastdata" / mutant.module
    compiled = Path(cache_from_source(path))
    before, code = path.read_bytes(), compiled.read_bytes()
    path.write_bytes(before[: mutant.start] + mutant.new + before[mutant.stop :])
    compiled.unlink()
    files = dict.fromkeys(Path(test.partition("::")[0]).name for test in limits)
    try:
        return passes(folder, list(files), Choose(limits), 60 + sum(limits.values()), quiet=quiet)
    finally:
        path.write_bytes(before)
        compiled.write_bytes(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = f"groups, of {', '.join(GROUPS)}, or modules of them; default: all groups"
    parser.add_argument("names", nargs="*", choices=[*GROUPS, *MODULES, []], metavar="NAME", help=names)
    parser.add_argument("--count", type=int, default=80, help="mutants of each name (80)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    parser.add_argument("--only", type=int, help="one mutant by its number")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))  # a TemporaryDirectory would be removed by a fork that runs its finalizers
    try:
        prepare(folder)
        for name in arguments.names or GROUPS:
            run(folder, name, arguments)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, name: str, arguments: argparse.Namespace) -> None:
    """Try a sample of the mutants of a group or a module. Print those that survive, and how many were killed in each module."""
    modules = GROUPS.get(name) or {name: MODULES[name]}
    every = [mutant for module in modules for mutant in mutants(folder, module)]
    chosen = sorted(random.Random(arguments.seed).sample(range(len(every)), min(arguments.count, len(every))))
    if arguments.only is not None:
        chosen = [arguments.only]
    files = dict.fromkeys(file for tests in modules.values() for file in tests.split())
    result = folder / "result"
    if not passes(folder, list(files), Watch(folder, modules), 1200, result=result):
        output = (folder / "output").read_text(errors="replace")
        sys.exit(f"tests fail without a mutant, or take more than twenty minutes: {' '.join(files)}\n{output[-4000:]}")
    seconds, lines = pickle.loads(result.read_bytes())
    quickest = sorted(seconds, key=seconds.__getitem__)
    tried, killed = Counter[str](), Counter[str]()
    for number in chosen:
        mutant = every[number]
        own = modules[mutant.module].split()
        tests = [test for test in quickest if Path(test.partition("::")[0]).name in own]
        there = [test for test in tests if (mutant.module, mutant.line) in lines[test]]
        tried[mutant.module] += 1
        others = [test for test in tests if test not in there]
        for some in (there, others):  # those that run its line in this process, then those whose worker processes may run it
            limits = {test: 30 + 5 * seconds[test] for test in some}
            if some and not survives(folder, mutant, limits, quiet=arguments.only is None):
                killed[mutant.module] += 1
                break
        else:
            print(f"{name} {number} survives ({tried.total()} of {len(chosen)} tried): {shown(folder, mutant)}", flush=True)
    for module in modules:
        print(f"{module}: {killed[module]} of {tried[module]} killed")
    print(f"{name}: {killed.total()} of {tried.total()} killed, of {len(every)} mutants; seed {arguments.seed}", flush=True)


if __name__ == "__main__":
    main()
