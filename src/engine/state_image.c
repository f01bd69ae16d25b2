/* States as files: tensors by name, checked against the runner for which they are read. */
#include "engine/state_image.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/tensor.h"

#define BLOCK CARRY_PAGE_TOKENS

/* The widest type of whose size the number of bytes is a multiple: files have no type for bytes. */
static carry_dtype type_of(size_t bytes) {
    return bytes % 8 == 0 ? CARRY_I64 : bytes % 4 == 0 ? CARRY_F32 : CARRY_BF16;
}

static carry_safetensors_item item_of(const char *name, const void *data, size_t unit, int64_t count) {
    const carry_dtype type = type_of(unit);
    const int64_t shape[] = {count, (int64_t)(unit / carry_dtype_size(type))};
    return (carry_safetensors_item){
        .name = name, .tensor = carry_view((void *)(uintptr_t)data, type, 2, shape), .dtype = type};
}

/* The types of a runner as they are written: a name of up to 8 characters is a number, so that a file has no other
   form of the same types. 0: not known. */
static int64_t number_of(const char *name) {
    int64_t number = 0;
    for (size_t i = 0; name != NULL && i < sizeof number && name[i] != '\0'; i++) {
        number |= (int64_t)(unsigned char)name[i] << (8 * i);
    }
    return number;
}

static const char *name_of(char text[9], int64_t number) {
    for (size_t i = 0; i < 8; i++) {
        const char c = (char)((uint64_t)number >> (8 * i) & 0x7f);
        text[i] = (char)(c == '\0' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ? c : '?');
    }
    text[8] = '\0';
    return text;
}

carry_status carry_state_image_write(carry_ctx *ctx, const char *path, carry_runner *runner,
                                     const carry_state_image *image) {
    const int64_t start[] = {image->start, (int64_t)image->start_hash};
    carry_state_about about = {.tokens = image->length, .ids = image->hash};
    CARRY_TRY(runner->ops->hash(runner, &about.model));
    if ((runner->sizes.slot_bytes | runner->sizes.page_bytes) % 2 != 0) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: a state of an odd number of bytes cannot be saved", path);
    }
    const int64_t types[] = {number_of(runner->sizes.kv_type), number_of(runner->sizes.state_type)};
    const carry_safetensors_item items[] = {
        item_of("tokens", image->ids, sizeof *image->ids, image->id_count), item_of("start", start, sizeof *start, 2),
        item_of("types", types, sizeof *types, 2), item_of("slot", image->slot, runner->sizes.slot_bytes, 1),
        item_of("pages", image->pages, runner->sizes.page_bytes, image->page_count)};
    return carry_state_write(ctx, path, &about, items, image->page_count > 0 ? 5 : 4);
}

static carry_status damaged(carry_ctx *ctx, const char *path, const char *name) {
    return carry_fail(ctx, CARRY_EFORMAT, "%s is not a state of this engine: '%s' is missing or has another shape",
                      path, name);
}

/* The data of a tensor with `count` times `unit` bytes, or NULL. */
static const void *data_of(const carry_state_file *file, const char *name, size_t unit, int64_t count) {
    const carry_tensor *t = carry_safetensors_find(&file->file, name);
    const carry_dtype type = type_of(unit);
    return t != NULL && t->dtype == type && t->rank == 2 && t->shape[0] == count &&
                   t->shape[1] == (int64_t)(unit / carry_dtype_size(type))
               ? t->data
               : NULL;
}

/* Files without types are of versions that had no choice of them. */
static carry_status check_types(carry_ctx *ctx, const carry_state_file *file, const char *path,
                                const carry_runner_sizes *sizes) {
    const int64_t *types = data_of(file, "types", sizeof *types, 2);
    const int64_t kv = number_of(sizes->kv_type);
    const int64_t state = number_of(sizes->state_type);
    char text[4][9];
    if (types == NULL) {
        return carry_safetensors_find(&file->file, "types") == NULL ? CARRY_OK : damaged(ctx, path, "types");
    }
    return types[0] == kv && types[1] == state
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT,
                            "%s has keys and values in %s and states in %s, and this engine %s and %s: use --kv-type "
                            "and --state-type of the file, or read its text again",
                            path, name_of(text[0], types[0]), name_of(text[1], types[1]), name_of(text[2], kv),
                            name_of(text[3], state));
}

