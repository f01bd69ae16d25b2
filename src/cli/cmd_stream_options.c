/* carry stream: from what was typed to the options of a pipeline. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "stream/stage.h"

#define DEMO "models/shapes"

static bool is_model(const char *folder) {
    char path[CARRY_FILE_PATH];
    const int length = snprintf(path, sizeof path, "%s/config.json", folder);
    return length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0;
}

/* In this folder or one above it: of a source tree, or installed. */
static bool find_upwards(char found[CARRY_FILE_PATH], char *at) {
    for (;;) {
        (void)snprintf(found, CARRY_FILE_PATH, "%s/" DEMO, at);
        if (is_model(found)) {
            return true;
        }
        (void)snprintf(found, CARRY_FILE_PATH, "%s/share/carry/" DEMO, at);
        if (is_model(found)) {
            return true;
        }
        char *slash = strrchr(at, '/');
        if (slash == NULL) {
            return false;
        }
        *slash = '\0';
    }
}

/* The model that comes with the program: installed beside it, or in the source tree around it or around here. */
static bool find_demo(char found[CARRY_FILE_PATH]) {
    char here[CARRY_FILE_PATH - 64];
    const ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
    if (length > 0) {
        here[length] = '\0';
        if (find_upwards(found, here)) {
            return true;
        }
    }
    return getcwd(here, sizeof here) != NULL && find_upwards(found, here);
}

static int choose_model(stream_desk *desk) {
    stream_wish *w = &desk->wish;
    if ((w->model != NULL) + (w->config != NULL) + w->demo > 1) {
        return cli_refuse("--model, --config and --demo each name a model: give one of them");
    }
    if (w->model != NULL) {
        (void)snprintf(desk->model, sizeof desk->model, "%s", w->model);
    } else if (w->config == NULL && !find_demo(desk->model)) {
        return cli_refuse("the demo's model, " DEMO ", is not here: give --model FOLDER, or --config shapes for random "
                          "weights");
    }
    const carry_status status = w->config != NULL ? carry_dit_config_named(desk->ctx, &desk->config, w->config)
                                                  : carry_dit_config_read(desk->ctx, &desk->config, desk->model);
    return status == CARRY_OK ? CLI_DONE : cli_refuse("%s", carry_ctx_error(desk->ctx));
}

static int parse_size(carry_pipeline_options *o, const char *text) {
    char *end;
    char shown[64];
    errno = 0;
    o->width = strtoll(text, &end, 10);
    if (end != text && *end == 'x') {
        const char *second = end + 1;
        o->height = strtoll(second, &end, 10);
        if (end != second && *end == '\0' && errno == 0 && o->width > 0 && o->height > 0) {
            return CLI_DONE;
        }
    }
    return cli_refuse("--size needs a width and a height in pixels such as 64x64, not '%s'", cli_shown(shown, text));
}

static int parse_steps(carry_control_state *state, const char *text) {
    char shown[64];
    const char *at = text;
    state->steps = 0;
    for (;;) {
        char *end;
        errno = 0;
        const long long step = strtoll(at, &end, 10);
        if (end == at || errno != 0 || (*end != ',' && *end != '\0') || state->steps == CARRY_CONTROL_STEPS) {
            return cli_refuse("--steps needs up to %d falling numbers such as 1000,750,500,250, not '%s'",
                              CARRY_CONTROL_STEPS, cli_shown(shown, text));
        }
        state->step[state->steps++] = step;
        if (*end == '\0') {
            return CLI_DONE;
        }
        at = end + 1;
    }
}

static int choice(const char *option, const char *text, const char *const *names, int count, int *chosen) {
    char shown[64];
    char list[96] = "";
    for (int i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *chosen = i;
            return CLI_DONE;
        }
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : i + 1 == count ? " or " : ", ", names[i]);
    }
    return cli_refuse("--%s is %s, not '%s'", option, list, cli_shown(shown, text));
}

static int take_prompts(stream_desk *desk) {
    const cli_texts *prompts = &desk->wish.prompts;
    carry_control_state *state = &desk->start;
    if (prompts->count > CARRY_PROMPTS) {
        return cli_refuse("%d prompts: at most %d are mixed", prompts->count, CARRY_PROMPTS);
    }
    for (int i = 0; i < prompts->count; i++) {
        const size_t length = strlen(prompts->text[i]);
        if (length > CARRY_PROMPT_BYTES) {
            return cli_refuse("a prompt of %zu bytes: at most %d are taken", length, CARRY_PROMPT_BYTES);
        }
        memcpy(state->prompt[i].text, prompts->text[i], length + 1);
        state->prompt[i].length = length;
        state->prompt[i].weight = 1.0;
    }
    if (prompts->count > 0) {
        state->prompts = prompts->count;
    } else {
        static const char shown[] = "red circle moving left";
        memcpy(state->prompt[0].text, shown, sizeof shown);
        state->prompt[0].length = sizeof shown - 1;
    }
    return CLI_DONE;
}

