/* What kill_ranks.sh disturbs: a rank that goes through every operation until one ends it. Says its process first and
   in the end what it was told, with the seconds since the operation that failed had begun.
   Usage: mpirun -n N ranks_worker DEADLINE */
#include "comm_support.h"

#include <unistd.h>

#include "core/clock.h"

enum { WIDE = 20000 }; /* floats: more than MPI sends before the receiver is there */

typedef struct worker {
    float data[WIDE], all[RANKS * 8];
    double began; /* the operation under way */
} worker;

static carry_status split_and_sum(worker *w, carry_comm *comm) {
    carry_comm *part;
    TRY(carry_comm_split(comm, &part, carry_comm_rank(comm) % 2, 0));
    const carry_status status = carry_all_reduce(part, w->data, 40, CARRY_REDUCE_F32, CARRY_REDUCE_MAX);
    carry_comm_free(part);
    return status;
}

static carry_status one(worker *w, carry_comm *comm, uint32_t which) {
    const int size = carry_comm_size(comm);
    switch (which % 8) {
    case 0:
        return carry_barrier(comm);
    case 1:
        return carry_broadcast(comm, w->data, sizeof w->data, (int)(which / 8 % (uint32_t)size));
    case 2:
        return carry_all_reduce(comm, w->data, WIDE, CARRY_REDUCE_F32, CARRY_REDUCE_MAX);
    case 3:
        return carry_all_gather(comm, w->all, w->data, 8);
    case 4:
        return carry_reduce_scatter(comm, w->data, w->all, 4, CARRY_REDUCE_F32, CARRY_REDUCE_MAX);
    case 5:
        return carry_all_to_all(comm, w->data, w->all, 4);
    case 6:
        return split_and_sum(w, comm);
    default:
        return ring(NULL, comm);
    }
}

static carry_status work(void *user, carry_comm *comm) {
    worker *w = user;
    (void)printf("rank %d is process %ld\n", carry_comm_rank(comm), (long)getpid());
    (void)fflush(stdout);
    for (uint64_t step = 0;; step++) {
        w->began = carry_seconds();
        TRY(one(w, comm, draw(3, 0, step)));
    }
}

int main(int count, char **arguments) {
    static worker w;
    char sentence[512];
    const double deadline = count > 1 ? strtod(arguments[1], NULL) : 2;
    if (!is_under_mpi() || carry_comm_kind_name(2, NULL) == NULL) {
        (void)fprintf(stderr, "ranks_worker: start it with mpirun, in a build with MPI\n");
        return 77;
    }
    const carry_status status = run_ranks(1, &(carry_comm_options){.deadline = deadline}, work, &w, sentence);
    (void)printf("told after %.3f s: %s: %s\n", carry_seconds() - w.began, carry_status_name(status), sentence);
    (void)fflush(stdout);
    return 1;
}
