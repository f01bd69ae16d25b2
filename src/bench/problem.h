/* The problem grammar: family[:word]...[:letters number]...[:key=value]..., in any order after the family.

       scan:diagonal:f32:b64:t256:n16:w64
       scan:dense:f16:t4096:n64:w1:algo=cyclic
       allreduce:bf16:2160x5120:p2              2160x5120 is shape=2160x5120

   One parser serves check, bench, plan and experiments. It knows the syntax only. A family requests each word, size
   and key that it supports, and carry_problem_finish refuses items that were not requested. */
#ifndef CARRY_LAB_PROBLEM_H
#define CARRY_LAB_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "carry/tensor.h"

#define CARRY_PROBLEM_TEXT 256
#define CARRY_PROBLEM_ITEMS 24
#define CARRY_PROBLEM_WORD 40

typedef struct carry_problem_item {
    char key[CARRY_PROBLEM_WORD];   /* the word, the letters of a size, or the text before = */
    char value[CARRY_PROBLEM_WORD]; /* the text after =, else "" */
    int64_t number;                 /* number of a size, else -1 */
    bool asked;
} carry_problem_item;

typedef struct carry_problem {
    char text[CARRY_PROBLEM_TEXT];
    char family[CARRY_PROBLEM_WORD];
    int items;
    carry_problem_item item[CARRY_PROBLEM_ITEMS];
    struct carry_comm *comm; /* the ranks that solve it together (collective.h); the parser sets NULL */
} carry_problem;

carry_status carry_problem_parse(carry_ctx *ctx, carry_problem *problem, const char *text);

/* Each function marks the item that it finds as requested. */
bool carry_problem_has(carry_problem *problem, const char *word);
int64_t carry_problem_size(carry_problem *problem, const char *letters, int64_t otherwise);
const char *carry_problem_setting(carry_problem *problem, const char *key); /* NULL when absent */

/* The type that one of the problem's words names, else `otherwise`. */
carry_dtype carry_problem_type(const carry_problem *problem, carry_dtype otherwise);

/* The element type from f32 up to `last` (bf16 or f16) that the problem names, and marks it as requested; f32 if it
   names none. CARRY_EARGUMENT if it names several. */
carry_status carry_problem_dtype(carry_ctx *ctx, carry_dtype *dtype, carry_problem *problem, carry_dtype last);

/* Parses device=cpu, cuda, cuda1, ..., numbered as in carry/device.h; the CPU if it is missing. CARRY_EUNSUPPORTED
   if this machine lacks the device. */
carry_status carry_problem_device(carry_ctx *ctx, int *device, carry_problem *problem);

/* Refuses an item that looks like a misspelling of one in `takes` ("dens"). Called before a family parses the
   problem, since the family would report a missing item instead. */
carry_status carry_problem_check(carry_ctx *ctx, const carry_problem *problem, const char *takes);

/* Refuses the first item that was not requested. takes: the family's items, for the message. */
carry_status carry_problem_finish(carry_ctx *ctx, const carry_problem *problem, const char *takes);

#endif
