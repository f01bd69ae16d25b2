/* The worker of kill_ranks.sh: a rank that goes through every operation until one fails. It prints its process id
   first, and at the end its error, with the seconds since the failed operation began.
   Usage: mpirun -n N ranks_worker DEADLINE [gpu [KIND]]: with gpu, buffers are in memory of the first GPU, which all
   ranks share, and KIND moves them (ipc, staged; by default the first that works). Without mpirun: CARRY_MEET
   (kill_processes.py). */
#include "comm_support.h"

#include <unistd.h>

#include "comm/rates.h"
#include "core/clock.h"

enum {
    WIDE = 20000, /* floats: more than MPI sends before the receiver has arrived */
    HEADS = 2,
    KEY = 8,
    VALUE = 400
};

typedef struct buffers {
    float data[WIDE], all[RANKS * 8];
    float M[HEADS * KEY * KEY], L[HEADS * KEY * VALUE], state[HEADS * KEY * VALUE];
} buffers;

typedef struct worker {
    buffers *at; /* in memory of device */
    int device;
    const char *kind;
    double deadline; /* once all have started */
    double began;    /* the operation under way */
} worker;

/* Always in host memory: communicators of GPU memory cannot be split. */
static carry_status split_and_sum(carry_comm *comm) {
    carry_comm *part;
    float data[40] = {0};
    TRY(carry_comm_split(comm, &part, carry_comm_rank(comm) % 2, 0));
    const carry_status status = carry_all_reduce(part, data, 40, CARRY_F32, CARRY_REDUCE_MAX);
    carry_comm_close(part);
    return status;
}

/* Plans and runs a scan with each of the algorithms in turn. */
static carry_status scan(worker *w, carry_comm *comm, uint32_t which) {
    const carry_all_scan_problem problem = {.heads = HEADS, .key = KEY, .value = VALUE, .wire = CARRY_F32};
    const carry_all_scan_options options = {CARRY_INIT(carry_all_scan_options),
                                            .algorithm = carry_all_scan_name((int)(which % 4))};
    static const int64_t states[] = {HEADS, KEY, VALUE}, maps[] = {HEADS, KEY, KEY};
    const carry_all_scan_args args = {.state = carry_view_on(w->device, w->at->state, CARRY_F32, 3, states),
                                      .M = carry_view_on(w->device, w->at->M, CARRY_F32, 3, maps),
                                      .L = carry_view_on(w->device, w->at->L, CARRY_F32, 3, states)};
    carry_all_scan_plan *plan;
    TRY(carry_all_scan_plan_new(comm, &plan, &problem, &options));
    const size_t bytes = carry_all_scan_run_workspace(plan);
    void *workspace;
    TRY(carry_device_alloc(carry_comm_ctx(comm), &workspace, w->device, bytes));
    const carry_status status = carry_all_scan_run(plan, &args, workspace, bytes);
    carry_device_free(carry_comm_ctx(comm), w->device, workspace);
    carry_all_scan_plan_free(plan);
    return status;
}

static carry_status one(worker *w, carry_comm *comm, uint32_t which) {
    const int size = carry_comm_size(comm);
    buffers *at = w->at;
    switch (which % 10) {
    case 0:
        return carry_barrier(comm);
    case 1:
        return carry_broadcast(comm, at->data, sizeof at->data, (int)(which / 10 % (uint32_t)size));
    case 2:
        return carry_all_reduce(comm, at->data, WIDE, CARRY_F32, CARRY_REDUCE_MAX);
    case 3:
        return carry_all_gather(comm, at->all, at->data, 8);
    case 4:
        return carry_reduce_scatter(comm, at->data, at->all, 4, CARRY_F32, CARRY_REDUCE_MAX);
    case 5:
        return carry_all_to_all(comm, at->data, at->all, 4);
    case 6:
        return split_and_sum(carry_comm_host(comm));
    case 7:
        return ring(NULL, carry_comm_host(comm));
    default:
        return scan(w, comm, which / 10);
    }
}

static carry_status work_over(worker *w, carry_comm *comm) {
    const double deadline = carry_comm_deadline(comm);
    /* The planner measures this machine at its first plan, which takes seconds on a busy one and is not a wait for a
       rank. */
    TRY(carry_comm_set_deadline(comm, 60));
    TRY(carry_comm_set_deadline(carry_comm_host(comm), 60));
    TRY(scan(w, comm, 0));
    TRY(carry_comm_set_deadline(comm, deadline));
    TRY(carry_comm_set_deadline(carry_comm_host(comm), deadline));
    (void)printf("rank %d is process %ld\n", carry_comm_rank(comm), (long)getpid());
    (void)fflush(stdout);
    for (uint64_t step = 0;; step++) {
        w->began = carry_seconds();
        TRY(one(w, comm, draw(3, 0, step)));
    }
}

static carry_status work(void *user, carry_comm *comm) {
    worker *w = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_comm *gpus = NULL;
    const double deadline = w->deadline;
    TRY(carry_device_alloc(ctx, (void **)&w->at, w->device, sizeof *w->at));
    TRY(carry_device_fill(ctx, w->at, w->device, 0, sizeof *w->at, NULL));
    if (w->device > 0) {
        TRY(carry_comm_open_device(comm, &gpus, w->device, w->kind));
        TRY(carry_comm_set_deadline(gpus, deadline));
    }
    TRY(carry_comm_set_deadline(comm, deadline));
    const carry_status status = work_over(w, gpus != NULL ? gpus : comm);
    carry_comm_close(gpus);
    return status;
}

int main(int count, char **arguments) {
    static worker w;
    char message[512];
    w.deadline = count > 1 ? strtod(arguments[1], NULL) : 2;
    w.began = carry_seconds();
    w.device = count > 2 && strcmp(arguments[2], "gpu") == 0;
    w.kind = count > 3 ? arguments[3] : NULL;
    if (!is_under_mpi()) {
        (void)fprintf(stderr, "ranks_worker: start it with mpirun, in a build with MPI\n");
        return 77;
    }
    const carry_status status = run_ranks(1, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60},
                                          work, &w, message); /* many processes that start at once are slow */
    (void)printf("told after %.3f s: %s: %s\n", carry_seconds() - w.began, carry_status_name(status), message);
    (void)fflush(stdout);
    return 1;
}
