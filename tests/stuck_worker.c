/* A rank whose MPI does not return: rank 1 stays in MPI_Testsome or MPI_Isend after some calls, as Open MPI can after
   the death of a peer. Run by stuck_rank.sh. Usage: mpirun -n N stuck_worker DEADLINE testsome|isend */
#include "comm_support.h"

#include <mpi.h>
#include <stdbool.h>
#include <unistd.h>

enum { CALLS = 100 };

static bool is_stuck_in_isend;
static int calls; /* calls of the function in question by rank 1 */

static void stay(void) {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    calls += rank == 1;
    while (calls > CALLS) {
        (void)sleep(1);
    }
}

int MPI_Testsome(int count, MPI_Request *requests, int *done, int *index, MPI_Status *status) {
    if (!is_stuck_in_isend) {
        stay();
    }
    return PMPI_Testsome(count, requests, done, index, status);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    if (is_stuck_in_isend) {
        stay();
    }
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

static carry_status work(void *user, carry_comm *comm) {
    int64_t data[8] = {0};
    (void)user;
    for (;;) {
        TRY(carry_all_reduce(comm, data, 8, CARRY_I64, CARRY_REDUCE_MAX));
    }
}

int main(int count, char **arguments) {
    char message[512];
    if (!is_under_mpi()) {
        (void)fprintf(stderr, "stuck_worker: start it with mpirun\n");
        return 77;
    }
    is_stuck_in_isend = count > 2 && strcmp(arguments[2], "isend") == 0;
    const double deadline = count > 1 ? strtod(arguments[1], NULL) : 2;
    const carry_status status =
        run_ranks(1, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = deadline}, work, NULL, message);
    (void)printf("told: %s: %s\n", carry_status_name(status), message);
    (void)fflush(stdout);
    return 1;
}
