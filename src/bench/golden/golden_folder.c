/* Folders with a model and its expected results: finds their kind in config.json. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "carry/delta.h"
#include "carry/device.h"
#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "bench/golden/golden.h"
#include "core/json.h"
#include "model/lm/families/family.h"

#define CONFIG_LIMIT ((size_t)4 << 20)

/* Kinds of folders other than language models: a key of config.json, its value, and the function that checks such a
   folder. Language models are those in the table of families. */
static const struct {
    const char *key, *value;
    carry_golden_folder check;
    bool on_gpus;
} kinds[] = {
    {"model_type", "umt5", carry_golden_umt5, true},
    {"_class_name", "TAEHV", carry_golden_tae, true},
    {"_class_name", "AutoencoderKLWan", carry_golden_wan_vae, true},
    {"_class_name", "WanModel", carry_golden_dit, true},
    {"model_type", "t2v", carry_golden_dit, true}, /* Wan's, without a class name */
};
#define KINDS (sizeof kinds / sizeof kinds[0])

double carry_golden_error(const carry_tensor *wanted, const carry_tensor *got) {
    double difference = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < carry_tensor_count(wanted); i++) {
        double value = carry_tensor_at(wanted, i);
        double off = carry_tensor_at(got, i) - value;
        difference += off * off;
        magnitude += value * value;
    }
    return magnitude > 0.0 ? sqrt(difference / magnitude) : sqrt(difference);
}

/* The error message for a folder of an unknown or unsupported kind. */
static carry_status refuse(carry_ctx *ctx, const carry_json *root, const char *path) {
    static const char *const keys[] = {"model_type", "_class_name"};
    char shown[CARRY_JSON_SHOWN];
    char list[512] = "";
    const carry_lm_family *family;
    for (int i = 0; (family = carry_lm_family_at(i)) != NULL; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s, ", family->name);
    }
    for (size_t i = 0; i < KINDS; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s",
                       i == 0          ? ""
                       : i + 1 < KINDS ? ", "
                                       : " and ",
                       kinds[i].value);
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const carry_json *value = carry_json_find(root, keys[i]);
        if (value != NULL) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s has %s %s: only %s can be checked", path, keys[i],
                              carry_json_show(shown, value), list);
        }
    }
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s has no \"model_type\" and no \"_class_name\": only %s can be checked", path, list);
}

static carry_status kind_of(carry_ctx *ctx, carry_golden_folder *check, bool *on_gpus, const char *folder) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    *check = NULL;
    CARRY_TRY(carry_file_in(ctx, path, folder, "config.json"));
    CARRY_TRY(carry_json_read(ctx, &root, path, CONFIG_LIMIT));
    if (carry_lm_family_of(carry_json_find(root, "model_type")) != NULL) {
        *check = carry_golden_lm;
        *on_gpus = true;
    }
    for (size_t i = 0; *check == NULL && i < KINDS; i++) {
        if (carry_json_is_text(carry_json_find(root, kinds[i].key), kinds[i].value)) {
            *check = kinds[i].check;
            *on_gpus = kinds[i].on_gpus;
        }
    }
    carry_status status = *check != NULL ? CARRY_OK : refuse(ctx, root, path);
    carry_json_free(root);
    return status;
}

static carry_status refuse_device(carry_ctx *ctx, const char *path, int device) {
    return carry_fail(ctx, CARRY_EUNSUPPORTED,
                      "%s is checked on the CPU only, not on device %d: language models, video "
                      "transformers and the delta rule are checked on GPUs",
                      path, device);
}

carry_status carry_golden(carry_ctx *ctx, const char *path, int device,
                          void (*report)(void *user, const carry_golden_line *line), void *user) {
    struct stat about;
    carry_golden_folder check = NULL;
    char name[64];
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        bool on_gpu = device < 0 && carry_device_count() > 1 && carry_delta_name(1, 0) != NULL;
        return carry_golden_delta(ctx, path, on_gpu ? 1 : device > 0 ? device : 0, report, user);
    }
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t start = length;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(length - start < 60 ? length - start : 60), path + start);
    bool on_gpus = false;
    CARRY_TRY(kind_of(ctx, &check, &on_gpus, path));
    if (device > 0 && !on_gpus) {
        return refuse_device(ctx, path, device);
    }
    if (device < 0) {
        device = on_gpus && carry_device_count() > 1 ? 1 : 0;
    }
    return check(ctx, path, name, device, report, user);
}