static carry_status check_image(carry_ctx *ctx, const carry_state_file *file, carry_state_image *image,
                                const char *path, const carry_runner_sizes *sizes) {
    const carry_tensor *tokens = carry_safetensors_find(&file->file, "tokens");
    const int64_t *start = data_of(file, "start", sizeof *start, 2);
    *image = (carry_state_image){.length = file->about.tokens, .hash = file->about.ids};
    if (tokens == NULL || tokens->rank != 2 || start == NULL) {
        return damaged(ctx, path, tokens == NULL || tokens->rank != 2 ? "tokens" : "start");
    }
    image->start = start[0];
    image->start_hash = (uint64_t)start[1];
    image->id_count = tokens->shape[0];
    image->ids = data_of(file, "tokens", sizeof(int64_t), image->id_count);
    if (image->start < 0 || image->start % BLOCK != 0 || image->start >= image->length ||
        image->length > sizes->context || image->length - image->start > image->id_count ||
        image->id_count > sizes->context || image->ids == NULL) {
        return carry_fail(ctx, CARRY_EFORMAT,
                          "%s has tokens %" PRId64 " to %" PRId64 ": this engine has a context of %" PRId64, path,
                          image->start, image->length, sizes->context);
    }
    for (int64_t i = 0; i < image->id_count; i++) {
        if (image->ids[i] < 0 || image->ids[i] >= sizes->vocabulary) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s has token %" PRId64 ": the model has ids from 0 to %" PRId64,
                              path, image->ids[i], sizes->vocabulary - 1);
        }
    }
    image->page_count = sizes->page_bytes > 0 ? (image->length + BLOCK - 1) / BLOCK - image->start / BLOCK : 0;
    image->slot = data_of(file, "slot", sizes->slot_bytes, 1);
    image->pages = image->page_count > 0 ? data_of(file, "pages", sizes->page_bytes, image->page_count) : NULL;
    if (image->slot == NULL || (image->page_count > 0 && image->pages == NULL)) {
        return damaged(ctx, path, image->slot == NULL ? "slot" : "pages");
    }
    return carry_hash_ids(image->start_hash, image->ids, image->length - image->start) == image->hash
               ? CARRY_OK
               : damaged(ctx, path, "tokens");
}

static carry_status check_file(carry_ctx *ctx, const carry_state_file *file, carry_state_image *image, const char *path,
                               carry_runner *runner) {
    uint64_t model;
    CARRY_TRY(runner->ops->hash(runner, &model));
    if (file->about.model != model) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%s is a state of another model: open the model that it was saved from",
                          path);
    }
    CARRY_TRY(check_types(ctx, file, path, &runner->sizes));
    return check_image(ctx, file, image, path, &runner->sizes);
}

/* Closes the file after a failure. */
static carry_status checked(carry_state_file *file, carry_state_image *image, carry_status status) {
    if (status != CARRY_OK) {
        carry_state_close(file);
        *image = (carry_state_image){0};
    }
    return status;
}

carry_status carry_state_image_map(carry_ctx *ctx, carry_state_file *file, carry_state_image *image, const char *path,
                                   carry_runner *runner) {
    *image = (carry_state_image){0};
    CARRY_TRY(carry_state_map(ctx, file, path));
    return checked(file, image, check_file(ctx, file, image, path, runner));
}

carry_status carry_state_image_open(carry_ctx *ctx, carry_state_file *file, carry_state_image *image, const char *path,
                                    carry_runner *runner) {
    *image = (carry_state_image){0};
    CARRY_TRY(carry_state_open(ctx, file, path));
    return checked(file, image, check_file(ctx, file, image, path, runner));
}
