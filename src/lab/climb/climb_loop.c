/* The automatic climb: a command proposes changes, the gate judges them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/climb/climb_internal.h"

#define TEXT_BYTES 2048

/* The proposer's description of its change. */
typedef struct words {
    char title[160], hypothesis[TEXT_BYTES], next[TEXT_BYTES];
} words;

static void listen(words *w, const char *output) {
    static const char *const names[] = {"title: ", "hypothesis: ", "next: "};
    char *const places[] = {w->title, w->hypothesis, w->next};
    static const size_t sizes[] = {sizeof w->title, sizeof w->hypothesis, sizeof w->next};
    for (const char *line = output; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t length = end != NULL ? (size_t)(end - line) : strlen(line);
        for (int i = 0; i < 3; i++) {
            size_t name = strlen(names[i]);
            char *copy =
                length > name && strncmp(line, names[i], name) == 0 ? strndup(line + name, length - name) : NULL;
            if (copy != NULL) {
                (void)carry_climb_line(places[i], sizes[i], copy);
                free(copy);
            }
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

/* Runs the proposer. `failure` receives the reason why there is nothing to judge, or "". */
static carry_status propose(carry_climb *climb, const char *command, int64_t iteration, const char *folder, words *w,
                            char failure[256]) {
    char number[64];
    char log[CLIMB_PATH + 32];
    char best[CLIMB_HASH + 32];
    (void)snprintf(number, sizeof number, "CARRY_CLIMB_ITERATION=%lld", (long long)iteration);
    (void)snprintf(log, sizeof log, "CARRY_CLIMB_LOG=%s", climb->path);
    (void)snprintf(best, sizeof best, "CARRY_CLIMB_BEST=%s", climb->log->entry[climb->log->best].commit);
    carry_process_result ran;
    climb_tell(climb, "iteration %lld: %s", (long long)iteration, command);
    CARRY_TRY(climb_shell(climb, &ran, folder, command, (const char *const[]){number, log, best, NULL}));
    failure[0] = '\0';
    if (ran.timed_out) {
        (void)snprintf(failure, 256, "the proposer took more than %.3g s", climb_seconds(climb));
    } else if (ran.code != 0) {
        char *tail = climb_tail(ran.errors);
        char said[160] = "";
        const char *newline = tail != NULL ? strrchr(tail, '\n') : NULL;
        (void)carry_climb_line(said, sizeof said, newline != NULL ? newline + 1 : tail != NULL ? tail : "");
        (void)snprintf(failure, 256, "the proposer failed with exit %d%s%s", ran.code, said[0] != '\0' ? ": " : "",
                       said);
        free(tail);
    }
    listen(w, ran.output);
    if (w->hypothesis[0] == '\0') {
        (void)snprintf(w->hypothesis, sizeof w->hypothesis, "iteration %lld of %.200s", (long long)iteration, command);
    }
    carry_process_free(&ran);
    return CARRY_OK;
}

static carry_status iterate(carry_climb *climb, const carry_climb_attempt *attempt,
                            const carry_climb_loop_options *options, int64_t iteration, char folder[CLIMB_PATH]) {
    char base[CLIMB_HASH];
    char tree[CLIMB_HASH];
    char before[CLIMB_HASH];
    char failure[256];
    words w = {.title = ""};
    carry_climb_outcome outcome = {0};
    CARRY_TRY(climb_refuse_dirty(climb, "the loop moves the branch on, so commit or stash them first"));
    CARRY_TRY(climb_head(climb, base));
    CARRY_TRY(climb_worktree_add(climb, folder, base));
    CARRY_TRY(propose(climb, options->propose, iteration, folder, &w, failure));
    climb_git_call ask = {.folder = climb->root, .words = {"rev-parse", "HEAD^{tree}"}};
    CARRY_TRY(climb_git_hash(climb, before, &ask));
    CARRY_TRY(climb_tree(climb, tree, folder, base));
    if (failure[0] == '\0' && strcmp(tree, before) == 0) {
        (void)snprintf(failure, sizeof failure, "nothing was changed");
    }
    carry_climb_attempt mine = *attempt;
    mine.hypothesis = w.hypothesis;
    mine.title = w.title[0] != '\0' ? w.title : NULL;
    mine.next = w.next;
    climb_change change = {.folder = folder,
                           .base = base,
                           .tree = tree,
                           .elsewhere = true,
                           .failure = failure[0] != '\0' ? failure : NULL};
    CARRY_TRY(climb_judge(climb, &mine, &change, &outcome));
    if (options->judged != NULL) {
        options->judged(options->user, &outcome);
    }
    free(outcome.output);
    return CARRY_OK;
}

carry_status carry_climb_loop(carry_climb *climb, const carry_climb_attempt *attempt,
                              const carry_climb_loop_options *options) {
    const carry_climb_log *log;
    if (options->propose == NULL || options->iterations < 1) {
        return carry_fail(climb->ctx, CARRY_EARGUMENT,
                          "climb loop needs --propose CMD, which makes a change, and --iterations N");
    }
    CARRY_TRY(climb_check_command(climb->ctx, "propose", options->propose));
    CARRY_TRY(carry_climb_log_of(climb, &log));
    CARRY_TRY(carry_climb_lint(climb));
    carry_status status = CARRY_OK;
    for (int64_t i = 1; status == CARRY_OK && i <= options->iterations; i++) {
        char folder[CLIMB_PATH] = "";
        status = iterate(climb, attempt, options, i, folder);
        char why[512];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(climb->ctx));
        climb_worktree_remove(climb, folder);
        if (status != CARRY_OK) { /* an error from removing the worktree must not hide the first one */
            (void)carry_fail(climb->ctx, status, "%s", why);
        }
    }
    return status;
}
