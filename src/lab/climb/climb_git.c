/* The climb's calls of git. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "lab/climb/climb_internal.h"

#define MOST_WORDS 40
#define GIT_SECONDS 300.0
#define GIT_BYTES ((size_t)32 << 20)

static void first_line(char *to, size_t size, const char *text) {
    (void)snprintf(to, size, "%.*s", (int)strcspn(text, "\n"), text);
}

/* Removes git's variables from the environment: if git itself runs this program (a hook, rebase --exec), its index
   must not be used. */
static carry_status run_git(carry_climb *climb, carry_process_result *result, const climb_git_call *call) {
    char index[sizeof climb->index + 32];
    const char *words[MOST_WORDS] = {"env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "LC_ALL=C"};
    int count = 8;
    if (call->own_index) {
        (void)snprintf(index, sizeof index, "GIT_INDEX_FILE=%s", climb->index);
        words[count++] = index;
    }
    words[count++] = "git";
    words[count++] = "-c";
    words[count++] = "core.quotePath=false";
    for (int i = 0; call->words[i] != NULL && count < MOST_WORDS - 1; i++) {
        words[count++] = call->words[i];
    }
    CARRY_TRY(carry_process_run(climb->ctx, result,
                                &(carry_process){.arguments = words,
                                                 .folder = call->folder,
                                                 .input = call->input,
                                                 .input_length = call->input_length,
                                                 .limit = GIT_BYTES,
                                                 .seconds = GIT_SECONDS}));
    if (result->code == 127) {
        carry_process_free(result);
        return carry_fail(climb->ctx, CARRY_ENOTFOUND, "git is not installed: a climb needs it");
    }
    return CARRY_OK;
}

carry_status climb_git(carry_climb *climb, char **output, const climb_git_call *call) {
    carry_process_result result;
    if (output != NULL) {
        *output = NULL;
    }
    CARRY_TRY(run_git(climb, &result, call));
    carry_status status = CARRY_OK;
    if (result.code != 0) {
        char why[256];
        first_line(why, sizeof why, result.errors);
        status = carry_fail(climb->ctx, CARRY_EIO, "git %s failed: %s", call->words[0],
                            why[0] != '\0' ? why : "it gave no reason");
    } else if (output != NULL) {
        size_t length = result.output_length;
        if (length > 0 && result.output[length - 1] == '\n') {
            result.output[length - 1] = '\0';
        }
        *output = result.output;
        result.output = NULL;
    }
    carry_process_free(&result);
    return status;
}

carry_status climb_git_asks(carry_climb *climb, int *code, const climb_git_call *call) {
    carry_process_result result;
    CARRY_TRY(run_git(climb, &result, call));
    *code = result.code;
    carry_process_free(&result);
    return CARRY_OK;
}

carry_status climb_git_hash(carry_climb *climb, char hash[CLIMB_HASH], const climb_git_call *call) {
    char *output;
    CARRY_TRY(climb_git(climb, &output, call));
    size_t length = strspn(output, "0123456789abcdef");
    carry_status status = CARRY_OK;
    if (output[length] != '\0' || (length != 40 && length != 64)) {
        status = carry_fail(climb->ctx, CARRY_EFORMAT, "git %s printed '%.60s' where a hash was expected",
                            call->words[0], output);
    } else {
        (void)snprintf(hash, CLIMB_HASH, "%s", output);
    }
    free(output);
    return status;
}

carry_status climb_find_root(carry_climb *climb) {
    static const char *const questions[] = {"--show-toplevel", "--git-common-dir"};
    char *const answers[] = {climb->root, climb->git};
    for (int i = 0; i < 2; i++) {
        char *output;
        climb_git_call call = {.words = {"rev-parse", "--path-format=absolute", questions[i]}};
        if (climb_git(climb, &output, &call) != CARRY_OK) {
            return carry_fail(climb->ctx, CARRY_ENOTFOUND,
                              "this folder is not in a git working tree: a climb keeps its changes as commits");
        }
        int length = snprintf(answers[i], CLIMB_PATH, "%s", output);
        free(output);
        if (length >= CLIMB_PATH) {
            return carry_fail(climb->ctx, CARRY_ESIZE, "the repository's path is longer than %d bytes", CLIMB_PATH);
        }
    }
    int length = snprintf(climb->index, sizeof climb->index, "%s/carry-climb-index", climb->git);
    return length < (int)sizeof climb->index ? CARRY_OK : carry_fail(climb->ctx, CARRY_ESIZE, "a path is too long");
}

carry_status climb_head(carry_climb *climb, char hash[CLIMB_HASH]) {
    climb_git_call call = {.folder = climb->root, .words = {"rev-parse", "--verify", "-q", "HEAD^{commit}"}};
    if (climb_git_hash(climb, hash, &call) != CARRY_OK) {
        return carry_fail(climb->ctx, CARRY_ENOTFOUND, "the repository has no commit yet: a climb starts from one");
    }
    return CARRY_OK;
}

/* Appends to the call's words the pathspecs that exclude the log and the store. */
static void leave_out(const carry_climb *climb, climb_git_call *call, char log_spec[CLIMB_PATH + 32]) {
    int count = 0;
    while (call->words[count] != NULL) {
        count++;
    }
    (void)snprintf(log_spec, CLIMB_PATH + 32, ":(exclude,literal)%s", climb->relative);
    call->words[count++] = "--";
    call->words[count++] = ".";
    call->words[count++] = log_spec;
    if (!climb->ignores_carry) {
        call->words[count++] = ":(exclude).carry";
    }
    if (climb->store_spec[0] != '\0') {
        call->words[count++] = climb->store_spec;
    }
    call->words[count] = NULL;
}

carry_status climb_tree(carry_climb *climb, char tree[CLIMB_HASH], const char *folder, const char *base) {
    char lock[sizeof climb->index + 8];
    char log_spec[CLIMB_PATH + 32];
    (void)snprintf(lock, sizeof lock, "%s.lock", climb->index);
    (void)unlink(climb->index); /* left by a killed climb: we hold the climb's lock, so it is not in use */
    (void)unlink(lock);
    climb_git_call read = {.folder = folder, .own_index = true, .words = {"read-tree", base}};
    climb_git_call add = {.folder = folder, .own_index = true, .words = {"add", "-A"}};
    climb_git_call write = {.folder = folder, .own_index = true, .words = {"write-tree"}};
    leave_out(climb, &add, log_spec);
    CARRY_TRY(climb_git(climb, NULL, &read));
    CARRY_TRY(climb_git(climb, NULL, &add));
    return climb_git_hash(climb, tree, &write);
}

carry_status climb_tree_stands(carry_climb *climb, const char *folder) {
    char log_spec[CLIMB_PATH + 32];
    char *output;
    climb_git_call call = {.folder = folder, .own_index = true, .words = {"diff", "--no-ext-diff", "--name-only"}};
    leave_out(climb, &call, log_spec);
    CARRY_TRY(climb_git(climb, &output, &call));
    carry_status status = CARRY_OK;
    if (output[0] != '\0') {
        char name[256];
        first_line(name, sizeof name, output);
        status = carry_fail(climb->ctx, CARRY_EIO,
                            "%s changed while the change was judged: nothing is committed and nothing is recorded; try "
                            "again",
                            name);
    }
    free(output);
    return status;
}

carry_status climb_refuse_dirty(carry_climb *climb, const char *why) {
    char log_spec[CLIMB_PATH + 32];
    char *output;
    climb_git_call call = {.folder = climb->root, .words = {"status", "--porcelain"}};
    leave_out(climb, &call, log_spec);
    CARRY_TRY(climb_git(climb, &output, &call));
    carry_status status = CARRY_OK;
    if (strlen(output) > 3) {
        char name[256];
        first_line(name, sizeof name, output + 3);
        status = carry_fail(climb->ctx, CARRY_EARGUMENT, "the working tree has changes (%s): %s", name, why);
    }
    free(output);
    return status;
}

carry_status climb_describe(carry_climb *climb, char *text, size_t size, const char *base, const char *tree) {
    char *output;
    char names[320] = "";
    size_t used = 0;
    long added = 0;
    long removed = 0;
    int files = 0;
    climb_git_call call = {.folder = climb->root,
                           .words = {"diff", "--no-ext-diff", "--numstat", "--no-renames", base, tree}};
    CARRY_TRY(climb_git(climb, &output, &call));
    for (char *line = output; line != NULL && *line != '\0'; files++) {
        char *next = strchr(line, '\n');
        if (next != NULL) {
            *next++ = '\0';
        }
        char *at;
        added += strtol(line, &at, 10); /* binary files have dashes instead of numbers, read as 0 */
        at = strchr(line, '\t');
        removed += at != NULL ? strtol(at, NULL, 10) : 0;
        const char *name = strrchr(line, '\t');
        if (name != NULL && used < sizeof names) {
            int length = snprintf(names + used, sizeof names - used, "%s%s", files > 0 ? ", " : "", name + 1);
            used += length > 0 ? (size_t)length : 0;
        }
        line = next;
    }
    char whole[512];
    (void)snprintf(whole, sizeof whole, "%d file%s, +%ld -%ld: %s%s", files, files == 1 ? "" : "s", added, removed,
                   names, used >= sizeof names ? "..." : "");
    (void)carry_climb_line(text, size, whole);
    free(output);
    return CARRY_OK;
}

/* Checked before anything is measured, since git would report an unknown committer only at the end. */
carry_status climb_identity(carry_climb *climb) {
    static const char *const who[] = {"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"};
    for (int i = 0; i < 2; i++) {
        climb_git_call call = {.folder = climb->root, .words = {"var", who[i]}};
        if (climb_git(climb, NULL, &call) != CARRY_OK) {
            return carry_fail(climb->ctx, CARRY_EARGUMENT,
                              "git does not know who commits: set user.name and user.email");
        }
    }
    return CARRY_OK;
}
