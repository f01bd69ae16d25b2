/* Combines the tensors of each quantised matrix into one tensor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "file/weights.h"

#define CONFIG_LIMIT ((size_t)16 << 20)

static bool ends_in(const char *name, const char *end) {
    const size_t length = strlen(name);
    return length > strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* True if the tensor has the values of a quantised matrix. */
static bool has_values(const carry_safetensors_entry *entry) {
    const carry_dtype dtype = entry->view.dtype;
    return (dtype == CARRY_I32 && ends_in(entry->name, ".qweight")) ||
           ((dtype == CARRY_F8 || dtype == CARRY_I8) && ends_in(entry->name, ".weight"));
}

static int64_t count_values(const carry_weights *w) {
    int64_t count = 0;
    for (int64_t f = 0; f < w->files; f++) {
        for (int64_t i = 0; i < w->file[f].count; i++) {
            count += has_values(&w->file[f].entries[i]) ? 1 : 0;
        }
    }
    return count;
}

static const carry_tensor *find(const void *user, const char *name) {
    return carry_weights_find(user, name);
}

/* Writes the module of a tensor: its name without the last part. */
static void module_of(char to[CARRY_SAFETENSORS_NAME], const char *name) {
    (void)snprintf(to, CARRY_SAFETENSORS_NAME, "%.*s", (int)(strrchr(name, '.') - name), name);
}

static carry_status make_sources(carry_ctx *ctx, carry_weights *w, const carry_quant_config *config) {
    int64_t made = 0;
    for (int64_t f = 0; f < w->files; f++) {
        for (int64_t i = 0; i < w->file[f].count; i++) {
            const carry_safetensors_entry *entry = &w->file[f].entries[i];
            char module[CARRY_SAFETENSORS_NAME];
            if (!has_values(entry)) {
                continue;
            }
            module_of(module, entry->name);
            CARRY_TRY(carry_quant_source_make(ctx, &w->quantised[made++], config, module, find, w));
        }
    }
    return CARRY_OK;
}

/* True for a part of a quantised matrix other than its values. */
static bool is_part(const carry_weights *w, const char *name) {
    static const char *const parts[][2] = {{".qzeros", "qweight"},
                                           {".scales", "qweight"},
                                           {".g_idx", "qweight"},
                                           {".weight_scale_inv", "weight"},
                                           {".weight_scale", "weight"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char module[CARRY_SAFETENSORS_NAME];
        char values[CARRY_SAFETENSORS_NAME + 16];
        if (ends_in(name, parts[i][0])) {
            module_of(module, name);
            (void)snprintf(values, sizeof values, "%s.%s", module, parts[i][1]);
            return carry_weights_find(w, values) != NULL;
        }
    }
    return false;
}

/* Replaces the view of each tensor that has the values of a quantised matrix by a view of the whole matrix
   (carry_quant_source_view). Sets the data of the matrix's other tensors (scales, zeros) to NULL, so that remove_parts
   removes them. */
static carry_status rename_entries(carry_ctx *ctx, carry_weights *w) {
    int64_t made = 0;
    for (int64_t f = 0; f < w->files; f++) {
        for (int64_t i = 0; i < w->file[f].count; i++) {
            carry_safetensors_entry *entry = &w->file[f].entries[i];
            char module[CARRY_SAFETENSORS_NAME];
            char name[CARRY_SAFETENSORS_NAME + 8];
            if (!has_values(entry)) {
                continue;
            }
            module_of(module, entry->name);
            (void)snprintf(name, sizeof name, "%s.weight", module);
            if (entry->view.dtype == CARRY_I32 && carry_weights_find(w, name) != NULL) {
                return carry_fail(ctx, CARRY_EFORMAT, "%.200s is there quantised, as qweight, and not", name);
            }
            entry->view = carry_quant_source_view(&w->quantised[made++]);
        }
    }
    for (int64_t f = 0; f < w->files; f++) {
        bool *drops = calloc((size_t)w->file[f].count + 1, sizeof *drops);
        if (drops == NULL) {
            return carry_fail(ctx, CARRY_EMEMORY, "out of memory: quantised weights");
        }
        for (int64_t i = 0; i < w->file[f].count; i++) {
            drops[i] = is_part(w, w->file[f].entries[i].name);
        }
        for (int64_t i = 0; i < w->file[f].count; i++) {
            w->file[f].entries[i].view.data = drops[i] ? NULL : w->file[f].entries[i].view.data;
        }
        free(drops);
    }
    return CARRY_OK;
}

static void remove_parts(carry_weights *w) {
    w->count = 0;
    for (int64_t f = 0; f < w->files; f++) {
        carry_safetensors *file = &w->file[f];
        int64_t kept = 0;
        for (int64_t i = 0; i < file->count; i++) {
            carry_safetensors_entry *entry = &file->entries[i];
            char module[CARRY_SAFETENSORS_NAME];
            if (entry->view.data == NULL) {
                continue;
            }
            if (entry->view.dtype == CARRY_QUANTISED) {
                module_of(module, entry->name);
                (void)snprintf(entry->name, sizeof entry->name, "%.*s.weight", CARRY_SAFETENSORS_NAME - 8, module);
            }
            file->entries[kept++] = *entry;
        }
        file->count = kept;
        carry_safetensors_sort(file);
        w->count += kept;
    }
}

static carry_status read_config(carry_ctx *ctx, carry_quant_config *config, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, CONFIG_LIMIT));
    const carry_json *node = carry_json_find(root, "quantization_config");
    const carry_json *text = carry_json_find(root, "text_config");
    node = node != NULL ? node : carry_json_find(text, "quantization_config");
    carry_status status;
    if (node != NULL && node->kind == CARRY_JSON_OBJECT) {
        status = carry_quant_config_parse(ctx, config, node, path);
    } else {
        status = carry_fail(ctx, CARRY_EFORMAT, "%s has no \"quantization_config\", and %s has quantised tensors", path,
                            folder);
    }
    carry_json_free(root);
    return status;
}

carry_status carry_weights_join(carry_ctx *ctx, carry_weights *w, const char *folder) {
    const int64_t count = count_values(w);
    carry_quant_config config;
    if (count == 0 || carry_weights_is_file(folder)) { /* a single file has no config.json */
        return CARRY_OK;
    }
    CARRY_TRY(read_config(ctx, &config, folder));
    w->quantised = calloc((size_t)count, sizeof *w->quantised);
    if (w->quantised == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %lld quantised matrices", (long long)count);
    }
    CARRY_TRY(make_sources(ctx, w, &config));
    CARRY_TRY(rename_entries(ctx, w));
    remove_parts(w);
    return CARRY_OK;
}
