/* carry stream: from what was typed to the options of a pipeline. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "stream/stage.h"
#include "stream/vocabulary.h"

static int choose_model(stream_desk *desk) {
    const stream_wish *w = &desk->wish;
    if ((w->model != NULL) + (w->config != NULL) + w->demo > 1) {
        return cli_refuse("--model, --config and --demo each name a model: give one of them");
    }
    return stream_model_choose(desk->ctx, &desk->model, w->model, w->config) == CARRY_OK
               ? CLI_DONE
               : cli_refuse("%s", carry_ctx_error(desk->ctx));
}

/* The fixed vectors of words are of models that were trained on them, and of random weights. */
static int choose_text(const stream_desk *desk, carry_pipeline_options *o) {
    const char *typed = desk->wish.text_encoder;
    const bool is_none = typed != NULL && strcmp(typed, "none") == 0;
    if (typed != NULL) {
        o->text_encoder = is_none ? NULL : typed;
    }
    if (typed != NULL && !is_none && cli_process_rank() <= 0 && access(typed, F_OK) != 0) {
        return cli_refuse("--text-encoder %.200s: %s; it is a folder with a UMT5 encoder and its tokenizer, or none",
                          typed, strerror(errno));
    }
    return o->text_encoder != NULL || is_none || !desk->model.needs_text
               ? CLI_DONE
               : cli_refuse(
                     "%s was not trained on fixed vectors of words (it has no words.txt) and has no text_encoder "
                     "beside it: give --text-encoder FOLDER, a UMT5 encoder with its tokenizer, or "
                     "--text-encoder none for prompts that mean nothing to it",
                     desk->model.folder);
}

static int parse_levels(carry_control_state *state, const char *text) {
    char shown[64];
    const char *at = text;
    state->steps = 0;
    for (;;) {
        char *end;
        errno = 0;
        const long long step = strtoll(at, &end, 10);
        if (end == at || errno != 0 || (*end != ',' && *end != '\0') || state->steps == CARRY_CONTROL_STEPS) {
            return cli_refuse("--levels needs up to %d falling numbers such as 1000,750,500,250, not '%s'",
                              CARRY_CONTROL_STEPS, cli_shown(shown, text));
        }
        state->step[state->steps++] = step;
        if (*end == '\0') {
            return CLI_DONE;
        }
        at = end + 1;
    }
}

/* --steps N: N levels evenly below the model's first, or as the model has them where it has N. */
static int take_steps(const stream_wish *w, carry_control_state *state, int64_t first) {
    if (w->steps >= 0 && w->levels != NULL) {
        return cli_refuse("--steps and --levels both say how a chunk is denoised: give one of them");
    }
    if (w->levels != NULL) {
        return parse_levels(state, w->levels);
    }
    if (w->steps < 0 || w->steps == state->steps) {
        return CLI_DONE;
    }
    if (w->steps < 1 || w->steps > CARRY_CONTROL_STEPS) {
        return cli_refuse("--steps %lld: a chunk has 1 to %d steps (noise levels go after --levels)",
                          (long long)w->steps, CARRY_CONTROL_STEPS);
    }
    state->steps = (int)w->steps;
    for (int i = 0; i < state->steps; i++) {
        state->step[i] = (first * (w->steps - i) + w->steps / 2) / w->steps;
    }
    return CLI_DONE;
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
    }
    return CLI_DONE;
}

/* What the model knows is told to the controls; of its words the page and this message speak. */
static int take_model(stream_desk *desk, int64_t first) {
    char words[CARRY_VOCABULARY] = "";
    char note[CARRY_CONTROL_NOTE];
    if (carry_control_check_level(desk->ctx, &desk->start, first) != CARRY_OK) {
        return cli_refuse("--levels: %s", carry_ctx_error(desk->ctx));
    }
    if (desk->model.folder[0] != '\0' && !desk->model.needs_text &&
        carry_vocabulary_read(desk->ctx, words, desk->model.folder) != CARRY_OK) {
        return cli_refuse("%s", carry_ctx_error(desk->ctx));
    }
    carry_controls_set_model(desk->controls, words, first);
    carry_controls_note(desk->controls, note);
    if (note[0] != '\0' && cli_process_rank() <= 0) {
        (void)fprintf(stderr, "carry: warning: %s\n", note);
    }
    return CLI_DONE;
}

static int take_controls(stream_desk *desk) {
    const stream_wish *w = &desk->wish;
    carry_control_state *state = &desk->start;
    *state = stream_model_controls(&desk->model);
    state->seed = (uint64_t)desk->common.seed;
    state->kv_bias = w->kv_bias;
    state->noise = w->noise;
    state->transition = w->transition;
    int code = take_prompts(desk);
    const int64_t first = state->step[0];
    code = code == CLI_DONE ? take_steps(w, state, first) : code;
    if (code == CLI_DONE && w->batch > 0 && w->batch != state->steps) {
        code = cli_refuse("--batch %lld has as many chunks at once as there are steps, which are %d",
                          (long long)w->batch, state->steps);
    }
    if (code == CLI_DONE && carry_controls_new(desk->ctx, &desk->controls, state) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(desk->ctx));
    }
    return code == CLI_DONE ? take_model(desk, first) : code;
}

