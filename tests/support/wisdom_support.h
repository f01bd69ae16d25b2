/* Wisdom in a temporary folder, for the tests of its file and of the contexts that share it. */
#ifndef CARRY_TESTS_WISDOM_SUPPORT_H
#define CARRY_TESTS_WISDOM_SUPPORT_H

#include <unistd.h>

#include "support.h"

#define PATH_ROOM 512

/* A temporary folder with a file in it, and a path below that file, which can never be written. */
typedef struct place {
    char folder[PATH_ROOM / 4], file[PATH_ROOM], below[PATH_ROOM];
    carry_ctx *ctx; /* for parsing and printing; has no file */
} place;

static inline int place_make(void **state) {
    static place p;
    const char *base = getenv("TMPDIR");
    (void)snprintf(p.folder, sizeof p.folder, "%s/carry-wisdom-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    if (mkdtemp(p.folder) == NULL ||
        carry_ctx_new(&p.ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        return -1;
    }
    (void)snprintf(p.file, sizeof p.file, "%s/wisdom", p.folder);
    (void)snprintf(p.below, sizeof p.below, "%s/wisdom/below", p.folder);
    *state = &p;
    return 0;
}

static inline int place_end(void **state) {
    place *p = *state;
    char aside[sizeof p->file + 8];
    (void)snprintf(aside, sizeof aside, "%s.old", p->file); /* where damaged files were put */
    (void)unlink(aside);
    (void)unlink(p->file);
    carry_ctx_free(p->ctx);
    return rmdir(p->folder); /* fails the group if another file is left */
}

#endif
