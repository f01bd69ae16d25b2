/* --device and --dtype. */
#include <stdlib.h>
#include <string.h>

#include "bench/collective.h"
#include "cli/ranks.h"
#include "core/error.h"
#include "core/tensor.h"
#include "engine/model_folder.h"

int cli_dtype(const char *text, carry_dtype *dtype) {
    char shown[64];
    if (text != NULL && (carry_dtype_parse(dtype, text) != CARRY_OK || !carry_dtype_is_real(*dtype))) {
        return cli_refuse("--dtype '%s': expected f32, bf16 or f16", cli_shown(shown, text));
    }
    return CLI_DONE;
}

void cli_choose_dtype(carry_ctx *ctx, const carry_model *model, const char *text, carry_dtype *dtype, char *why) {
    if (text == NULL) {
        *dtype = carry_model_dtype(ctx, model, why);
    } else {
        (void)snprintf(why, CARRY_MODEL_WHY, "--dtype");
    }
}

void cli_tell_dtype(carry_dtype dtype, char *why, bool is_json) {
    if (why[0] != '\0' && !is_json) {
        (void)fprintf(stderr, "%scomputing in %s: %s%s\n", cli_dim(), carry_dtype_name(dtype), why, cli_plain());
    }
    why[0] = '\0';
}

int cli_device(carry_ctx *ctx, const char *text, int *device) {
    carry_status status = CARRY_OK;
    if (text != NULL) {
        status = carry_device_named(ctx, device, text);
    } else if (carry_device_named(ctx, device, "cuda") != CARRY_OK) {
        *device = 0;
    }
    return status == CARRY_OK ? CLI_DONE : cli_refuse("--device: %s", carry_ctx_error(ctx));
}

const char *cli_device_name(char name[CLI_DEVICE], carry_ctx *ctx, int device) {
    carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
    if (device == 0 || carry_device_properties_of(ctx, &properties, device) != CARRY_OK) {
        (void)snprintf(name, CLI_DEVICE, "cpu");
    } else {
        (void)snprintf(name, CLI_DEVICE, "%s:%d, %s", properties.backend, device - 1, properties.name);
    }
    return name;
}

const char *cli_problem_device(const char *problem) {
    const bool on_gpu = strstr(problem, ":device=cuda") != NULL || strstr(problem, ":device=gpus") != NULL;
    return on_gpu ? "cuda" : "cpu";
}

/* Appends the device to the problem's text, if the problem can be planned there. */
static carry_status with_device(carry_ctx *ctx, char out[CARRY_PROBLEM_TEXT], const char *text, int device) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    char which[16] = "";
    if (device > 1) {
        (void)snprintf(which, sizeof which, "%d", device - 1);
    }
    const int length = snprintf(out, CARRY_PROBLEM_TEXT, "%s:device=%s%s", text, device == 0 ? "cpu" : "cuda", which);
    if (length >= CARRY_PROBLEM_TEXT) {
        out[0] = '\0';
        return CARRY_OK; /* the parser reports it later */
    }
    CARRY_TRY(carry_problem_parse(ctx, &problem, out));
    CARRY_TRY(carry_family_of(ctx, &family, &problem));
    if (carry_collective_ranks(ctx, out) > 0) { /* its ranks will plan it once they are started */
        return CARRY_OK;
    }
    CARRY_TRY(carry_family_plan(family, ctx, &instance, &problem, false));
    carry_family_close(family, instance);
    return CARRY_OK;
}

/* True if the problem may be given a GPU: its family runs on GPUs. A problem of several ranks also needs --device,
   since ranks that share one GPU are no faster. */
static bool may_move(carry_ctx *ctx, const char *text, bool wanted) {
    carry_problem problem;
    const carry_family *family;
    return carry_problem_parse(ctx, &problem, text) == CARRY_OK &&
           carry_family_of(ctx, &family, &problem) == CARRY_OK && (wanted || carry_collective_ranks(ctx, text) == 0) &&
           family->support.cuda != NULL;
}

/* Adds the GPU to problems[index] unless it names a device. A problem that cannot run on the GPU is refused if --device
   was given, else left unchanged. */
static int move_problem(carry_ctx *ctx, char *text, char **problems, int index, int device, bool wanted) {
    if (strstr(problems[index], ":device=") != NULL) {
        return CLI_DONE;
    }
    if (!may_move(ctx, problems[index], wanted)) {
        return wanted ? cli_refuse("--device: '%s' runs on the CPU only", problems[index]) : CLI_DONE;
    }
    if (with_device(ctx, text, problems[index], device) != CARRY_OK) {
        return wanted ? cli_refuse("%s", carry_ctx_error(ctx)) : CLI_DONE;
    }
    problems[index] = text[0] != '\0' ? text : problems[index];
    return CLI_DONE;
}

int cli_device_problems(const cli_common *common, const char *wanted, int words, char **problems, char **memory) {
    int device = 0;
    int moved = 0;
    carry_ctx *ctx = cli_open(common);
    int code = ctx == NULL ? CLI_IMPOSSIBLE : cli_device(ctx, wanted, &device);
    *memory = NULL;
    if (code == CLI_DONE && words > 0 && device != 0) {
        *memory = calloc((size_t)words, CARRY_PROBLEM_TEXT);
        code = *memory == NULL ? cli_refuse("out of memory: %d problems", words) : CLI_DONE;
    }
    for (int i = 0; i < words && code == CLI_DONE && *memory != NULL; i++) {
        const char *before = problems[i];
        code = move_problem(ctx, *memory + (size_t)i * CARRY_PROBLEM_TEXT, problems, i, device, wanted != NULL);
        moved += problems[i] != before;
    }
    if (code == CLI_DONE && moved > 0 && !common->json && cli_process_rank() <= 0) {
        char name[CLI_DEVICE];
        (void)printf("%s on %s\n", moved < words ? "problems without a device" : "all",
                     cli_device_name(name, ctx, device));
    }
    carry_ctx_free(ctx);
    return code;
}