static int take_options(stream_desk *desk) {
    const char *const modes[] = {carry_recompute_name(CARRY_RECOMPUTE_OFF),
                                 carry_recompute_name(CARRY_RECOMPUTE_ANCHOR),
                                 carry_recompute_name(CARRY_RECOMPUTE_LATENT)};
    static const char *const topologies[] = {"pipeline", "mesh"};
    char shown[64];
    const stream_wish *w = &desk->wish;
    carry_pipeline_options *o = &desk->options;
    int mode = 0;
    int topology = 0;
    if (w->depth > CARRY_STAGE_DEPTH) { /* it is an int below */
        return cli_refuse("--depth %lld: 1 to %d envelopes are under way", (long long)w->depth, CARRY_STAGE_DEPTH);
    }
    if (!(w->change >= 0.0 && w->change <= 86400.0)) {
        return cli_refuse("--change-prompt %g: expected seconds, above 0 and at most 86400", w->change);
    }
    *o = stream_model_options(&desk->model);
    o->codec = w->codec != NULL ? w->codec : o->codec;
    o->chunk = w->chunk >= 0 ? w->chunk : o->chunk;
    o->window = w->window >= 0 ? w->window : o->window;
    o->sink = w->sink >= 0 ? w->sink : o->sink;
    o->shift = !isnan(w->shift) ? w->shift : o->shift;
    o->depth = (int)w->depth;
    o->chunks = w->chunks;
    o->batch = w->batch;
    o->no_graphs = w->no_graphs;
    o->strength = w->strength;
    o->slow_stage0 = 1e-3 * w->slow_stage0;
    o->slow_stage1 = 1e-3 * w->slow_stage1;
    o->fail_memory = w->fail_memory;
    o->fps = !isnan(w->fps) ? w->fps : w->serve || w->record != NULL ? 16.0 : 0.0;
    int code = stream_set_size(o, w->size)
                   ? CLI_DONE
                   : cli_refuse("--size needs a width and a height in pixels such as 64x64, not '%s'",
                                cli_shown(shown, w->size));
    code = code == CLI_DONE ? choice("recompute", w->recompute, modes, 3, &mode) : code;
    code = code == CLI_DONE ? choice("topology", w->topology, topologies, 2, &topology) : code;
    stream_set_recompute(o, (carry_recompute)mode, w->context);
    o->clean_pass = o->clean_pass && !w->no_clean;
    o->with_stage = topology == 0;
    return code == CLI_DONE ? choose_text(desk, o) : code;
}

/* What would be of no effect was meant for something. */
static int refuse_idle(const stream_wish *w) {
    if (w->processes > 0 && !w->supervise) {
        return cli_refuse("--processes needs --supervise: without it, mpirun -n %lld carry stream ... starts ranks",
                          (long long)w->processes);
    }
    if (w->context > 0 && strcmp(w->recompute, "off") == 0) {
        return cli_refuse("--context needs --recompute latent or anchor");
    }
    const char *of_page = w->address != NULL      ? "address"
                          : w->token != NULL      ? "token"
                          : w->token_file != NULL ? "token-file"
                          : w->record_to != NULL  ? "record-to"
                                                  : NULL;
    return of_page == NULL || w->serve ? CLI_DONE : cli_refuse("--%s needs --serve", of_page);
}

/* --token, else the first line of --token-file, else CARRY_TOKEN, which like a file is hidden from other users. */
static int take_token(stream_desk *desk) {
    stream_wish *w = &desk->wish;
    char *text;
    size_t length;
    if (w->token != NULL && w->token_file != NULL) {
        return cli_refuse("--token and --token-file both give a token: give one of them");
    }
    if (w->token_file == NULL) {
        w->token = w->token != NULL ? w->token : getenv("CARRY_TOKEN");
        return CLI_DONE;
    }
    if (carry_file_read(desk->ctx, &text, &length, w->token_file, sizeof desk->secret - 1) != CARRY_OK) {
        return cli_refuse("--token-file: %s", carry_ctx_error(desk->ctx));
    }
    (void)snprintf(desk->secret, sizeof desk->secret, "%.*s", (int)strcspn(text, "\r\n"), text);
    free(text);
    w->token = desk->secret;
    return CLI_DONE;
}

/* On a GPU stage 0 is a rank of its own, a thread with a stream of its own, unless ranks or a topology were typed:
   frames are decoded while the next chunk is denoised. */
static void choose_ranks(const stream_desk *desk) {
    if (desk->options.device != 0 && desk->options.with_stage && cli_process_rank() < 0 && cli_ranks_asked() == 0) {
        cli_set_ranks(2);
    }
}

/* A mesh of several ranks is on the CPU unless a device is typed: on one GPU ranks share it, and are no faster. */
static int choose_device(stream_desk *desk) {
    const int ranks = cli_ranks();
    const int mesh = ranks - (desk->options.with_stage && ranks > 1 ? 1 : 0);
    return cli_device(desk->ctx, desk->wish.device == NULL && mesh > 1 ? "cpu" : desk->wish.device,
                      &desk->options.device);
}

int stream_prepare(stream_desk *desk) {
    carry_dit_config config;
    int code = refuse_idle(&desk->wish);
    code = code == CLI_DONE ? stream_video_check(desk) : code;
    code = code == CLI_DONE ? choose_model(desk) : code;
    code = code == CLI_DONE ? take_options(desk) : code;
    code = code == CLI_DONE ? choose_device(desk) : code;
    if (code == CLI_DONE) {
        choose_ranks(desk);
    }
    const int ranks = cli_ranks();
    if (code == CLI_DONE && ranks > 0 && carry_pipeline_check(desk->ctx, &desk->options, &config, ranks) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(desk->ctx));
    }
    code = code == CLI_DONE ? take_controls(desk) : code;
    code = code == CLI_DONE && desk->wish.serve ? take_token(desk) : code;
    return code == CLI_DONE ? stream_page_check(desk) : code;
}
