/* Makes commits that are complete or absent, and the worktrees in which changes are judged. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "lab/climb/climb_internal.h"

#define PENDING "refs/climb/pending"
#define WORKTREE "carry-climb-judge"

carry_status climb_commit(carry_climb *climb, char commit[CLIMB_HASH], const char *tree, const char *parent,
                          const char *title, const char *message) {
    climb_git_call call = {.folder = climb->root, .words = {"commit-tree", tree, "-p", parent, "-m", title}};
    if (message != NULL) {
        call.words[6] = "-m";
        call.words[7] = message;
    }
    return climb_git_hash(climb, commit, &call);
}

/* Makes the commit with the log's new text on top of the change. */
static carry_status commit_log(carry_climb *climb, char commit[CLIMB_HASH], const char *change, const char *text,
                               size_t length) {
    char blob[CLIMB_HASH];
    char tree[CLIMB_HASH];
    char entry[CLIMB_HASH + CLIMB_PATH + 16];
    char title[CLIMB_PATH + 64];
    climb_git_call hash = {.folder = climb->root,
                           .input = text,
                           .input_length = length,
                           .words = {"hash-object", "-w", "--no-filters", "--stdin"}};
    climb_git_call read = {.folder = climb->root, .own_index = true, .words = {"read-tree", change}};
    climb_git_call put = {
        .folder = climb->root, .own_index = true, .words = {"update-index", "--add", "--cacheinfo", entry}};
    climb_git_call write = {.folder = climb->root, .own_index = true, .words = {"write-tree"}};
    CARRY_TRY(climb_git_hash(climb, blob, &hash));
    (void)snprintf(entry, sizeof entry, "100644,%s,%s", blob, climb->relative);
    CARRY_TRY(climb_git(climb, NULL, &read));
    CARRY_TRY(climb_git(climb, NULL, &put));
    CARRY_TRY(climb_git_hash(climb, tree, &write));
    (void)snprintf(title, sizeof title, "climb: entry %d in %s", climb->log != NULL ? climb->log->count : 0,
                   climb->relative);
    return climb_commit(climb, commit, tree, change, title, NULL);
}

static carry_status move_head(carry_climb *climb, const char *to, const char *from) {
    climb_git_call call = {.folder = climb->root, .words = {"update-ref", "-m", "carry climb", "HEAD", to, from}};
    return climb_git(climb, NULL, &call);
}

static carry_status forget_pending(carry_climb *climb) {
    climb_git_call call = {.folder = climb->root, .words = {"update-ref", "-d", PENDING}};
    return climb_git(climb, NULL, &call);
}

/* Updates the log's file and resets the index to the branch; the working tree already has the content. */
static carry_status finish(carry_climb *climb, const char *path, const char *text, size_t length) {
    CARRY_TRY(carry_file_replace(climb->ctx, path, text, length));
    climb_git_call reset = {.folder = climb->root, .words = {"reset", "-q"}};
    CARRY_TRY(climb_git(climb, NULL, &reset));
    return forget_pending(climb);
}

carry_status climb_keep(carry_climb *climb, const char *change, const char *base, bool elsewhere, const char *text,
                        size_t length) {
    char commit[CLIMB_HASH];
    CARRY_TRY(commit_log(climb, commit, change, text, length));
    climb_git_call note = {.folder = climb->root, .words = {"update-ref", PENDING, commit}};
    CARRY_TRY(climb_git(climb, NULL, &note));
    carry_status status = CARRY_OK;
    if (elsewhere) { /* updates the user's files; git refuses if that would overwrite one of them */
        climb_git_call merge = {.folder = climb->root, .words = {"merge", "-q", "--ff-only", change}};
        status = climb_git(climb, NULL, &merge);
    }
    status = status == CARRY_OK ? move_head(climb, commit, elsewhere ? change : base) : status;
    if (status != CARRY_OK) {
        char why[256];
        (void)snprintf(why, sizeof why, "%.200s", carry_ctx_error(climb->ctx));
        (void)forget_pending(climb);
        return carry_fail(climb->ctx, CARRY_EIO, "the branch could not move on to what was judged (%s)", why);
    }
    return finish(climb, climb->path, text, length);
}

static carry_status is_ancestor(carry_climb *climb, bool *is, const char *older, const char *newer) {
    int code;
    climb_git_call call = {.folder = climb->root, .words = {"merge-base", "--is-ancestor", older, newer}};
    CARRY_TRY(climb_git_asks(climb, &code, &call));
    *is = code == 0;
    return CARRY_OK;
}

