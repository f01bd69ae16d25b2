/* The problem grammar: family[:word]...[:letters number]...[:key=value]..., in any order after the family.

       scan:diagonal:f32:b64:t256:n16:w64
       scan:dense:f16:t4096:n64:w1:algo=cyclic
       allreduce:bf16:2160x5120:p2              2160x5120 is shape=2160x5120

   One parser serves check, bench, plan and experiments. It knows the syntax only; a family asks for each word, size and
   key that it has, and carry_problem_finish refuses items that were not asked for. */
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
    int64_t number;                 /* of a size, else -1 */
    bool asked;
} carry_problem_item;

typedef struct carry_problem {
    char text[CARRY_PROBLEM_TEXT];
    char family[CARRY_PROBLEM_WORD];
    int items;
    carry_problem_item item[CARRY_PROBLEM_ITEMS];
    struct carry_comm *comm; /* the ranks that work on it together (collective.h); the parser leaves NULL */
} carry_problem;

carry_status carry_problem_parse(carry_ctx *ctx, carry_problem *problem, const char *text);

/* Each marks the item that it finds as asked for. */
bool carry_problem_has(carry_problem *problem, const char *word);
int64_t carry_problem_size(carry_problem *problem, const char *letters, int64_t otherwise);
const char *carry_problem_setting(carry_problem *problem, const char *key); /* NULL when absent */

/* The type that one of its words names. */
carry_dtype carry_problem_type(const carry_problem *problem, carry_dtype otherwise);

/* The element type among f32 to last (bf16, or f16) that the problem names, which counts as asked for; f32 when it
   names none. CARRY_EARGUMENT when it names several. */
carry_status carry_problem_dtype(carry_ctx *ctx, carry_dtype *dtype, carry_problem *problem, carry_dtype last);

/* device=cpu, cuda, cuda1...: as carry/device.h counts; the CPU when nothing is said. CARRY_EUNSUPPORTED when there is
   none of that kind here. */
carry_status carry_problem_device(carry_ctx *ctx, int *device, carry_problem *problem);

/* Refuses an item that looks like a misspelling of one in takes ("dens"): called before a family parses the problem,
   whose message would name a missing item instead. */
carry_status carry_problem_check(carry_ctx *ctx, const carry_problem *problem, const char *takes);

/* Fails for the first item that was not asked for; takes lists the items of the family, for the message. */
carry_status carry_problem_finish(carry_ctx *ctx, const carry_problem *problem, const char *takes);

#endif
