/* The machine that a figure was measured on: facts by name, in a fixed order. */
#ifndef CARRY_LAB_MACHINE_H
#define CARRY_LAB_MACHINE_H

#include "carry/context.h"

#define CARRY_FACTS 40

typedef struct carry_fact {
    char name[32];
    char value[256];
} carry_fact;

/* CPU, caches, cores, memory, GPU and driver if there is one, system, compiler, flags, libraries and versions, the
   context's threads and kernels. Returns their number. */
int carry_machine_facts(carry_ctx *ctx, carry_fact facts[CARRY_FACTS]);

#endif
