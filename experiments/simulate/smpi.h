/* What SimGrid's MPI lacks; included before every file that tools/simulate compiles. */
#ifndef CARRY_SIMULATE_SMPI_H
#define CARRY_SIMULATE_SMPI_H

#include <mpi.h>

static inline int carry_smpi_comm_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request) {
    const int code = MPI_Comm_dup(comm, copy);
    return code == MPI_SUCCESS ? MPI_Ibarrier(*copy, request) : code; /* a request that can be waited for */
}

#define MPI_Comm_idup carry_smpi_comm_idup

#endif
