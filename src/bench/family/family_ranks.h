/* Shared by the families of problems for several ranks: opens and plans an instance, on ranks or only to describe
   the problem. */
#ifndef CARRY_LAB_FAMILY_RANKS_H
#define CARRY_LAB_FAMILY_RANKS_H

#include <stddef.h>

#include "carry/comm.h"
#include "carry/device.h"
#include "bench/family/family.h"

/* The first member of such an instance. */
typedef struct carry_ranks_instance {
    carry_ctx *ctx;
    carry_comm *comm;              /* the ranks */
    carry_comm *alone;             /* a communicator of one rank for a plan made without the ranks, or NULL */
    carry_stream *stream;          /* this rank's own stream on its GPU; NULL on the CPU */
    int device;                    /* device of the stream */
    char only[CARRY_PROBLEM_WORD]; /* the method named in the problem, or "" */
} carry_ranks_instance;

typedef struct carry_ranks_family {
    size_t bytes; /* size of an instance */
    /* Parses the problem and makes the inputs. Each rank does this alone, and the ranks agree on the status
       afterwards. */
    carry_status (*fill)(void *instance, carry_problem *problem, uint64_t seed, int copies);
    carry_status (*make_plan)(void *instance, const char *method); /* NULL: the planner's choice */
    void (*close)(void *instance);                                 /* frees `alone` too */
} carry_ranks_family;

/* The functions ranks, open, plan and only of a carry_family. */
int carry_ranks_family_size(carry_problem *problem);
carry_status carry_ranks_family_open(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, uint64_t seed, int copies);
carry_status carry_ranks_family_plan(const carry_ranks_family *family, carry_ctx *ctx, void **opened,
                                     carry_problem *problem, bool measure);
const char *carry_ranks_family_only(const void *instance);

/* As carry_problem_device, and also accepts device=gpus: one GPU per rank. CARRY_EUNSUPPORTED if there are fewer
   GPUs than ranks. */
carry_status carry_ranks_family_device(carry_ctx *ctx, int *device, carry_problem *problem);

/* Makes a stream for this rank and sets it in the context: on the default stream, ranks that are threads would wait
   for each other. */
carry_status carry_ranks_family_own_stream(carry_ranks_instance *it, int device);
void carry_ranks_family_end_stream(carry_ranks_instance *it);

/* Gives all ranks the worst value of each deviation. */
carry_status carry_ranks_family_worst(carry_comm *comm, carry_deviation *deviations, int count);

#endif
