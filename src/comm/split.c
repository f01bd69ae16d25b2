/* Splitting: all ranks exchange colour and key, and each computes its part. A part has a group number, which is sent
   with the tag of every message (CARRY_GROUP_BITS). It is one above the highest that any of the ranks has used, so it
   is new to all of them. Parts of different colours share no rank and may share the number. */
#include <stdlib.h>

#include "comm/backend.h"
#include "core/error.h"

typedef struct entry {
    int64_t colour, key, rank, groups;
} entry;

static int by_key(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Moves entries of one colour to the front, in the order of their ranks, and returns their number. */
static int keep_colour(entry *all, int size, int64_t colour) {
    int kept = 0;
    for (int i = 0; i < size; i++) {
        if (all[i].colour == colour) {
            all[kept++] = all[i];
        }
    }
    return kept;
}

static carry_status make_part(carry_comm *comm, carry_comm **part, entry *all, int64_t colour) {
    int64_t group = 0;
    for (int i = 0; i < comm->size; i++) {
        group = all[i].groups > group ? all[i].groups : group;
    }
    if (++group >= 1 << CARRY_GROUP_BITS) {
        return carry_fail(comm->ctx, CARRY_ESIZE, "a communicator was split %d times: open a new one",
                          (1 << CARRY_GROUP_BITS) - 1);
    }
    comm->wire->groups = (int)group;
    if (colour < 0) {
        return CARRY_OK;
    }
    const int size = keep_colour(all, comm->size, colour);
    qsort(all, (size_t)size, sizeof *all, by_key);
    int rank = 0;
    while (all[rank].rank != comm->rank) {
        rank++;
    }
    CARRY_TRY(carry_comm_new(comm->ctx, part, comm->wire, rank, size, (int)group));
    (*part)->deadline = comm->deadline;
    (*part)->rates = comm->rates;
    for (int i = 0; i < size; i++) {
        (*part)->members[i] = comm->members[all[i].rank];
    }
    return CARRY_OK;
}

carry_status carry_comm_split(carry_comm *comm, carry_comm **part, int64_t colour, int64_t key) {
    *part = NULL;
    if (comm->wire->kind->on_gpu) {
        return carry_fail(comm->ctx, CARRY_EUNSUPPORTED,
                          "a communicator \"%s\" cannot be split: split the one that it was opened over, and open "
                          "another over the part",
                          comm->wire->kind->name);
    }
    const entry mine = {.colour = colour, .key = key, .rank = comm->rank, .groups = comm->wire->groups};
    entry *all = calloc((size_t)comm->size, sizeof *all);
    if (all == NULL) {
        const carry_status status =
            carry_fail(comm->ctx, CARRY_EMEMORY, "out of memory: splitting %d ranks", comm->size);
        carry_comm_abort(comm, carry_ctx_error(comm->ctx));
        return status;
    }
    carry_status status = carry_all_gather(comm, all, &mine, sizeof mine);
    if (status == CARRY_OK) {
        status = make_part(comm, part, all, colour);
    }
    free(all);
    return status;
}
