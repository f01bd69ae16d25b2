/* Writing checkpoints. */
#include "train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/span.h"
#include "core/json_write.h"
#include "file/safetensors.h"
#include "file/checkpoint_files.h"

static carry_status cannot(carry_ctx *ctx, const char *path) {
    return carry_fail(ctx, CARRY_EIO, "%s cannot be written: %s", path, strerror(errno));
}

static carry_status make_folders(carry_ctx *ctx, const char *path) {
    char partial[CARRY_FILE_PATH];
    if (snprintf(partial, sizeof partial, "%s", path) >= (int)sizeof partial) {
        return carry_fail(ctx, CARRY_ESIZE, "the path %.60s... is too long", path);
    }
    for (char *slash = strchr(partial + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(partial, 0777); /* a failure here also makes the last mkdir fail */
        *slash = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST ? CARRY_OK : cannot(ctx, path);
}

static carry_status lock(carry_ctx *ctx, carry_run_folder *folder) {
    char path[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, path, folder->path, ".lock"));
    folder->lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (folder->lock < 0) {
        return cannot(ctx, folder->path);
    }
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(folder->lock, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
        (void)close(folder->lock);
        folder->lock = -1;
        return carry_fail(ctx, CARRY_EIO, "another process trains into %s: wait for it, or give another --out",
                          folder->path);
    }
    return CARRY_OK; /* on a file system without locks, continue without one */
}

carry_status carry_run_folder_open(carry_ctx *ctx, carry_run_folder *folder, const char *path) {
    *folder = (carry_run_folder){.lock = -1, .newest = -1};
    CARRY_TRY(make_folders(ctx, path));
    (void)snprintf(folder->path, sizeof folder->path, "%s", path);
    CARRY_TRY(lock(ctx, folder));
    carry_checkpoint_sweep(folder->path);
    return CARRY_OK;
}

void carry_run_folder_close(carry_run_folder *folder) {
    if (folder->lock >= 0) {
        (void)close(folder->lock);
        folder->lock = -1;
    }
}

static carry_status save_state(carry_ctx *ctx, const char *folder, const carry_checkpoint *c) {
    char path[CARRY_FILE_PATH];
    const int64_t n = c->parameters->parameters;
    CARRY_TRY(carry_file_in(ctx, path, folder, CARRY_STATE_FILE));
    const struct {
        char letter;
        const float *values;
    } part[] = {{'m', c->m}, {'v', c->v}, {'w', c->weights}};
    const int64_t parts = c->weights != NULL ? 3 : 2;
    carry_safetensors_item *items = calloc((size_t)n + 1, 3 * sizeof *items);
    char(*names)[CARRY_STATE_NAME] = calloc((size_t)n, 3 * sizeof *names);
    carry_status status =
        items != NULL && names != NULL ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    for (int64_t i = 0; i < parts * n && status == CARRY_OK; i++) {
        const carry_parameter *p = &c->parameters->parameter[i % n];
        const float *from = part[i / n].values + p->offset;
        (void)snprintf(names[i], sizeof names[i], "%c.%s", part[i / n].letter, p->name);
        items[i] = (carry_safetensors_item){.name = names[i],
                                            .tensor = carry_view((float *)from, CARRY_F32, p->rank, p->shape),
                                            .dtype = c->narrow && i < 2 * n ? CARRY_BF16 : CARRY_F32};
    }
    const bool scaled = c->scales.data != NULL;
    if (status == CARRY_OK && scaled) {
        items[parts * n] = (carry_safetensors_item){.name = CARRY_SCALES_NAME, .tensor = c->scales, .dtype = CARRY_F32};
    }
    status = status == CARRY_OK ? carry_safetensors_write(ctx, path, items, parts * n + scaled, NULL) : status;
    free(items);
    free(names);
    return status;
}

static carry_status save_note(carry_ctx *ctx, const char *folder, const carry_checkpoint *c) {
    char path[CARRY_FILE_PATH];
    carry_json_text text = {0};
    CARRY_TRY(carry_file_in(ctx, path, folder, CARRY_NOTE_FILE));
    carry_json_put_raw(&text, "{\n  \"format\": %d,\n  \"step\": %lld,\n  \"tokens\": %lld,\n", CARRY_CHECKPOINT_FORMAT,
                       (long long)c->step, (long long)c->seen);
    carry_json_put_raw(&text, "  \"position\": {\"epoch\": %lld, \"window\": %lld, \"row\": %lld},\n",
                       (long long)c->position.epoch, (long long)c->position.window, (long long)c->position.row);
    carry_json_put_raw(&text, "  \"source\": %lu,\n  \"options\": %s,\n", (unsigned long)c->source, c->options);
    carry_status status = carry_checkpoint_put_files(ctx, &text, folder, carry_checkpoint_files, true);
    carry_checkpoint_put_sum(&text);
    if (status == CARRY_OK && text.failed) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    status = status == CARRY_OK ? carry_file_replace(ctx, path, text.bytes, text.length) : status;
    carry_json_text_free(&text);
    return status;
}

static carry_status write_all(carry_ctx *ctx, const char *folder, const carry_checkpoint *c) {
    if (mkdir(folder, 0777) != 0) {
        return cannot(ctx, folder);
    }
    CARRY_TRY(c->save(c->model, folder));
    if (c->tokenizer != NULL) {
        CARRY_TRY(carry_tokenizer_save_folder(ctx, c->tokenizer, folder));
    }
    CARRY_TRY(save_state(ctx, folder, c));
    CARRY_TRY(save_note(ctx, folder, c)); /* written last: it has the checksums of the others */
    return carry_checkpoint_sync(ctx, folder);
}

/* Renames the hidden folder to its final name. An existing folder of the same step was damaged or belongs to another
   run, and is removed. */
static carry_status take_place(carry_ctx *ctx, const carry_run_folder *folder, const char *hidden, const char *path) {
    if (rename(hidden, path) != 0) {
        char aside[CARRY_FILE_PATH];
        CARRY_TRY(carry_file_in(ctx, aside, folder->path, ".step-aside"));
        carry_checkpoint_remove(aside);
        if (rename(path, aside) != 0 || rename(hidden, path) != 0) {
            return cannot(ctx, path);
        }
        carry_checkpoint_remove(aside);
    }
    return carry_checkpoint_sync(ctx, folder->path);
}

/* Makes `latest` a link to the newest step, replacing it atomically. Does nothing on a file system without links. */
static void point_to(const carry_run_folder *folder, int64_t step) {
    char link[CARRY_FILE_PATH];
    char hidden[CARRY_FILE_PATH];
    char name[32];
    if (snprintf(link, sizeof link, "%s/latest", folder->path) < (int)sizeof link &&
        snprintf(hidden, sizeof hidden, "%s/.latest", folder->path) < (int)sizeof hidden) {
        (void)snprintf(name, sizeof name, "step-%lld", (long long)step);
        (void)unlink(hidden);
        if (symlink(name, hidden) == 0) {
            (void)rename(hidden, link);
        }
    }
}

carry_status carry_checkpoint_save(carry_ctx *ctx, carry_run_folder *folder, const carry_checkpoint *c) {
    CARRY_SPAN(ctx, "train", "checkpoint");
    char name[64];
    char hidden[CARRY_FILE_PATH];
    char path[CARRY_FILE_PATH];
    (void)snprintf(name, sizeof name, ".step-%lld", (long long)c->step);
    CARRY_TRY(carry_file_in(ctx, hidden, folder->path, name));
    CARRY_TRY(carry_file_in(ctx, path, folder->path, name + 1));
    carry_checkpoint_remove(hidden);
    carry_status status = write_all(ctx, hidden, c);
    status = status == CARRY_OK ? take_place(ctx, folder, hidden, path) : status;
    if (status != CARRY_OK) {
        char why[384];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
        carry_checkpoint_remove(hidden);
        return folder->newest >= 0
                   ? carry_fail(ctx, status,
                                "the checkpoint of step %lld is not written, that of step %lld is kept: %s",
                                (long long)c->step, (long long)folder->newest, why)
                   : carry_fail(ctx, status, "the checkpoint of step %lld is not written: %s", (long long)c->step, why);
    }
    folder->newest = c->step;
    point_to(folder, c->step);
    return carry_checkpoint_prune(ctx, folder->path, c->step, c->keep);
}