static int take_controls(stream_desk *desk) {
    const stream_wish *w = &desk->wish;
    carry_control_state *state = &desk->start;
    *state = carry_control_default();
    state->seed = (uint64_t)desk->common.seed;
    state->kv_bias = w->kv_bias;
    state->noise = w->noise;
    state->transition = w->transition;
    if (desk->config.steps > 0) {
        state->steps = (int)desk->config.steps;
        memcpy(state->step, desk->config.step, sizeof desk->config.step);
    }
    int code = take_prompts(desk);
    if (code == CLI_DONE && w->steps != NULL) {
        code = parse_steps(state, w->steps);
    }
    if (code == CLI_DONE && w->batch > 0 && w->batch != state->steps) {
        code = cli_refuse("--batch %lld has as many chunks at once as there are steps, which are %d",
                          (long long)w->batch, state->steps);
    }
    if (code == CLI_DONE && carry_controls_new(desk->ctx, &desk->controls, state) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(desk->ctx));
    }
    return code;
}

static int64_t first_of(int64_t typed, int64_t model, int64_t otherwise) {
    return typed >= 0 ? typed : model > 0 ? model : otherwise;
}

static int take_options(stream_desk *desk) {
    static const char *const modes[] = {"off", "anchor", "latent"};
    static const char *const topologies[] = {"pipeline", "mesh"};
    const stream_wish *w = &desk->wish;
    const carry_dit_config *c = &desk->config;
    carry_pipeline_options *o = &desk->options;
    int mode = 0;
    int topology = 0;
    if (w->depth > CARRY_STAGE_DEPTH) { /* it is an int below */
        return cli_refuse("--depth %lld: 1 to %d envelopes are under way", (long long)w->depth, CARRY_STAGE_DEPTH);
    }
    *o = (carry_pipeline_options){
        .model = desk->model[0] != '\0' ? desk->model : NULL,
        .codec = w->codec,
        .config = *c,
        .chunk = first_of(w->chunk, c->chunk_frames, 3),
        .window = first_of(w->window, c->window_frames, 21),
        .sink = first_of(w->sink, c->sink_frames, 0),
        .shift = !isnan(w->shift) ? w->shift
                 : c->shift > 0.0 ? c->shift
                                  : 5.0,
        .depth = (int)w->depth,
        .chunks = w->chunks,
        .batch = w->batch,
        .slow_stage0 = 1e-3 * w->slow_stage0,
        .slow_stage1 = 1e-3 * w->slow_stage1,
        .fps = !isnan(w->fps)                  ? w->fps
               : w->serve || w->record != NULL ? 16.0
                                               : 0.0,
    };
    int code = parse_size(o, w->size);
    code = code == CLI_DONE ? choice("recompute", w->recompute, modes, 3, &mode) : code;
    code = code == CLI_DONE ? choice("topology", w->topology, topologies, 2, &topology) : code;
    o->recompute = (carry_recompute)mode;
    o->context = o->recompute == CARRY_RECOMPUTE_OFF ? 0 : w->context > 0 ? w->context : o->chunk;
    o->clean_pass = o->recompute == CARRY_RECOMPUTE_OFF && !w->no_clean;
    o->with_stage = topology == 0;
    return code;
}

/* What would be of no effect was meant for something. */
static int refuse_idle(const stream_wish *w) {
    if (w->processes > 0 && !w->supervise) {
        return cli_refuse("--processes is of --supervise: without it, mpirun -n %lld carry stream ... starts ranks",
                          (long long)w->processes);
    }
    if (w->context > 0 && strcmp(w->recompute, "off") == 0) {
        return cli_refuse("--context is of a recompute: give --recompute latent or anchor with it");
    }
    const char *of_page = w->address != NULL     ? "address"
                          : w->token != NULL     ? "token"
                          : w->record_to != NULL ? "record-to"
                                                 : NULL;
    return of_page == NULL || w->serve ? CLI_DONE : cli_refuse("--%s is of the page: give --serve with it", of_page);
}

int stream_prepare(stream_desk *desk) {
    carry_dit_config config;
    const int ranks = cli_ranks();
    int code = refuse_idle(&desk->wish);
    code = code == CLI_DONE ? choose_model(desk) : code;
    code = code == CLI_DONE ? take_options(desk) : code;
    if (code == CLI_DONE && ranks > 0 && carry_pipeline_check(desk->ctx, &desk->options, &config, ranks) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(desk->ctx));
    }
    code = code == CLI_DONE ? take_controls(desk) : code;
    return code == CLI_DONE ? stream_page_check(desk) : code;
}
