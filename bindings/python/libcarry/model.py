"""Language models from a folder: logits, states, generation and training steps. include/carry/model.h from Python.

    model = libcarry.load("Qwen3.5-0.8B", dtype="bf16")
    print(model.generate("Once upon a time", max_new_tokens=64))     # with the tokenizers package
    ids = model.generate([1, 2, 3], max_new_tokens=64, temperature=0)
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np

from . import _context
from . import _structs as s
from ._library import lib


class Options(Structure):
    """carry_llm_options"""

    _fields_ = [("device", c_int), ("dtype", c_int), ("trains", c_bool)]


class Generation(Structure):
    """carry_llm_generation"""

    _fields_ = [
        ("tokens", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition", c_double),
        ("seed", c_uint64),
        ("ends", POINTER(c_int64)),
        ("end_count", c_int64),
    ]


class Batch(Structure):
    """carry_llm_batch"""

    _fields_ = [
        ("batch", c_int64),
        ("tokens", c_int64),
        ("ids", c_void_p),
        ("labels", c_void_p),
        ("rate", c_double),
        ("b1", c_double),
        ("b2", c_double),
        ("eps", c_double),
        ("decay", c_double),
        ("clip", c_double),
    ]


_HEARD = CFUNCTYPE(c_bool, c_void_p, c_int64)
_OUT = POINTER(c_void_p)

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "carry_llm_open": (c_int, [c_void_p, _OUT, c_char_p, POINTER(Options)]),
    "carry_llm_close": (None, [c_void_p]),
    "carry_llm_vocabulary": (c_int64, [c_void_p]),
    "carry_llm_parameters": (c_int64, [c_void_p]),
    "carry_llm_save": (c_int, [c_void_p, c_char_p, c_int]),
    "carry_llm_logits": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "carry_llm_state_new": (c_int, [c_void_p, _OUT]),
    "carry_llm_state_free": (None, [c_void_p]),
    "carry_llm_state_length": (c_int64, [c_void_p]),
    "carry_llm_state_clear": (c_int, [c_void_p]),
    "carry_llm_state_copy": (c_int, [c_void_p, c_void_p]),
    "carry_llm_folder": (c_char_p, [c_void_p]),
    "carry_llm_state_save": (c_int, [c_void_p, c_char_p]),
    "carry_llm_state_load": (c_int, [c_void_p, c_char_p]),
    "carry_llm_read": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "carry_llm_generate": (c_int, [c_void_p, c_void_p, c_int64, POINTER(Generation), _HEARD, c_void_p]),
    "carry_llm_train_step": (c_int, [c_void_p, POINTER(Batch), POINTER(c_double)]),
}

for _name, (_result, _arguments) in _PROTOTYPES.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"the library has no function {_name}: it was built from other sources") from None
    _function.restype, _function.argtypes = _result, _arguments

_DTYPES = {"f32": s.F32, "float32": s.F32, "bf16": s.BF16, "bfloat16": s.BF16, "f16": s.F16, "float16": s.F16}


def _dtype(name: str) -> int:
    found = _DTYPES.get(str(name).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype {name!r}: give f32, bf16 or f16")
    return found


def _device(device: str | int) -> int:
    if device in ("cpu", 0):
        return 0
    if device == "cuda":
        return 1
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        return 1 + int(device[5:])
    if isinstance(device, int) and device > 0:
        return device
    raise ValueError(f"device {device!r}: give cpu, cuda or cuda:N")


def _tokens(ids: Any, what: str, rank: int) -> np.ndarray:
    """Token numbers as a packed int64 array: from a list, a numpy array or a PyTorch tensor."""
    array = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    if array.dtype.kind not in "iu" or array.ndim != rank or array.size == 0:
        raise ValueError(
            f"{what} must be {'a row' if rank == 1 else 'rows of equal length'} of one token or more, whole numbers; "
            f"got {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, np.int64)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class State:
    """What a model remembers of the tokens that it has read. Made by `Model.state`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._handle = c_void_p()
        model._check(lib.carry_llm_state_new(model._handle, byref(self._handle)))
        self._finalizer = weakref.finalize(self, lib.carry_llm_state_free, self._handle)
        self._finalizer.atexit = False
        model._states.add(self)

    def __len__(self) -> int:
        """Tokens that were read."""
        return int(lib.carry_llm_state_length(self._opened()))

    def _opened(self) -> c_void_p:
        if not self._finalizer.alive:
            raise ValueError("the state's model was closed")
        return self._handle

    def read(self, ids: Any) -> np.ndarray:
        """Read tokens; the logits of the one that comes next, [vocabulary]."""
        row = _tokens(ids, "ids", 1)
        logits = np.empty(self._model.vocabulary, np.float32)
        self._model._check(lib.carry_llm_read(self._opened(), _address(row), row.size, _address(logits)))
        return logits

    def clear(self) -> None:
        """Forget everything."""
        self._model._check(lib.carry_llm_state_clear(self._opened()))

    def copy(self) -> State:
        """A snapshot, which goes on by itself."""
        made = State(self._model)
        self._model._check(lib.carry_llm_state_copy(made._handle, self._opened()))
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """To a file, from which `load` of the same model goes on."""
        self._model._check(lib.carry_llm_state_save(self._opened(), os.fsencode(path)))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Become what was saved."""
        self._model._check(lib.carry_llm_state_load(self._opened(), os.fsencode(path)))


class Model:
    """A language model that was opened by `load`. Used by one thread at a time."""

    def __init__(self, folder: str | os.PathLike[str], dtype: str, device: str | int, trains: bool) -> None:
        self.folder = os.fspath(folder)
        self._context = _context.Context(_context._threads)
        self._handle = c_void_p()
        self._states: weakref.WeakSet[State] = weakref.WeakSet()
        self._tokenizer: Any = None
        options = Options(_device(device), _dtype(dtype), trains)
        self._check(
            lib.carry_llm_open(self._context.handle, byref(self._handle), os.fsencode(folder), byref(options))
        )
        self._finalizer = weakref.finalize(self, lib.carry_llm_close, self._handle)
        self._finalizer.atexit = False
        self.folder = os.fsdecode(lib.carry_llm_folder(self._handle))  # of a training run: its newest step
        self.vocabulary = int(lib.carry_llm_vocabulary(self._handle))
        self.parameters = int(lib.carry_llm_parameters(self._handle))

    def _check(self, status: int) -> None:
        self._context.check(status)

    def _opened(self) -> c_void_p:
        if not self._finalizer.alive:
            raise ValueError("the model was closed")
        return self._handle

    def close(self) -> None:
        """Free the weights now, and the states that were made of them."""
        for state in list(self._states):
            state._finalizer()
        self._finalizer()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer.json, by the package tokenizers."""
        if self._tokenizer is None:
            try:
                import tokenizers
            except ImportError:
                raise ImportError("texts need the package tokenizers: install it, or give token numbers") from None
            self._tokenizer = tokenizers.Tokenizer.from_file(os.path.join(self.folder, "tokenizer.json"))
        return self._tokenizer

    def logits(self, ids: Any) -> np.ndarray:
        """The logits after every token of a row, in one pass: [tokens, vocabulary]."""
        row = _tokens(ids, "ids", 1)
        logits = np.empty((row.size, self.vocabulary), np.float32)
        self._check(lib.carry_llm_logits(self._opened(), _address(row), row.size, _address(logits)))
        return logits

    def state(self) -> State:
        """A state that has read nothing."""
        self._opened()
        return State(self)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 0.95,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 1,
        eos_token_id: int | Iterable[int] = (),
        state: State | None = None,
        on_token: Callable[[int], Any] | None = None,
    ) -> Any:
        """Continue a prompt: token numbers give a list of token numbers, a str gives a str.

        Args:
            prompt: token numbers (a list, an array, a tensor), or text, which needs the package tokenizers.
            temperature: 0 takes the likeliest token.
            eos_token_id: the token or tokens that end the text; they are not part of it.
            state: goes on from it, and leaves it after the text but for its last token. None: a new one.
            on_token: called with every token as it comes; False ends the text.
        """
        is_text = isinstance(prompt, str)
        row = _tokens(self.tokenizer.encode(prompt).ids if is_text else prompt, "prompt", 1)
        ends = [eos_token_id] if isinstance(eos_token_id, int) else [*eos_token_id]
        options = Generation(
            tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition=repetition_penalty,
            seed=seed,
            ends=(c_int64 * len(ends))(*ends),
            end_count=len(ends),
        )
        made: list[int] = []
        raised: list[BaseException] = []

        def heard(_user: int | None, token: int) -> bool:
            made.append(token)
            try:
                return on_token is None or on_token(token) is not False
            except BaseException as error:  # ctypes would print it and go on
                raised.append(error)
                return False

        at = self.state() if state is None else state
        call = _HEARD(heard)
        self._check(lib.carry_llm_generate(at._opened(), _address(row), row.size, byref(options), call, None))
        if raised:
            raise raised[0]
        return self.tokenizer.decode(made) if is_text else made

    def train_step(
        self,
        ids: Any,
        labels: Any = None,
        *,
        rate: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        decay: float = 0.0,
        clip: float = 1.0,
    ) -> float:
        """One step of AdamW over rows of tokens; the mean loss before it. The model was loaded with trains=True.

        labels: what each token should be followed by, -100 where nothing counts. None: the next token of the row.
        """
        rows = _tokens(ids, "ids", 2)
        if labels is None:
            wanted = np.full_like(rows, -100)
            wanted[:, :-1] = rows[:, 1:]
        else:
            wanted = _tokens(labels, "labels", 2)
            if wanted.shape != rows.shape:
                raise ValueError(f"labels have shape {wanted.shape} and ids {rows.shape}: they must be equal")
        batch = Batch(*rows.shape, _address(rows), _address(wanted), rate, *betas, eps, decay, clip)
        loss = c_double()
        self._check(lib.carry_llm_train_step(self._opened(), byref(batch), byref(loss)))
        return loss.value

    def save(self, folder: str | os.PathLike[str], dtype: str = "f32") -> None:
        """config.json and model.safetensors, as transformers and flash-linear-attention load them."""
        os.makedirs(folder, exist_ok=True)
        self._check(lib.carry_llm_save(self._opened(), os.fsencode(folder), _dtype(dtype)))


def load(
    folder: str | os.PathLike[str], *, dtype: str = "f32", device: str | int = "cpu", trains: bool = False
) -> Model:
    """Open a model's folder as Hugging Face has it: config.json and its safetensors files.

    The folder of a training run means its newest complete step. Files that differ from the checksums that `carry train`
    wrote beside them are refused.

    Args:
        dtype: what is computed in: f32, bf16 or f16.
        device: cpu, cuda or cuda:N.
        trains: the weights will be changed by `train_step`; otherwise 16-bit ones stay in the mapped files.
    """
    return Model(folder, dtype, device, trains)
