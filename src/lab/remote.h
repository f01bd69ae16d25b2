/* Another machine, reached by ssh: makes a folder there, copies a tree into it, runs commands, and copies files
   back.

   ssh resolves HOST (~/.ssh/config, or the file that CARRY_SSH_CONFIG names). Passwords are not asked for: a key or
   an agent is needed. The other machine needs sh, tar with gzip, and setsid. Commands are sent to its shell as a
   script on standard input, in which every word is quoted. */
#ifndef CARRY_LAB_REMOTE_H
#define CARRY_LAB_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "lab/process.h"

#define CARRY_REMOTE_HOST 80
#define CARRY_REMOTE_PATH 64

typedef struct carry_remote {
    carry_ctx *ctx;
    char host[CARRY_REMOTE_HOST];
    char path[CARRY_REMOTE_PATH]; /* of the folder, relative to the remote home folder: .carry/jobs/3-aB3dEf */
    char machine[32];             /* the output of uname -m there */
} carry_remote;

/* Parses "ssh:HOST". CARRY_EARGUMENT for a host that ssh could take for an option, or with invalid characters. */
carry_status carry_remote_of(carry_ctx *ctx, carry_remote *remote, const char *text);
/* True if path has the form that carry_remote_allocate gives a folder of this number: .carry/jobs/NUMBER- and six
   letters or digits. */
bool carry_remote_is_folder(const char *path, int64_t number);
/* Makes a new remote folder whose name begins with this number. CARRY_EIO with ssh's message if the host cannot be
   reached. */
carry_status carry_remote_allocate(carry_remote *remote, int64_t number);
/* Copies files into PATH/name, which is emptied first. If `folder` is in a git repository, copies that repository's
   files that git tracks or does not ignore; otherwise all of the folder. Also copies `program`, a path inside it,
   even if git ignores it (NULL: none). prefix receives the position of `folder` below the copy's root: "" or
   "sub/folder/". */
carry_status carry_remote_sync(carry_remote *remote, const char *folder, const char *name, const char *program,
                               char prefix[1024]);
/* Runs a script with sh in the remote home folder. The result is as for carry_process_run. CARRY_EIO when ssh itself
   failed: the host could not be reached, or the connection was lost; CARRY_ETIMEOUT after `seconds`; CARRY_EINTERRUPTED
   when `stop` returned true. */
carry_status carry_remote_run(carry_remote *remote, carry_process_result *result, const char *script, size_t limit,
                              double seconds, bool (*stop)(void));
/* Runs `sh -c command` in the remote PATH/name, with settings (NAME=VALUE) in its environment. A timeout is a
   result, as for carry_process_run. After a timeout, or when `stop` returned true, the remote processes are ended. */
carry_status carry_remote_shell(carry_remote *remote, carry_process_result *result, const char *name,
                                const char *command, const char *const *settings, const carry_process *how);
/* Ends the process group whose number is in PATH/pid: SIGTERM, then SIGKILL after five seconds. */
carry_status carry_remote_end(carry_remote *remote);
/* Runs the script and unpacks its output, a gzipped tar, into a new local folder. */
carry_status carry_remote_fetch(carry_remote *remote, const char *script, const char *folder);
/* Removes the folder there. */
carry_status carry_remote_free(carry_remote *remote);

/* CARRY_EUNSUPPORTED when `program` is an executable for another processor than the remote's. */
carry_status carry_remote_check_program(const carry_remote *remote, const char *program);

#endif
