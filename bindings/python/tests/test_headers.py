"""_structs.py and _library.py against include/carry/*.h: what ctypes believes is what the compiler does."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import libcarry
from libcarry import _engine, _library, _rule, _structs

HEADERS = Path(__file__).resolve().parents[3] / "include" / "carry"
pytestmark = pytest.mark.skipif(not HEADERS.is_dir(), reason="the headers are not here: this is not a checkout")

STRUCTS = {
    "carry_ctx_options": _structs.CtxOptions,
    "carry_tensor": _structs.Tensor,
    "carry_device_properties": _structs.DeviceProperties,
    "carry_scan_problem": _structs.ScanProblem,
    "carry_scan_options": _structs.ScanOptions,
    "carry_scan_args": _structs.ScanArgs,
    "carry_scan_backward_args": _structs.ScanBackwardArgs,
    "carry_delta_problem": _structs.DeltaProblem,
    "carry_delta_options": _structs.DeltaOptions,
    "carry_delta_forward_args": _structs.DeltaForwardArgs,
    "carry_delta_backward_args": _structs.DeltaBackwardArgs,
    "carry_conv_args": _structs.ConvArgs,
    "carry_conv_backward_args": _structs.ConvBackwardArgs,
    "carry_engine_options": _engine.EngineOptions,
    "carry_engine_request": _engine.EngineRequest,
    "carry_engine_event": _engine.EngineEvent,
    "carry_engine_stats": _engine.EngineStats,
}


def header(name: str) -> str:
    return (HEADERS / name).read_text()


def test_version_is_the_headers():
    parts = [re.search(rf"CARRY_VERSION_{part} (\d+)", header("context.h"))[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert libcarry.__version__ == ".".join(parts)


def test_lists_are_the_headers():
    assert re.findall(r"X\((\w+), \"", header("status.h")) == [*_structs.STATUSES]
    assert re.findall(r"X\(\w+, \"(\w+)\"", header("tensor.h")) == [*_structs.DTYPES]
    assert int(re.search(r"CARRY_MAX_RANK (\d+)", header("tensor.h"))[1]) == _structs.MAX_RANK


def test_functions_take_as_many_arguments_as_declared():
    text = re.sub(r"/\*.*?\*/", "", "\n".join(path.read_text() for path in HEADERS.glob("*.h")), flags=re.DOTALL)
    declared = dict(re.findall(r"CARRY_API [^;(]*?(\w+)\(([^;]*)\);", text))
    for name, (_, arguments) in [*_library._PROTOTYPES.items(), *_engine.PROTOTYPES.items()]:
        parameters = declared[name].strip()
        assert len(arguments) == (0 if parameters == "void" else parameters.count(",") + 1), name


def test_structures_lie_as_the_compiler_lays_them_out(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here to ask for sizes and offsets")
    lines, expected = [], []
    for name, structure in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            member = f"{name}, {field}"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({member}), sizeof((({name} *)0)->{field}));')
            place = getattr(structure, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    source = tmp_path / "layout.c"
    source.write_text("#include <stdio.h>\n#include <carry/carry.h>\nint main(void) {" + "\n".join(lines) + "}\n")
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{HEADERS.parent}", str(source), "-o", str(program)], check=True)
    found = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    assert found == expected


def test_enumerators_are_the_headers():
    assert re.search(r"CARRY_SCAN_DIAGONAL, CARRY_SCAN_DENSE", header("scan.h"))
    gates = re.findall(r"CARRY_DELTA_(\w+_GATE)\b,", header("delta.h"))
    assert [getattr(_structs, gate) for gate in gates] == [0, 1, 2]
    assert re.search(r"CARRY_NO_ACTIVATION,\s+CARRY_SILU,", header("nn.h"))


def test_prepared_calls_name_fields_that_are_there():
    """Calls on torch tensors are prepared by these names; without torch nothing else would see a wrong one."""
    names = (*_rule.Inputs._fields, *_rule._INCOMING, *_rule._GRADIENTS)
    assert {*names} <= {name for name, _ in _structs.DeltaBackwardArgs._fields_}
    assert {*_rule.Inputs._fields, "o", "final_state"} <= {name for name, _ in _structs.DeltaForwardArgs._fields_}
