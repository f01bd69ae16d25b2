"""Tokenizers from Python: ids and texts, decoding token by token, texts of models."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import libcarry
from libcarry import tokenizer as module
from test_model import write

HEADER = Path(__file__).resolve().parents[3] / "include" / "carry" / "tokenizer.h"
START, END = 256, 257


def alphabet() -> list[str]:
    """The characters that stand for the bytes in tokenizer.json, as GPT-2 has them."""
    same = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in same else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """One token for each byte, and <s> before a text."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    made = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "decoder": level,
        "added_tokens": [{"id": START, "content": "<s>", **special}, {"id": END, "content": "</s>", **special}],
        "post_processor": {
            "type": "TemplateProcessing", "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [START], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {name: number for number, name in enumerate(alphabet())}, "merges": [],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def test_texts_become_ids_and_texts_again(folder: Path) -> None:
    for path in (folder, str(folder), folder / "tokenizer.json"):
        tokenizer = libcarry.Tokenizer(path)
        for text in ("", "a", "Grüße, 世界 🙂\n", "a\0b", "x" * 5000):
            data = [*text.encode()]
            assert tokenizer.encode(text) == [START, *data]
            assert tokenizer.encode(text, add_special_tokens=False) == data
            assert tokenizer.encode(text, is_continuation=True) == data
            assert tokenizer.decode([START, *data, END]) == text
            assert tokenizer.decode([START, *data], skip_special_tokens=False) == "<s>" + text
    assert len(tokenizer) == 258 and tokenizer.eos_token_id == END
    assert tokenizer.token_to_id("</s>") == END and tokenizer.token_to_id("<pad>") is None
    assert tokenizer.is_special(END) and not tokenizer.is_special(65) and not tokenizer.is_special(9999)
    assert tokenizer.encode("a</s>", add_special_tokens=False) == [97, END]
    assert tokenizer.encode("</s>", add_special_tokens=False, specials_as_text=True) == [*b"</s>"]


def test_incomplete_characters_are_held_back(folder: Path) -> None:
    decoder = libcarry.Tokenizer(folder).decoder()
    pieces = [decoder.put(id) for id in [START, *"é🙂".encode()]]
    assert pieces == ["", "", "é", "", "", "", "🙂"]
    assert decoder.put(0xE2) == "" and decoder.end() == "\ufffd" and decoder.end() == ""
    assert decoder.put(0) == "\0"
    assert decoder.put(0xFF) == "\ufffd" and decoder.put(65) == "A"
    with pytest.raises(RuntimeError, match="token 300"):
        decoder.put(300)


def test_mistakes_are_named(folder: Path) -> None:
    tokenizer = libcarry.Tokenizer(folder)
    for ids in ([258], [-1]):
        with pytest.raises(RuntimeError, match=f"token {ids[0]}"):
            tokenizer.decode(ids)
    with pytest.raises((RuntimeError, ValueError), match="nowhere"):
        libcarry.Tokenizer(folder / "nowhere")
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(NotImplementedError, match="SentencePiece"):
        libcarry.Tokenizer(folder / "tokenizer.model")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer.json"):
        libcarry.Tokenizer(folder)


def test_threads_share_a_tokenizer(folder: Path) -> None:
    tokenizer, found = libcarry.Tokenizer(folder), []
    threads = [threading.Thread(target=lambda: found.append(tokenizer.encode("abc" * 100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tokenizer.encode("abc" * 100)] * 4


def test_models_read_text(folder: Path, rng: np.random.Generator) -> None:
    write(folder, rng, vocabulary=258)
    model = libcarry.load(folder)
    state = model.state()
    assert np.array_equal(state.read("ab"), model.state().read([START, 97, 98])) and len(state) == 3
    state.read("c")  # a text that goes on has no second start token
    assert len(state) == 4
    assert np.array_equal(model.logits("ab"), model.logits([START, 97, 98]))
    text = model.generate("ab", 5, temperature=0, eos_token_id=())
    assert text == model.tokenizer.decode(model.generate([START, 97, 98], 5, temperature=0, eos_token_id=()))


@pytest.mark.skipif(not HEADER.exists(), reason="the headers are not here: this is not a checkout")
def test_declarations_are_the_headers(tmp_path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    declared = dict(re.findall(r"CARRY_API [^;(]*?(\w+)\(([^;]*)\);", text))
    assert declared.keys() == module.PROTOTYPES.keys()
    for name, (_, arguments) in module.PROTOTYPES.items():
        assert len(arguments) == declared[name].count(",") + 1, name
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to ask for sizes and offsets")
    fields = [field for field, *_ in module.EncodeOptions._fields_]
    lines = [f'printf("%zu\\n", offsetof(carry_encode_options, {field}));' for field in fields]
    lines.append('printf("%zu\\n", sizeof(carry_encode_options));')
    expected = [*(getattr(module.EncodeOptions, field).offset for field in fields), ctypes.sizeof(module.EncodeOptions)]
    source = tmp_path / "layout.c"
    source.write_text("#include <stdio.h>\n#include <carry/tokenizer.h>\nint main(void) {" + "\n".join(lines) + "}\n")
    subprocess.run([compiler, f"-I{HEADER.parents[1]}", str(source), "-o", str(tmp_path / "layout")], check=True)
    found = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.split()
    assert [int(number) for number in found] == expected
