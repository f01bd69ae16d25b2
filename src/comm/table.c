/* The list of communicator kinds. */
#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"

static const carry_comm_kind *const kinds[] = {
    &carry_comm_self,      &carry_comm_kind_threads,
#ifdef CARRY_HAVE_MPI
    &carry_comm_mpi,
#endif
    &carry_comm_processes, &carry_comm_peer,         &carry_comm_ipc, &carry_comm_aware, &carry_comm_staged,
#ifdef CARRY_HAVE_NCCL
    &carry_comm_nccl,
#endif
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

const carry_comm_kind *carry_comm_find(const char *name) {
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i]->name, name) == 0) {
            return kinds[i];
        }
    }
    return NULL;
}

const char *carry_comm_names(carry_ctx *ctx) {
    size_t used = 0;
    for (int i = 0; i < KINDS; i++) {
        used += (size_t)snprintf(ctx->line + used, sizeof ctx->line - used, "%s%s", i > 0 ? ", " : "", kinds[i]->name);
    }
    return ctx->line;
}

const char *carry_comm_kind_name(int index) {
    return index < 0 || index >= KINDS ? NULL : kinds[index]->name;
}

const char *carry_comm_kind_about(int index) {
    return index < 0 || index >= KINDS ? NULL : kinds[index]->about;
}
