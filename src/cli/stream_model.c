/* Chooses the model of a stream. */
#include "cli/stream_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/shared.h"
#include "file/checkpoint.h"
#include "file/weights.h"

#define DEMO "models/shapes"

/* Looks for the demo model in the working folder and its parents, then in the installation. */
static bool find_demo(char found[CARRY_FILE_PATH]) {
    char here[CARRY_FILE_PATH - 64];
    if (getcwd(here, sizeof here) != NULL) {
        for (char *slash = here + strlen(here); slash != NULL; slash = strrchr(here, '/')) {
            *slash = '\0';
            (void)snprintf(found, CARRY_FILE_PATH, "%s/" DEMO "/config.json", here);
            if (access(found, R_OK) == 0) {
                (void)snprintf(found, CARRY_FILE_PATH, "%s/" DEMO, here);
                return true;
            }
        }
    }
    return carry_file_shared(found, DEMO);
}

/* Sets `found` to FOLDER/name if that exists, else to "". */
static bool find_in(char found[CARRY_FILE_PATH], const char *folder, const char *name) {
    const int length = snprintf(found, CARRY_FILE_PATH, "%s/%s", folder, name);
    const bool is_there = length > 0 && length < CARRY_FILE_PATH && access(found, F_OK) == 0;
    found[0] = is_there ? found[0] : '\0';
    return is_there;
}

/* For a training run that has not ended: finds the newest complete step. */
static carry_status find_step(carry_ctx *ctx, stream_model *model) {
    char found[CARRY_FILE_PATH];
    char folder[CARRY_FILE_PATH];
    if (find_in(found, model->folder, "config.json") || find_in(found, model->folder, "transformer/config.json")) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_checkpoint_resolve(ctx, folder, model->folder));
    memcpy(model->folder, folder, sizeof folder);
    return CARRY_OK;
}

/* Finds the transformer of a folder, and the parts beside it. */
static void find_parts(stream_model *model, const char *folder) {
    char root[CARRY_FILE_PATH];
    char found[CARRY_FILE_PATH];
    (void)snprintf(root, sizeof root, "%s", folder);
    if (!find_in(found, folder, "config.json") && find_in(found, folder, "transformer/config.json")) {
        (void)find_in(model->folder, folder, "transformer");
    } else if (carry_weights_is_file(folder)) {
        char *slash = strrchr(root, '/');
        (void)snprintf(root, sizeof root, "%.*s", slash != NULL ? (int)(slash - root) : 1,
                       slash != NULL ? folder : ".");
    }
    (void)find_in(model->text_encoder, root, "text_encoder");
    if (!find_in(model->codec, root, "vae")) {
        (void)find_in(model->codec, root, "codec");
    }
    model->needs_text = !find_in(found, model->folder, "words.txt");
}

carry_status stream_model_choose(carry_ctx *ctx, stream_model *model, const char *folder, const char *config) {
    *model = (stream_model){0};
    if (config != NULL) {
        return carry_dit_config_named(ctx, &model->config, config);
    }
    if (folder != NULL) {
        (void)snprintf(model->folder, sizeof model->folder, "%s", folder);
        if (access(folder, F_OK) != 0 && errno == ENOENT) {
            return carry_fail(ctx, CARRY_ENOTFOUND,
                              "there is no folder %s: a model is a folder with config.json and weights", folder);
        }
        struct stat about;
        if (stat(folder, &about) == 0 && !S_ISDIR(about.st_mode) && !carry_weights_is_file(folder)) {
            const char *end = strrchr(folder, '.');
            const bool is_pickled = end != NULL && (strcmp(end, ".pt") == 0 || strcmp(end, ".pth") == 0 ||
                                                    strcmp(end, ".ckpt") == 0 || strcmp(end, ".bin") == 0);
            return is_pickled
                       ? carry_fail(
                             ctx, CARRY_EARGUMENT,
                             "%s is a file of PyTorch, which is not read here: python3 -m libcarry.convert makes "
                             "a .safetensors file of it (docs/streaming.md)",
                             folder)
                       : carry_fail(ctx, CARRY_EARGUMENT,
                                    "%s is not a folder: a model is a folder with config.json and weights", folder);
        }
        if (!carry_weights_is_file(folder)) {
            CARRY_TRY(find_step(ctx, model));
        }
        find_parts(model, folder);
    } else if (!find_demo(model->folder)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "the demo's model, " DEMO ", was not found: name a folder as the model, or shapes as the "
                          "config for random weights");
    }
    return carry_dit_config_read(ctx, &model->config, model->folder);
}

carry_pipeline_options stream_model_options(const stream_model *model) {
    const carry_dit_config *c = &model->config;
    return (carry_pipeline_options){
        .model = model->folder[0] != '\0' ? model->folder : NULL,
        .codec = model->codec[0] != '\0' ? model->codec : NULL,
        .text_encoder = model->text_encoder[0] != '\0' ? model->text_encoder : NULL,
        .config = *c,
        .chunk = c->chunk_frames > 0 ? c->chunk_frames : 3,
        .window = c->window_frames > 0 ? c->window_frames : 21,
        .sink = c->sink_frames > 0 ? c->sink_frames : 0,
        .shift = c->shift > 0.0 ? c->shift : 5.0,
    };
}

carry_control_state stream_model_controls(const stream_model *model) {
    static const char shown[] = "red circle moving left";
    carry_control_state state = carry_control_default();
    if (model->config.steps > 0) {
        state.steps = (int)model->config.steps;
        memcpy(state.step, model->config.step, sizeof model->config.step);
    }
    memcpy(state.prompt[0].text, shown, sizeof shown);
    state.prompt[0].length = sizeof shown - 1;
    return state;
}

bool stream_set_size(carry_pipeline_options *options, const char *text) {
    char *end;
    errno = 0;
    options->width = strtoll(text, &end, 10);
    if (end == text || *end != 'x') {
        return false;
    }
    const char *second = end + 1;
    options->height = strtoll(second, &end, 10);
    return end != second && *end == '\0' && errno == 0 && options->width > 0 && options->height > 0;
}

void stream_set_recompute(carry_pipeline_options *options, carry_recompute recompute, int64_t context) {
    options->recompute = recompute;
    options->context = recompute == CARRY_RECOMPUTE_OFF ? 0 : context > 0 ? context : options->chunk;
    options->clean_pass = recompute == CARRY_RECOMPUTE_OFF;
}
