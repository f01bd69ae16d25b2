/* Runs commands of a climb on another machine. */
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "lab/climb/climb_internal.h"

carry_status carry_climb_on(carry_climb *climb, const char *on) {
    carry_remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL) {
        return carry_fail(climb->ctx, CARRY_EMEMORY, "out of memory: %.60s", on);
    }
    carry_status status = carry_remote_of(climb->ctx, remote, on);
    status = status == CARRY_OK ? carry_remote_allocate(remote, 0) : status;
    if (status != CARRY_OK) {
        free(remote);
        return status;
    }
    climb->remote = remote;
    climb_tell(climb, "%s: %s, in %s", remote->host, remote->machine, remote->path);
    return CARRY_OK;
}

void climb_remote_close(carry_climb *climb) {
    if (climb->remote != NULL && carry_remote_free(climb->remote) != CARRY_OK) {
        carry_log(climb->ctx, CARRY_LOG_WARNING, "%s keeps %s: %s", climb->remote->host, climb->remote->path,
                  carry_ctx_error(climb->ctx));
    }
    free(climb->remote);
    climb->remote = NULL;
}

/* Each tree is copied once: the tests and the profile use the files that the build made there. */
carry_status climb_remote_shell(carry_climb *climb, carry_process_result *result, const char *folder,
                                const char *command, const char *const *environment, const carry_process *how) {
    const bool is_best = climb->best_folder[0] != '\0' && strcmp(folder, climb->best_folder) == 0;
    bool *there = is_best ? &climb->best_there : &climb->is_there;
    const char *name = is_best ? "best" : "tree";
    char prefix[1024];
    if (!*there) {
        climb_tell(climb, "copying %s to %s", folder, climb->remote->host);
        CARRY_TRY(carry_remote_sync(climb->remote, folder, name, NULL, prefix));
        *there = true;
    }
    return carry_remote_shell(climb->remote, result, name, command, environment, how);
}
