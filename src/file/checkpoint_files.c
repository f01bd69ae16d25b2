/* Lists, syncs and removes folders of checkpoints. */
#include "file/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"

#define PIECE ((size_t)1 << 18) /* bytes read at a time */

const char *const carry_checkpoint_files[] = {"config.json",
                                              "model.safetensors",
                                              "adapter_config.json",
                                              "adapter_model.safetensors",
                                              CARRY_TOKENIZER_FILE,
                                              CARRY_STATE_FILE,
                                              NULL};

/* Returns the N of step-N, or -1. */
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9' || strlen(name) > 5 + 18) {
        return -1;
    }
    char *end;
    const int64_t step = strtoll(name + 5, &end, 10);
    return *end == '\0' ? step : -1;
}

static int newest_first(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left;
    const int64_t b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

carry_status carry_checkpoint_steps(carry_ctx *ctx, int64_t **steps, int64_t *count, const char *folder) {
    *steps = NULL;
    *count = 0;
    DIR *opened = opendir(folder);
    if (opened == NULL) {
        const int error = errno;
        return carry_fail(ctx, error == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be read: %s", folder,
                          strerror(error));
    }
    carry_status status = CARRY_OK;
    int64_t room = 0;
    for (struct dirent *entry = readdir(opened); entry != NULL && status == CARRY_OK; entry = readdir(opened)) {
        const int64_t step = step_of(entry->d_name);
        if (step < 0) {
            continue;
        }
        if (*count == room) {
            room = 2 * room + 16;
            int64_t *grown = realloc(*steps, (size_t)room * sizeof **steps);
            if (grown == NULL) {
                status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: listing %s", folder);
                break;
            }
            *steps = grown;
        }
        (*steps)[(*count)++] = step;
    }
    (void)closedir(opened);
    if (*count > 1) {
        qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    }
    if (status != CARRY_OK) {
        free(*steps);
        *steps = NULL;
    }
    return status;
}

carry_status carry_checkpoint_sum(carry_ctx *ctx, const char *path, int64_t *bytes, uint32_t *crc) {
    *bytes = 0;
    *crc = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    unsigned char *piece = malloc(PIECE);
    ssize_t got = file >= 0 && piece != NULL ? 1 : -1;
    while (got > 0) {
        got = read(file, piece, PIECE);
        if (got > 0) {
            *bytes += got;
            *crc = carry_crc32c(*crc, piece, (size_t)got);
        }
    }
    const int code = errno;
    free(piece);
    if (file >= 0) {
        (void)close(file);
    }
    return got == 0 ? CARRY_OK
                    : carry_fail(ctx, code == ENOENT ? CARRY_ENOTFOUND : CARRY_EIO, "%s cannot be read: %s", path,
                                 strerror(code));
}

carry_status carry_checkpoint_sync(carry_ctx *ctx, const char *folder) {
    int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool done = opened >= 0 && (fsync(opened) == 0 || errno == EINVAL); /* EINVAL: cannot sync folders */
    const int code = errno;
    if (opened >= 0) {
        (void)close(opened);
    }
    return done ? CARRY_OK : carry_fail(ctx, CARRY_EIO, "%s cannot be synced: %s", folder, strerror(code));
}

void carry_checkpoint_remove(const char *folder) {
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); /* a link leads to a step that is kept */
    DIR *opened = file >= 0 ? fdopendir(file) : NULL;
    if (opened != NULL) {
        for (struct dirent *entry = readdir(opened); entry != NULL; entry = readdir(opened)) {
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
                (void)unlinkat(dirfd(opened), entry->d_name, 0);
            }
        }
        (void)closedir(opened);
        (void)rmdir(folder);
    } else if (file >= 0) {
        (void)close(file);
    }
}

static void remove_in(const char *folder, const char *name) {
    char path[CARRY_FILE_PATH];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path) {
        carry_checkpoint_remove(path);
    }
}

void carry_checkpoint_sweep(const char *folder) {
    DIR *opened = opendir(folder);
    if (opened == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(opened); entry != NULL; entry = readdir(opened)) {
        if (strncmp(entry->d_name, ".step-", 6) == 0) {
            remove_in(folder, entry->d_name);
        }
    }
    (void)closedir(opened);
}

carry_status carry_checkpoint_prune(carry_ctx *ctx, const char *folder, int64_t newest, int64_t keep) {
    int64_t *steps;
    int64_t count;
    CARRY_TRY(carry_checkpoint_steps(ctx, &steps, &count, folder));
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        kept += steps[i] <= newest;
        if (steps[i] > newest || kept > keep) {
            char name[64];
            (void)snprintf(name, sizeof name, "step-%lld", (long long)steps[i]);
            remove_in(folder, name);
        }
    }
    free(steps);
    return CARRY_OK;
}
