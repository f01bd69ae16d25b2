/* Opens weights in one file or several. */
#include "file/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "file/gguf_model.h"

#define INDEX_LIMIT ((size_t)64 << 20)
#define FILE_LIMIT 4096 /* limit of files per model */

static carry_status open_one(carry_ctx *ctx, carry_weights *w, const char *path) {
    carry_safetensors *grown = realloc(w->file, (size_t)(w->files + 1) * sizeof *grown);
    if (grown == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", path);
    }
    w->file = grown;
    CARRY_TRY(carry_safetensors_open(ctx, &w->file[w->files], path));
    w->count += w->file[w->files].count;
    w->files++;
    return CARRY_OK;
}

/* True if the node is a plain file name, without a path. */
static bool is_plain(const carry_json *node) {
    if (node->kind != CARRY_JSON_STRING || node->as.text.length < 1 || node->as.text.length > 255) {
        return false;
    }
    const char *name = node->as.text.bytes;
    return strlen(name) == node->as.text.length && strchr(name, '/') == NULL && strchr(name, '\\') == NULL &&
           name[0] != '.';
}

/* Returns the index of a file name in `seen`, and appends the name if it is new. */
static int64_t place_of(const char **seen, int64_t *count, const char *name) {
    for (int64_t i = *count - 1; i >= 0; i--) { /* neighbours in the index are mostly in one file */
        if (strcmp(seen[i], name) == 0) {
            return i;
        }
    }
    if (*count == FILE_LIMIT) {
        return -1;
    }
    seen[(*count)++] = name;
    return *count - 1;
}

static carry_status open_listed(carry_ctx *ctx, carry_weights *w, const char *folder, const carry_json *map,
                                const char *path, const char **seen) {
    int64_t files = 0;
    for (const carry_json *node = map->as.inside.first; node != NULL; node = node->next) {
        char shown[CARRY_JSON_SHOWN];
        char file[CARRY_FILE_PATH];
        if (!is_plain(node)) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s, line %u: '%.60s' is said to be in %s, which is not a file name",
                              path, node->line, node->key, carry_json_show(shown, node));
        }
        const char *name = node->as.text.bytes;
        int64_t place = place_of(seen, &files, name);
        if (place < 0) {
            return carry_fail(ctx, CARRY_ESIZE, "%s lists more than %d files", path, FILE_LIMIT);
        }
        if (place == w->files) {
            CARRY_TRY(carry_file_in(ctx, file, folder, name));
            CARRY_TRY(open_one(ctx, w, file));
        }
        if (strlen(node->key) != node->key_length || carry_safetensors_find(&w->file[place], node->key) == NULL) {
            return carry_fail(ctx, CARRY_EFORMAT, "%s, line %u: '%.60s' is not in %s", path, node->line, node->key,
                              name);
        }
    }
    if (w->count != map->as.inside.count) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s lists %lld tensors and its files hold %lld", path,
                          (long long)map->as.inside.count, (long long)w->count);
    }
    return CARRY_OK;
}

static carry_status open_index(carry_ctx *ctx, carry_weights *w, const char *folder, const char *path) {
    carry_json *root;
    CARRY_TRY(carry_json_read(ctx, &root, path, INDEX_LIMIT));
    const carry_json *map = carry_json_find(root, "weight_map");
    const char **seen = malloc(FILE_LIMIT * sizeof *seen);
    carry_status status;
    if (seen == NULL) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", path);
    } else if (map == NULL || map->kind != CARRY_JSON_OBJECT) {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s has no \"weight_map\"", path);
    } else {
        status = open_listed(ctx, w, folder, map, path, seen);
    }
    free(seen);
    carry_json_free(root);
    return status;
}

bool carry_weights_is_file(const char *folder) {
    static const char end[] = ".safetensors";
    const size_t length = strlen(folder);
    struct stat about;
    return length > sizeof end && strcmp(folder + length - (sizeof end - 1), end) == 0 && stat(folder, &about) == 0 &&
           S_ISREG(about.st_mode);
}

carry_status carry_weights_open(carry_ctx *ctx, carry_weights *w, const char *folder) {
    /* The names used by transformers and diffusers. If both are missing, the error names the first. */
    static const char *const names[] = {"model.safetensors", "diffusion_pytorch_model.safetensors"};
    char path[CARRY_FILE_PATH];
    *w = (carry_weights){0};
    if (carry_gguf_is_file(folder)) {
        return carry_gguf_weights(ctx, w, folder);
    }
    carry_status status = CARRY_OK;
    bool found = carry_weights_is_file(folder);
    if (found) {
        status = open_one(ctx, w, folder);
    }
    for (int i = 0; status == CARRY_OK && !found && i < 4; i++) {
        const bool listed = i % 2 == 1;
        char name[64];
        (void)snprintf(name, sizeof name, "%s%s", names[i / 2], listed ? ".index.json" : "");
        CARRY_TRY(carry_file_in(ctx, path, folder, name));
        found = access(path, F_OK) == 0;
        if (found) {
            status = listed ? open_index(ctx, w, folder, path) : open_one(ctx, w, path);
        }
    }
    if (!found) {
        CARRY_TRY(carry_file_in(ctx, path, folder, names[0]));
        status = open_one(ctx, w, path);
    }
    status = status == CARRY_OK ? carry_weights_join(ctx, w, folder) : status;
    if (status != CARRY_OK) {
        carry_weights_close(w);
    }
    return status;
}

void carry_weights_close(carry_weights *w) {
    for (int64_t i = 0; i < w->files; i++) {
        carry_safetensors_close(&w->file[i]);
    }
    free(w->file);
    free(w->quantised);
    free(w->made);
    *w = (carry_weights){0};
}

const carry_tensor *carry_weights_find(const carry_weights *w, const char *name) {
    for (int64_t i = 0; i < w->files; i++) {
        const carry_tensor *found = carry_safetensors_find(&w->file[i], name);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

const char *carry_weights_name(const carry_weights *w, int64_t index) {
    for (int64_t i = 0; i < w->files; i++) {
        if (index < w->file[i].count) {
            return w->file[i].entries[index].name;
        }
        index -= w->file[i].count;
    }
    return NULL;
}

size_t carry_weights_bytes(const carry_weights *w, int64_t file) {
    return file >= 0 && file < w->files ? w->file[file].mapping_bytes : 0;
}

int64_t carry_weights_file_of(const carry_weights *w, const void *data) {
    for (int64_t i = 0; i < w->files; i++) {
        const uintptr_t first = (uintptr_t)w->file[i].mapping;
        if (first != 0 && (uintptr_t)data >= first && (uintptr_t)data - first < w->file[i].mapping_bytes) {
            return i;
        }
    }
    return -1;
}

static void advise(const carry_weights *w, int64_t file, int advice) {
    if (file >= 0 && file < w->files && w->file[file].mapping != NULL) {
        (void)madvise(w->file[file].mapping, w->file[file].mapping_bytes, advice);
    }
}

void carry_weights_announce(const carry_weights *w, int64_t file) {
    advise(w, file, MADV_WILLNEED);
}

void carry_weights_release(const carry_weights *w, int64_t file) {
    advise(w, file, MADV_DONTNEED);
}
