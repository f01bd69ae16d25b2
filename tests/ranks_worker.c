/* What kill_ranks.sh disturbs: a rank that goes through every operation until one ends it. Says its process first and
   in the end what it was told, with the seconds since the operation that failed had begun.
   Usage: mpirun -n N ranks_worker DEADLINE */
#include "comm_support.h"

#include <unistd.h>

#include "core/clock.h"

enum {
    WIDE = 20000, /* floats: more than MPI sends before the receiver is there */
    HEADS = 2,
    KEY = 8,
    VALUE = 400
};

typedef struct worker {
    float data[WIDE], all[RANKS * 8];
    float M[HEADS * KEY * KEY], L[HEADS * KEY * VALUE], state[HEADS * KEY * VALUE];
    double began; /* the operation under way */
} worker;

static carry_status split_and_sum(worker *w, carry_comm *comm) {
    carry_comm *part;
    TRY(carry_comm_split(comm, &part, carry_comm_rank(comm) % 2, 0));
    const carry_status status = carry_all_reduce(part, w->data, 40, CARRY_REDUCE_F32, CARRY_REDUCE_MAX);
    carry_comm_free(part);
    return status;
}

/* A plan and a scan with each of the algorithms in turn. */
static carry_status scan(worker *w, carry_comm *comm, uint32_t which) {
    const carry_all_scan_problem problem = {.heads = HEADS, .key = KEY, .value = VALUE, .wire = CARRY_F32};
    const carry_all_scan_options options = {.algorithm = carry_all_scan_name((int)(which % 4))};
    const carry_all_scan_args args = {.state = carry_view_3d(w->state, CARRY_F32, HEADS, KEY, VALUE),
                                      .M = carry_view_3d(w->M, CARRY_F32, HEADS, KEY, KEY),
                                      .L = carry_view_3d(w->L, CARRY_F32, HEADS, KEY, VALUE)};
    carry_all_scan_plan *plan;
    TRY(carry_all_scan_plan_new(comm, &plan, &problem, &options));
    const size_t bytes = carry_all_scan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    const carry_status status = carry_all_scan_run(plan, &args, workspace, bytes);
    free(workspace);
    carry_all_scan_plan_free(plan);
    return status;
}

static carry_status one(worker *w, carry_comm *comm, uint32_t which) {
    const int size = carry_comm_size(comm);
    switch (which % 10) {
    case 0:
        return carry_barrier(comm);
    case 1:
        return carry_broadcast(comm, w->data, sizeof w->data, (int)(which / 10 % (uint32_t)size));
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
    case 7:
        return ring(NULL, comm);
    default:
        return scan(w, comm, which / 10);
    }
}

static carry_status work(void *user, carry_comm *comm) {
    worker *w = user;
    const double deadline = carry_comm_deadline(comm);
    /* The planner measures this machine at its first plan, for seconds on a busy one: that is no wait for a rank. */
    TRY(carry_comm_set_deadline(comm, 60));
    TRY(scan(w, comm, 0));
    TRY(carry_comm_set_deadline(comm, deadline));
    (void)printf("rank %d is process %ld\n", carry_comm_rank(comm), (long)getpid());
    (void)fflush(stdout);
    for (uint64_t step = 0;; step++) {
        w->began = carry_seconds();
        TRY(one(w, comm, draw(3, 0, step)));
    }
}

int main(int count, char **arguments) {
    static worker w;
    char message[512];
    const double deadline = count > 1 ? strtod(arguments[1], NULL) : 2;
    if (!is_under_mpi() || carry_comm_kind_name(2, NULL) == NULL) {
        (void)fprintf(stderr, "ranks_worker: start it with mpirun, in a build with MPI\n");
        return 77;
    }
    const carry_status status = run_ranks(1, &(carry_comm_options){.deadline = deadline}, work, &w, message);
    (void)printf("told after %.3f s: %s: %s\n", carry_seconds() - w.began, carry_status_name(status), message);
    (void)fflush(stdout);
    return 1;
}
