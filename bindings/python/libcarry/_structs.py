"""The structures and numbers of include/carry/*.h, as ctypes sees them.

tests/test_headers.py compares names, order, sizes and offsets with the headers.
"""

from __future__ import annotations

from ctypes import Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p, sizeof
from typing import Any

# status.h, in order: the index is the number.
STATUSES = (
    "OK", "EARGUMENT", "ESHAPE", "EDTYPE", "ESTRIDE", "EALIGN", "ESIZE", "EMEMORY", "EWORKSPACE", "ERANGE",
    "EUNSUPPORTED", "ENOTFOUND", "EFORMAT", "EIO", "EDEVICE", "EPEER", "ETIMEOUT", "EINTERRUPTED",
)  # fmt: skip

# tensor.h
DTYPES = ("f32", "bf16", "f16", "i64", "f64", "f8_e4m3", "i8", "i32", "quantised")
F32, BF16, F16, I64, F64 = range(5)
MAX_RANK = 6

# scan.h
DIAGONAL, DENSE = range(2)
PLAN_ESTIMATE, PLAN_MEASURE = range(2)

# delta.h
NO_GATE, HEAD_GATE, KEY_GATE = range(3)

# nn.h
NO_ACTIVATION, SILU = range(2)


class Sized(Structure):
    """A structure whose first field is its size, as CARRY_INIT of status.h sets it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=sizeof(self), **fields)


class CtxOptions(Sized):
    """carry_ctx_options"""

    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int),
        ("kernels", c_char_p),
        ("wisdom", c_char_p),
        ("log_level", c_int),
        ("log", c_void_p),
        ("log_user", c_void_p),
    ]


class Tensor(Structure):
    """carry_tensor"""

    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("device", c_int),
        ("rank", c_int),
        ("shape", c_int64 * MAX_RANK),
        ("stride", c_int64 * MAX_RANK),
    ]


class DeviceProperties(Sized):
    """carry_device_properties"""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 96),
        ("backend", c_char * 16),
        ("kernels", c_char * 32),
        ("units", c_int),
        ("memory", c_size_t),
        ("cache", c_size_t),
        ("cache_inner", c_size_t),
        ("shared", c_size_t),
        ("clock_hz", c_double),
        ("memory_bytes_s", c_double),
        ("driver", c_int),
        ("runtime", c_int),
    ]


class ScanProblem(Structure):
    """carry_scan_problem"""

    _fields_ = [
        ("kind", c_int),
        ("batch", c_int64),
        ("steps", c_int64),
        ("n", c_int64),
        ("width", c_int64),
        ("dtype", c_int),
        ("f32_result", c_bool),
        ("reversed", c_bool),
        ("backward", c_bool),
        ("device", c_int),
    ]


class ScanOptions(Sized):
    """carry_scan_options"""

    _fields_ = [("size", c_size_t), ("effort", c_int), ("algorithm", c_char_p), ("chunk", c_int64)]


class ScanArgs(Structure):
    """carry_scan_args"""

    _fields_ = [("h", Tensor), ("A", Tensor), ("b", Tensor), ("h0", Tensor)]


class ScanBackwardArgs(Structure):
    """carry_scan_backward_args"""

    _fields_ = [
        ("db", Tensor),
        ("dA", Tensor),
        ("dh0", Tensor),
        ("dh", Tensor),
        ("A", Tensor),
        ("h", Tensor),
        ("h0", Tensor),
    ]


class DeltaProblem(Structure):
    """carry_delta_problem"""

    _fields_ = [
        ("batch", c_int64),
        ("tokens", c_int64),
        ("heads", c_int64),
        ("value_heads", c_int64),
        ("key", c_int64),
        ("value", c_int64),
        ("sequences", c_int64),
        ("dtype", c_int),
        ("gate", c_int),
        ("scale", c_float),
        ("state_transposed", c_bool),
        ("l2norm", c_bool),
        ("gate_inside", c_bool),
        ("beta_sigmoid", c_bool),
        ("beta_factor", c_float),
        ("snapshot_every", c_int64),
        ("snapshot_last", c_int64),
        ("device", c_int),
    ]


class DeltaOptions(Sized):
    """carry_delta_options"""

    _fields_ = [("size", c_size_t), ("algorithm", c_char_p)]


class DeltaForwardArgs(Structure):
    """carry_delta_forward_args"""

    _fields_ = [
        ("o", Tensor),
        ("final_state", Tensor),
        ("snapshots", Tensor),
        ("kept", c_void_p),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("beta", Tensor),
        ("g", Tensor),
        ("initial_state", Tensor),
        ("cu_seqlens", Tensor),
        ("A_log", Tensor),
        ("dt_bias", Tensor),
    ]


class DeltaBackwardArgs(Structure):
    """carry_delta_backward_args"""

    _fields_ = [
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dbeta", Tensor),
        ("dg", Tensor),
        ("dinitial_state", Tensor),
        ("dA_log", Tensor),
        ("ddt_bias", Tensor),
        ("d_o", Tensor),
        ("dfinal_state", Tensor),
        ("kept", c_void_p),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("beta", Tensor),
        ("g", Tensor),
        ("initial_state", Tensor),
        ("cu_seqlens", Tensor),
        ("A_log", Tensor),
        ("dt_bias", Tensor),
    ]


class ConvArgs(Structure):
    """carry_conv_args"""

    _fields_ = [
        ("y", Tensor),
        ("after", Tensor),
        ("x", Tensor),
        ("w", Tensor),
        ("before", Tensor),
        ("cu_seqlens", Tensor),
        ("activation", c_int),
    ]


class ConvBackwardArgs(Structure):
    """carry_conv_backward_args"""

    _fields_ = [
        ("dx", Tensor),
        ("dw", Tensor),
        ("dbefore", Tensor),
        ("dy", Tensor),
        ("x", Tensor),
        ("w", Tensor),
        ("before", Tensor),
        ("cu_seqlens", Tensor),
        ("activation", c_int),
    ]
