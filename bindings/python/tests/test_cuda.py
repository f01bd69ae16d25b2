"""CUDA tensors on a real GPU: the parts of gpu_report.py that check, and the shapes of fla_shapes.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU here: CUDA tensors are not tried", allow_module_level=True)
if not any(entry.name == "cuda" for entry in libcarry.available("devices")):
    pytest.skip("this libcarry was built without CUDA", allow_module_level=True)

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("part", ["first", "bad_input", "streams", "bits", "compiled", "layers"])
def test_a_part_of_the_report(part):
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "gpu_report.py"), part], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_tolerances_of_flash_linear_attention_on_its_shapes():
    command = [sys.executable, str(PACKAGE / "fla_shapes.py"), "--device", "cuda", "--brief", "--dtype", "f16", "f32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
