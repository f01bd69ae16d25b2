/* Finding and reading checkpoints. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carry/ops.h"
#include "core/error.h"
#include "file/safetensors.h"
#include "train/checkpoint.h"
#include "file/checkpoint.h"

bool carry_run_folder_is_used(const char *path) {
    carry_ctx *ctx = NULL;
    int64_t *steps = NULL;
    int64_t count = 0;
    if (carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) == CARRY_OK) {
        (void)carry_checkpoint_steps(ctx, &steps, &count, path);
    }
    free(steps);
    carry_ctx_free(ctx);
    return count > 0;
}

bool carry_run_folder_is_free(const char *path) {
    char name[CARRY_FILE_PATH];
    struct stat what;
    (void)snprintf(name, sizeof name, "%s", path);
    for (size_t end = strlen(name); end > 1 && name[end - 1] == '/'; end--) {
        name[end - 1] = '\0'; /* with a slash at the end, lstat would follow a link */
    }
    if (lstat(name, &what) != 0) {
        return true;
    }
    DIR *folder = S_ISDIR(what.st_mode) ? opendir(name) : NULL;
    bool is_free = folder != NULL;
    for (const struct dirent *e = is_free ? readdir(folder) : NULL; e != NULL && is_free; e = readdir(folder)) {
        is_free = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, ".lock") == 0 ||
                  strcmp(e->d_name, ".no-store") == 0 || strncmp(e->d_name, ".step-", 6) == 0;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return is_free;
}

void carry_found_free(carry_found *found) {
    carry_json_free(found->document);
    found->document = NULL;
}

static carry_status take_note(carry_ctx *ctx, carry_found *found, const char *path) {
    const carry_json *root = found->document;
    const carry_json *position = carry_json_find(root, "position");
    int64_t format;
    int64_t source;
    CARRY_TRY(carry_checkpoint_whole(ctx, &format, root, "format", path));
    if (format != CARRY_CHECKPOINT_FORMAT) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has format %" PRId64 ", but this carry supports %d", path,
                          format, CARRY_CHECKPOINT_FORMAT);
    }
    CARRY_TRY(carry_checkpoint_whole(ctx, &found->step, root, "step", path));
    CARRY_TRY(carry_checkpoint_whole(ctx, &found->seen, root, "tokens", path));
    CARRY_TRY(carry_checkpoint_whole(ctx, &found->position.epoch, position, "epoch", path));
    CARRY_TRY(carry_checkpoint_whole(ctx, &found->position.window, position, "window", path));
    CARRY_TRY(carry_checkpoint_whole(ctx, &found->position.row, position, "row", path));
    CARRY_TRY(carry_checkpoint_whole(ctx, &source, root, "source", path));
    found->source = (uint32_t)source;
    return CARRY_OK;
}

/* Checks one folder: succeeds if it is complete, else fails with a message. */
static carry_status check_checkpoint(carry_ctx *ctx, carry_found *found, const char *folder) {
    char note[CARRY_FILE_PATH];
    CARRY_TRY(carry_file_in(ctx, note, folder, CARRY_NOTE_FILE));
    carry_status status = carry_checkpoint_note(ctx, &found->document, note);
    status = status == CARRY_OK ? take_note(ctx, found, note) : status;
    const carry_json *files = carry_json_find(found->document, "files");
    int64_t count = 0;
    if (status == CARRY_OK && files != NULL && files->kind == CARRY_JSON_ARRAY) {
        for (const carry_json *f = files->as.inside.first; f != NULL && status == CARRY_OK; f = f->next) {
            status = carry_checkpoint_check(ctx, f, folder, note);
            count++;
        }
    }
    if (status == CARRY_OK && count < 3) { /* configuration, weights, state */
        status = carry_fail(ctx, CARRY_EFORMAT, "%s lists %" PRId64 " files: three are needed", note, count);
    }
    if (status != CARRY_OK) {
        carry_found_free(found);
        return status;
    }
    (void)snprintf(found->path, sizeof found->path, "%s", folder);
    return CARRY_OK;
}

typedef struct training_search {
    carry_found *found;
    const carry_sink *sink;
} training_search;

static carry_status check_step(void *user, carry_ctx *ctx, const char *folder) {
    const training_search *search = user;
    return check_checkpoint(ctx, search->found, folder);
}

static void note_skipped(void *user, carry_ctx *ctx, int64_t step, const char *why) {
    const training_search *search = user;
    char line[640];
    (void)ctx;
    (void)snprintf(line, sizeof line, "the checkpoint of step %" PRId64 " is incomplete and skipped: %s", step, why);
    carry_sink_note(search->sink, step, line);
}

static carry_status find_newest(carry_ctx *ctx, carry_found *found, const char *path, const carry_sink *sink) {
    training_search user = {.found = found, .sink = sink};
    const carry_checkpoint_search search = {.check = check_step, .skip = note_skipped, .user = &user};
    char folder[CARRY_FILE_PATH];
    int64_t count = 0;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return carry_fail(ctx, CARRY_ENOTFOUND,
                          "there is no folder %s: --resume takes the folder of a training, or one of its checkpoints",
                          path);
    }
    const carry_status status = carry_checkpoint_newest(ctx, folder, path, &count, &search);
    if (status == CARRY_OK || (count == 0 && status != CARRY_ENOTFOUND)) {
        return status;
    }
    return count > 0
               ? carry_fail(ctx, CARRY_ENOTFOUND, "%s has no whole checkpoint: %" PRId64 " are damaged", path, count)
               : carry_fail(ctx, CARRY_ENOTFOUND, "%s has no checkpoint: no folder step-N is in it", path);
}