/* Completes a pending commit by writing its log to the file, unless the file has other changes since. */
static carry_status finish_pending(carry_climb *climb, const char *pending, const char *change) {
    char *name = NULL;
    char *text = NULL;
    char *present = NULL;
    size_t length = 0;
    char object[CLIMB_PATH + CLIMB_HASH];
    char path[2 * CLIMB_PATH];
    climb_git_call differs = {.folder = climb->root, .words = {"diff", "--name-only", change, pending}};
    CARRY_TRY(climb_git(climb, &name, &differs));
    (void)snprintf(object, sizeof object, "%s:%s", pending, name);
    (void)snprintf(path, sizeof path, "%s/%s", climb->root, name);
    free(name);
    climb_git_call show = {.folder = climb->root, .words = {"cat-file", "blob", object}};
    CARRY_TRY(climb_git(climb, &text, &show));
    size_t whole = strlen(text);
    text[whole] = '\n'; /* restores the last newline, which climb_git removes */
    whole++;
    carry_status status = carry_file_read(climb->ctx, &present, &length, path, CARRY_CLIMB_LOG_BYTES);
    if (status == CARRY_ENOTFOUND || (status == CARRY_OK && length <= whole && memcmp(present, text, length) == 0)) {
        status = finish(climb, path, text, whole);
    } else if (status == CARRY_OK) {
        status = forget_pending(climb);
    }
    free(text);
    free(present);
    return status;
}

carry_status climb_recover(carry_climb *climb) {
    char pending[CLIMB_HASH];
    char change[CLIMB_HASH];
    char head[CLIMB_HASH];
    char older[CLIMB_HASH + 2];
    int code;
    climb_git_call ask = {.folder = climb->root, .words = {"rev-parse", "--verify", "-q", PENDING}};
    CARRY_TRY(climb_git_asks(climb, &code, &ask));
    if (code != 0) {
        return CARRY_OK;
    }
    CARRY_TRY(climb_git_hash(climb, pending, &ask));
    (void)snprintf(older, sizeof older, "%s^", pending);
    climb_git_call parent = {.folder = climb->root, .words = {"rev-parse", "--verify", "-q", older}};
    CARRY_TRY(climb_git_hash(climb, change, &parent));
    CARRY_TRY(climb_head(climb, head));
    bool moved;
    CARRY_TRY(is_ancestor(climb, &moved, pending, head));
    if (!moved && strcmp(head, change) == 0) { /* the loop's change was committed, its log not yet */
        CARRY_TRY(move_head(climb, pending, change));
        moved = true;
    }
    if (!moved) {
        return forget_pending(climb); /* the branch has not moved: there is nothing to finish */
    }
    climb_tell(climb, "finishing what an interrupted climb had committed");
    return finish_pending(climb, pending, change);
}

carry_status climb_worktree_add(carry_climb *climb, char folder[CLIMB_PATH], const char *commit) {
    carry_status status = carry_file_temporary_folder(climb->ctx, folder, WORKTREE);
    if (status != CARRY_OK) {
        folder[0] = '\0';
        return status;
    }
    climb_git_call call = {.folder = climb->root, .words = {"worktree", "add", "-q", "--detach", folder, commit}};
    status = climb_git(climb, NULL, &call);
    if (status != CARRY_OK) {
        (void)rmdir(folder);
        folder[0] = '\0';
    }
    return status;
}

void climb_worktree_remove(carry_climb *climb, char folder[CLIMB_PATH]) {
    if (folder[0] != '\0') {
        climb_git_call call = {.folder = climb->root, .words = {"worktree", "remove", "--force", "--force", folder}};
        if (climb_git(climb, NULL, &call) != CARRY_OK) {
            climb_tell(climb, "the worktree %s could not be removed: %s", folder, carry_ctx_error(climb->ctx));
        }
        folder[0] = '\0';
    }
}

/* Removes worktrees left by killed climbs. The climb's lock is held, so none of them is in use. */
void climb_worktrees_clean(carry_climb *climb) {
    char *output;
    climb_git_call list = {.folder = climb->root, .words = {"worktree", "list", "--porcelain"}};
    climb_git_call prune = {.folder = climb->root, .words = {"worktree", "prune"}};
    if (climb_git(climb, &output, &list) != CARRY_OK) {
        return;
    }
    bool any = false;
    char *rest = NULL;
    for (char *line = strtok_r(output, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const char *name = strrchr(line, '/');
        if (strncmp(line, "worktree ", 9) == 0 && name != NULL && strncmp(name + 1, WORKTREE, strlen(WORKTREE)) == 0) {
            char folder[CLIMB_PATH];
            (void)snprintf(folder, sizeof folder, "%s", line + 9);
            if (access(folder, F_OK) == 0) {
                climb_worktree_remove(climb, folder);
            }
            any = true;
        }
    }
    free(output);
    if (any) {
        (void)climb_git(climb, NULL, &prune);
    }
}
