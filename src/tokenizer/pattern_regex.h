/* Translates the regular expressions of tokenizer.json for PCRE2. `tokenizers` matches them with Oniguruma in Ruby's
   syntax, over the whole of Unicode 16. Constructs with the same meaning in both are copied; character classes are
   spelt out where PCRE2's differ; anything else (anchors, look-behind, back-references, \w, nested classes, ...) is
   refused with an error that names it. */
#ifndef CARRY_PATTERN_REGEX_H
#define CARRY_PATTERN_REGEX_H

#include <stddef.h>

#include "carry/context.h"

/* For use within brackets: White_Space, letters, digits and marks. The lists include characters that Unicode 15 and 16
   added, which older versions of PCRE2 do not know and `tokenizers` 0.23 does. */
#define CARRY_REGEX_SPACE "\\t-\\r\\x{85}\\p{Z}"
#define CARRY_REGEX_LETTERS                                                                               \
    "\\p{L}"                                                                                              \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}" \
    "\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}"      \
    "\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}"        \
    "\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"      \
    "\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"       \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"                 \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define CARRY_REGEX_DIGITS                                                                 \
    "\\p{N}"                                                                               \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define CARRY_REGEX_MARKS                                                                 \
    "\\p{M}"                                                                              \
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"        \
    "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}" \
    "\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}" \
    "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}" \
    "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"

#define CARRY_REGEX_BYTES 2048 /* largest size of an expression */

/* The caller frees *translated, which ends with a NUL. name is the file name, for messages. */
carry_status carry_regex_translate(carry_ctx *ctx, char **translated, const char *regex, size_t length,
                                   const char *name);

#endif