carry_status carry_checkpoint_find(carry_ctx *ctx, carry_found *found, const char *path, const carry_sink *sink) {
    char note[CARRY_FILE_PATH];
    struct stat about;
    *found = (carry_found){.step = -1};
    CARRY_TRY(carry_file_in(ctx, note, path, CARRY_NOTE_FILE));
    return stat(note, &about) == 0 ? check_checkpoint(ctx, found, path) : find_newest(ctx, found, path, sink);
}

static carry_status find_state(carry_ctx *ctx, const carry_tensor **tensor, char which, const carry_parameter *p,
                               const carry_safetensors *file) {
    char name[CARRY_STATE_NAME];
    (void)snprintf(name, sizeof name, "%c.%s", which, p->name);
    const carry_tensor *t = carry_safetensors_find(file, name);
    if (t == NULL || (t->dtype != CARRY_F32 && (t->dtype != CARRY_BF16 || which == 'w')) || t->rank != p->rank ||
        memcmp(t->shape, p->shape, (size_t)p->rank * sizeof *p->shape) != 0) {
        return carry_fail(ctx, CARRY_EFORMAT, "the optimizer's state has no f32%s tensor %s of the model's shape",
                          which == 'w' ? "" : " or bf16", name);
    }
    *tensor = t;
    return CARRY_OK;
}

/* Reads the part of parameter p that belongs to the slice, from the tensor stored for it. */
static carry_status load_part(carry_optimizer *o, carry_tensor to, char which, const carry_parameter *p,
                              const carry_safetensors *file) {
    const carry_tensor *tensor;
    CARRY_TRY(find_state(o->ctx, &tensor, which, p, file));
    const int64_t begin = p->offset > o->first ? p->offset : o->first;
    const int64_t end = p->offset + p->count < o->first + o->count ? p->offset + p->count : o->first + o->count;
    if (end <= begin) {
        return CARRY_OK;
    }
    if (tensor->dtype == CARRY_F32) {
        return carry_optimizer_put(o, to, begin - o->first, (const float *)tensor->data + (begin - p->offset),
                                   end - begin);
    }
    float *wide = carry_aligned_new((size_t)(end - begin) * sizeof *wide);
    if (wide == NULL) {
        return carry_fail(o->ctx, CARRY_EMEMORY, "out of memory: the optimizer's state of %s", p->name);
    }
    const carry_tensor flat = carry_view_1d((uint16_t *)tensor->data + (begin - p->offset), CARRY_BF16, end - begin);
    carry_status status = carry_convert(o->ctx, carry_view_1d(wide, CARRY_F32, end - begin), flat);
    status = status == CARRY_OK ? carry_optimizer_put(o, to, begin - o->first, wide, end - begin) : status;
    free(wide);
    return status;
}

carry_status carry_checkpoint_load_state(const char *path, carry_optimizer *o) {
    char name[CARRY_FILE_PATH];
    carry_safetensors file;
    CARRY_TRY(carry_file_in(o->ctx, name, path, CARRY_STATE_FILE));
    CARRY_TRY(carry_safetensors_open(o->ctx, &file, name));
    carry_status status = CARRY_OK;
    for (int64_t i = 0; i < o->model->parameters && status == CARRY_OK; i++) {
        status = load_part(o, o->m, 'm', &o->model->parameter[i], &file);
        status = status == CARRY_OK ? load_part(o, o->v, 'v', &o->model->parameter[i], &file) : status;
    }
    carry_safetensors_close(&file);
    return status;
}

carry_status carry_checkpoint_load_scales(carry_ctx *ctx, const char *path, carry_tensor scales) {
    char name[CARRY_FILE_PATH];
    carry_safetensors file;
    CARRY_TRY(carry_file_in(ctx, name, path, CARRY_STATE_FILE));
    CARRY_TRY(carry_safetensors_open(ctx, &file, name));
    const carry_tensor *found = carry_safetensors_find(&file, CARRY_SCALES_NAME);
    const bool fits = found != NULL && found->dtype == CARRY_F32 && found->rank == 2 &&
                      found->shape[0] == scales.shape[0] && found->shape[1] == scales.shape[1];
    carry_status status = CARRY_OK;
    if (fits) {
        status = carry_copy(ctx, scales, *found);
    } else {
        status =
            carry_fail(ctx, CARRY_EFORMAT, "%s has no f32 tensor " CARRY_SCALES_NAME " of [%" PRId64 ", %" PRId64 "]",
                       name, scales.shape[0], scales.shape[1]);
    }
    carry_safetensors_close(&file);
    return status;
}

carry_status carry_checkpoint_load_weights(carry_ctx *ctx, const char *path, const carry_parameters *model) {
    char name[CARRY_FILE_PATH];
    carry_safetensors file;
    CARRY_TRY(carry_file_in(ctx, name, path, CARRY_STATE_FILE));
    CARRY_TRY(carry_safetensors_open(ctx, &file, name));
    carry_status status = CARRY_OK;
    for (int64_t i = 0; i < model->parameters && status == CARRY_OK; i++) {
        const carry_parameter *p = &model->parameter[i];
        const carry_tensor *tensor;
        status = find_state(ctx, &tensor, 'w', p, &file);
        if (status == CARRY_OK) {
            status = carry_parameters_upload(model, model->weights, p->offset, tensor->data, p->count);
        }
    }
    carry_safetensors_close(&file);
    return status;
}
