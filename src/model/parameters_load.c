/* Loads all parameters from the files of a folder, file after file.

   Files are mapped. While all threads check, convert and upload the tensors of one file, the system reads the next; the
   pages of a file that was loaded are released. So a folder of any size needs the memory of two files. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "model/parameters_file.h"

/* Returns the folder's files: the mapped ones if there are any, else it opens them. */
static carry_status open_files(const carry_parameters *own, carry_weights *weights, const char *folder) {
    if (own->files.files == 0) {
        return carry_weights_open(own->ctx, weights, folder);
    }
    *weights = own->files;
    return CARRY_OK;
}

carry_dtype carry_parameters_stored(const carry_parameters *own) {
    const int64_t *of = own->stored;
    return of[CARRY_BF16] > of[CARRY_F32] && of[CARRY_BF16] > of[CARRY_F16] ? CARRY_BF16
           : of[CARRY_F16] > of[CARRY_F32]                                  ? CARRY_F16
                                                                            : CARRY_F32;
}

/* Reports progress, for folders of several files. */
static void report(const carry_parameters *own, const carry_weights *weights, int64_t file, const char *folder) {
    double read = 0.0;
    double all = 0.0;
    for (int64_t i = 0; i < weights->files; i++) {
        all += 1e-9 * (double)carry_weights_bytes(weights, i);
        read += i <= file ? 1e-9 * (double)carry_weights_bytes(weights, i) : 0.0;
    }
    if (weights->files > 1) {
        carry_log(own->ctx, CARRY_LOG_INFO, "%s: read %" PRId64 " of %" PRId64 " files, %.2f of %.2f GB", folder,
                  file + 1, weights->files, read, all);
    }
}

/* Loads the parameters of every file in turn; parameters whose file is not known come first. Files that were mapped
   before stay mapped. */
static carry_status load_files(carry_parameters *own, const carry_weights *weights, const char *folder) {
    const bool stays_mapped = own->files.files > 0;
    int64_t *file = calloc((size_t)own->parameters + 1, sizeof *file);
    carry_status status = file != NULL ? CARRY_OK : carry_fail(own->ctx, CARRY_EMEMORY, "out of memory: %s", folder);
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        file[i] = carry_parameters_file_of(own, weights, i);
    }
    for (int64_t at = -1; status == CARRY_OK && at < weights->files; at++) {
        if (weights->files > 1) {
            carry_weights_announce(weights, at + 1);
        }
        for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
            status = file[i] == at ? carry_parameters_load_one(own, weights, i, folder) : CARRY_OK;
        }
        if (at >= 0 && status == CARRY_OK) {
            report(own, weights, at, folder);
        }
        if (at >= 0 && !stays_mapped && weights->files > 1) {
            carry_weights_release(weights, at);
        }
    }
    free(file);
    return status;
}

carry_status carry_parameters_load(carry_parameters *own, const char *folder,
                                   bool (*spare)(const void *model, const carry_weights *weights, const char *name),
                                   const void *model) {
    carry_weights weights;
    CARRY_TRY(open_files(own, &weights, folder));
    memset(own->stored, 0, sizeof own->stored);
    own->quantised = 0;
    carry_status status = load_files(own, &weights, folder);
    /* All parameters were found: any other tensor is surplus. */
    const bool renames = own->other != NULL; /* then equal numbers prove nothing */
    for (int64_t i = 0; status == CARRY_OK && (renames || weights.count != own->parameters) && i < weights.count; i++) {
        const char *name = carry_weights_name(&weights, i);
        if (carry_parameters_find(own, name) == NULL && (spare == NULL || !spare(model, &weights, name))) {
            const carry_tensor *tensor = carry_weights_find(&weights, name);
            char has[CARRY_SHAPE_TEXT];
            status = carry_fail(own->ctx, CARRY_EFORMAT,
                                "%s: the tensor %.80s of shape %s has no place in the configured model", folder, name,
                                carry_shape_text(has, tensor->rank, tensor->shape));
        }
    }
    if (own->files.files == 0) {
        carry_weights_close(&weights);
    }
    return status == CARRY_OK ? carry_parameters_round(own) : status;
}
