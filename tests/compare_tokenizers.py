#!/usr/bin/env python3
"""Compares `carry tokenizer` with the `tokenizers` package: every kind of make_tokenizers.py, every character of Unicode and
random texts.    compare_tokenizers.py CARRY [SEED]      Exit 77 where the package is missing."""

import json
import os
import random
import subprocess
import sys
import tempfile

import make_tokenizers

try:
    import tokenizers
except ImportError:
    print("skipped: the package tokenizers is not installed")
    sys.exit(77)


def run(carry, *arguments):
    return subprocess.run([carry, "tokenizer", *arguments], check=True, stdout=subprocess.PIPE).stdout


def every_character():
    """All characters in blocks, separated by spaces, or by letters and digits. They are not adjacent, because the package's
    NFC orders marks by an older edition of Unicode than ours."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 16384):
        block = [chr(code) for code in codes[start : start + 16384]]
        yield " ".join(block)
        yield "".join("a" + one + "1" for one in block)


def random_text(draw):
    scraps = ["the ", " and", "\n", "  ", "\r\n", "'s", "'Ll", "3", "12345", "\u00e9", "e\u0301", "\u6f22", "\U0001f642", "\u200d", "\u0301", "<s>", "</s>", "<|im_end|>", "<think>",
              "\u2581", "\t", "\u3000", ".", "?!", "\u0627", "\u093e", "X", "\x00", "\u1100", "\u1161", "\u11a8", "<0x41>", "|||EMAIL|||", "w" * 500, " " * 40]
    text = "".join(draw.choice(scraps) if draw.random() < 0.8 else chr(draw.choice([draw.randrange(0x300, 0x3000), draw.randrange(0x1F000, 0x1FB00), draw.randrange(0x10000, 0x1E000)])) for _ in range(draw.randrange(60)))
    return text


def main(carry, seed):
    draw = random.Random(seed)
    texts = make_tokenizers.texts() + [random_text(draw) for _ in range(200)] + ["x" * 100000, "na\u00efve " * 10000]
    some = len(texts)
    texts += list(every_character())
    sample = make_tokenizers.texts()[:40] * 3
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, text in enumerate(texts):
            files.append(os.path.join(folder, "%d.txt" % number))
            with open(files[-1], "wb") as out:
                out.write(text.encode())
        for kind in make_tokenizers.KINDS:
            path = os.path.join(folder, kind + ".json")
            made = json.dumps(make_tokenizers.build(tokenizers, kind, sample))
            with open(path, "w", encoding="utf-8") as out:
                out.write(made)
            theirs = tokenizers.Tokenizer.from_str(made)
            seen = subprocess.run([carry, "tokenizer", "show", path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            if b"built without utf8proc" in seen.stderr:
                print("%-10s skipped: built without utf8proc" % kind)
                continue
            count = len(texts) if kind in ("qwen3_5", "gpt4o", "digits", "llama2") else some
            ours = run(carry, "encode", path, *files[:count]).decode().split("\n")
            bad = [number for number, text in enumerate(texts[:count]) if list(map(int, ours[number].split())) != theirs.encode(text).ids]
            for number in range(0, 100, 7):
                ids = theirs.encode(texts[number]).ids
                if ids and run(carry, "decode", path, "--keep-special", *map(str, ids)).decode() != theirs.decode(ids, skip_special_tokens=False):
                    bad.append(-number)
            print("%-10s %d texts, %d differ %s" % (kind, count, len(bad), bad[:8]), flush=True)
            wrong += len(bad)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1))
