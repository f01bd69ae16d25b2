/* What families of problems for several ranks share: opening and planning an instance, on ranks or only to describe
   the problem. */
#ifndef CARRY_LAB_FAMILY_RANKS_H
#define CARRY_LAB_FAMILY_RANKS_H

#include <stddef.h>

#include "carry/comm.h"
#include "bench/family/family.h"

/* The first member of such an instance. */
typedef struct carry_ranks_instance {
    carry_ctx *ctx;
    carry_comm *comm;              /* the ranks */
    carry_comm *alone;             /* one for a plan that is made without them, or NULL */
    char only[CARRY_PROBLEM_WORD]; /* the method that the problem asks for, or "" */
} carry_ranks_instance;

typedef struct carry_ranks_family {
    size_t bytes; /* of an instance */
    /* Parses the problem and makes the inputs. This rank's own work: the ranks agree afterwards. */
    carry_status (*fill)(void *instance, carry_problem *problem, uint64_t seed, int copies);
    carry_status (*make_plan)(void *instance, const char *method); /* NULL: the planner's choice */
    void (*close)(void *instance);                                 /* frees `alone` too */
} carry_ranks_family;

/* ranks, open, plan and only of a carry_family. */
int carry_ranks_family_size(carry_problem *problem);
carry_status carry_ranks_family_open(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, uint64_t seed, int copies);
carry_status carry_ranks_family_plan(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, bool measure);
const char *carry_ranks_family_only(const void *instance);

/* Of every deviation the worst that any rank has, told to all. */
carry_status carry_ranks_family_worst(carry_comm *comm, carry_deviation *deviations, int count);

#endif
