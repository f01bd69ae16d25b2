#!/usr/bin/env python3
"""CUDA C++ to C++ for the emulated runtime: translate.py FROM TO.

Launches become emulate::launch, dynamic shared memory a pointer, and assembly statements the functions of emulate.h by
what their text says. Line numbers are kept, so that messages of the compiler point into the source."""
import re
import sys


def closing(text, at, opens, closes):
    """The position after the bracket that closes the one at `at`."""
    depth = 0
    while at < len(text):
        if text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif text.startswith(opens, at):
            depth += 1
        elif text.startswith(closes, at):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise SystemExit(f"no {closes} for a {opens}")


def callee_before(text, at):
    """The start of the kernel's name, with template arguments, that ends before `at`."""
    end = at
    while text[end - 1].isspace():
        end -= 1
    begin = end
    if text[begin - 1] == ">":
        depth = 0
        while True:
            begin -= 1
            depth += {">": 1, "<": -1}.get(text[begin], 0)
            if depth == 0:
                break
    while re.match(r"[\w:.>-]", text[begin - 1]) and text[begin - 2:begin] != "> ":
        begin -= 1
    return begin, end


def launches(text):
    while (at := text.find("<<<")) >= 0:
        begin, end = callee_before(text, at)
        close = text.index(">>>", at)
        open_arguments = text.index("(", close)
        after = closing(text, open_arguments, "(", ")")
        kernel, config, arguments = text[begin:end], text[at + 3:close], text[open_arguments + 1:after - 1]
        arguments = re.sub(r"\bNULL\b", "nullptr", arguments)
        comma = ", " if arguments.strip() else ""
        name = kernel.split("<")[0]
        text = (text[:begin] + f'emulate::launch(emulate::config({config}), "{name}", '
                f"[=](auto... v_) {{ {kernel}(v_...); }}{comma}{arguments})" + text[after:])
    return text


# The first words of an instruction, and the call: {o} are the outputs, {i} the inputs.
ASSEMBLY = [
    (r"$", "(void)0"),
    (r"cp\.async\.cg\.shared\.global", "emulate::copy_16({i})"),
    (r"cp\.async\.(commit_group|wait_group|wait_all)", "(void)0"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans", "emulate::load_blocks({o}, {i}, true)"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared", "emulate::load_blocks({o}, {i}, false)"),
    (r"cvt\.rna\.tf32\.f32", "{o} = emulate::tf32_of({i})"),
    (r"cvt\.rn\.bf16x2\.f32", "{o} = emulate::pack_bf16({i1}, {i0})"),
    (r"cvt\.rn\.satfinite\.e4m3x2\.f32", "{o} = fp8_code_of({i1}, false) | fp8_code_of({i0}, false) << 8"),
    (r"cvt\.rn\.satfinite\.e5m2x2\.f32", "{o} = fp8_code_of({i1}, true) | fp8_code_of({i0}, true) << 8"),
    (r"cvt\.rn\.f16x2\.e4m3x2", "(void)0"),  # only for GPUs that have it: the emulated one takes the other branch
    (r"ex2\.approx\.ftz\.f32", "{o} = exp2f({i})"),
    (r"rcp\.approx\.ftz\.f32", "{o} = 1.0f / ({i})"),
    (r"ld\.acquire\.gpu\.global\.u32", "{o} = *({i})"),
    (r"st\.release\.gpu\.global\.u32", "*({i0}) = {i1}"),
    (r"ld\.global\.[\w.:]+\.v4\.u32", "emulate::load_16({o}, {i})"),
    (r"\{ \.reg \.pred p; setp\.ne\.s32 p, %2, 0; @p ld\.global\.cg\.f32", "if ({i1}) {o} = *({i0})"),
    (r"\{ \.reg \.b16 x, y; mov\.b32 .* cvt\.rn\.f16x2\.e4m3x2", "(void)0"),  # likewise
    (r"movmatrix\.sync\.aligned\.m8n8\.trans", "{o} = emulate::transpose_block({i})"),
    (r"griddepcontrol\.", "(void)0"),  # kernels run one after another
]


def operands(part):
    found = []
    at = 0
    while (at := part.find("(", at)) >= 0:
        after = closing(part, at, "(", ")")
        found.append(part[at + 1:after - 1])
        at = after
    return found


def product(code, o, i):
    function = "multiply_tf32" if "tf32" in code else "multiply_16"
    kind = "" if "tf32" in code else ", true" if "bf16" in code else ", false"
    c = i[6:10] if len(i) == 10 else o
    return (f"{{ float d_[4]; const unsigned a_[4] = {{{', '.join(i[:4])}}}, b_[2] = {{{', '.join(i[4:6])}}}; "
            f"const float c_[4] = {{{', '.join(c)}}}; emulate::{function}(d_, a_, b_, c_{kind}); "
            + "".join(f"{o[k]} = d_[{k}]; " for k in range(4)) + "}")


def assembly(text):
    for found in reversed(list(re.finditer(r"\basm\b\s*(volatile)?\s*\(", text))):
        after = closing(text, found.end() - 1, "(", ")")
        inside = text[found.end():after - 1]
        code = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.match(r'(\s*"(?:[^"\\]|\\.)*"\s*)+', inside).group(0)))
        parts, depth, start, quoted = [], 0, 0, False
        for at, c in enumerate(inside):
            depth += {"(": 1, ")": -1}.get(c, 0)
            quoted ^= c == '"'
            if c == ":" and depth == 0 and not quoted and inside[at - 1:at + 1] != "(:":
                parts.append(inside[start:at])
                start = at + 1
        parts.append(inside[start:])
        o = operands(parts[1]) if len(parts) > 1 else []
        i = operands(parts[2]) if len(parts) > 2 else []
        if code.startswith("mma.sync"):
            call = product(code, o, i)
        else:
            call = next((c for words, c in ASSEMBLY if re.match(words, code)), None)
            if call is None:
                raise SystemExit(f"an instruction that is not emulated: {code}")
            call = call.format(o=", ".join(o), i=", ".join(i), **{f"i{k}": v for k, v in enumerate(i)})
        lines = text[found.start():after].count("\n") - call.count("\n")
        text = text[:found.start()] + call + "\n" * lines + text[after:]
    return text


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1 *\2 = (\1 *)emulate::dynamic_shared();", text)
    text = re.sub(r'(#include ".*)\.cu"', r'\1.cpp"', text)
    text = re.sub(r"\.(gridDim|blockDim)\b", r".\1_", text)  # members of cudaLaunchConfig_t
    text = assembly(launches(text))
    with open(target, "w", encoding="utf-8") as f:
        f.write(f'#line 1 "{source}"\n{text}')


main()
