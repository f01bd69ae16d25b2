/* carry stream: sets up a session from the command line. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_stream.h"
#include "ops/fp8.h"
#include "stream/stage.h"
#include "stream/vocabulary.h"

static int choose_model(stream_session *session) {
    const stream_options *given = session->options;
    if ((given->model != NULL) + (given->config != NULL) + given->demo > 1) {
        return cli_refuse("--model, --config and --demo each name a model: give one of them");
    }
    return stream_model_choose(session->ctx, &session->model, given->model, given->config) == CARRY_OK
               ? CLI_DONE
               : cli_refuse("%s", carry_ctx_error(session->ctx));
}

/* Chooses the text encoder. Fixed word vectors only suit models trained on them, and random weights. */
static int choose_text(const stream_session *session, carry_pipeline_options *o) {
    const char *typed = session->options->text_encoder;
    const bool is_none = typed != NULL && strcmp(typed, "none") == 0;
    if (typed != NULL) {
        o->text_encoder = is_none ? NULL : typed;
    }
    if (typed != NULL && !is_none && cli_process_rank() <= 0 && access(typed, F_OK) != 0) {
        return cli_refuse("--text-encoder %.200s: %s; it is a folder with a UMT5 encoder and its tokenizer, or none",
                          typed, strerror(errno));
    }
    return o->text_encoder != NULL || is_none || !session->model.needs_text
               ? CLI_DONE
               : cli_refuse(
                     "%s was not trained on fixed vectors of words (it has no words.txt) and has no text_encoder "
                     "beside it: give --text-encoder FOLDER, a UMT5 encoder with its tokenizer, or "
                     "--text-encoder none for prompts that mean nothing to it",
                     session->model.folder);
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

/* --steps N: N levels spread evenly below the model's first level, or the model's own levels if it has N. */
static int take_steps(const stream_options *given, carry_control_state *state, int64_t first) {
    if (given->steps >= 0 && given->levels != NULL) {
        return cli_refuse("--steps and --levels both say how a chunk is denoised: give one of them");
    }
    if (given->levels != NULL) {
        return parse_levels(state, given->levels);
    }
    if (given->steps < 0 || given->steps == state->steps) {
        return CLI_DONE;
    }
    if (given->steps < 1 || given->steps > CARRY_CONTROL_STEPS) {
        return cli_refuse("--steps %lld: a chunk has 1 to %d steps (noise levels go after --levels)",
                          (long long)given->steps, CARRY_CONTROL_STEPS);
    }
    state->steps = (int)given->steps;
    for (int i = 0; i < state->steps; i++) {
        state->step[i] = (first * (given->steps - i) + given->steps / 2) / given->steps;
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

static int take_prompts(stream_session *session) {
    const cli_texts *prompts = &session->options->prompts;
    carry_control_state *state = &session->start;
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

/* --lora FILE[:SCALE]. */
static int take_loras(stream_session *session) {
    const cli_texts *loras = &session->options->loras;
    carry_pipeline_options *o = &session->pipeline;
    if (loras->count > CARRY_LORAS) {
        return cli_refuse("%d LoRA files: at most %d are taken", loras->count, CARRY_LORAS);
    }
    for (int i = 0; i < loras->count; i++) {
        const char *colon = strrchr(loras->text[i], ':');
        char *end = NULL;
        const double scale = colon != NULL ? strtod(colon + 1, &end) : 1.0;
        const bool has_scale = colon != NULL && end != colon + 1 && *end == '\0';
        const size_t length = has_scale ? (size_t)(colon - loras->text[i]) : strlen(loras->text[i]);
        if (length == 0 || length >= sizeof session->lora[i]) {
            return cli_refuse("--lora %.200s: expected the path of a .safetensors file, and :SCALE", loras->text[i]);
        }
        memcpy(session->lora[i], loras->text[i], length);
        session->lora[i][length] = '\0';
        o->lora[i] = (carry_lora_file){.path = session->lora[i], .scale = has_scale ? scale : 1.0};
        if (cli_process_rank() <= 0 && access(session->lora[i], R_OK) != 0) {
            return cli_refuse("--lora %.200s: %s", session->lora[i], strerror(errno));
        }
    }
    o->loras = loras->count;
    session->start.loras = loras->count;
    session->start.lora = loras->count > 0 ? 1 : 0;
    return CLI_DONE;
}

/* Passes the model's words and first level to the controls, and warns about unknown words. */
static int take_model(stream_session *session, int64_t first) {
    char words[CARRY_VOCABULARY] = "";
    char note[CARRY_CONTROL_NOTE];
    if (carry_control_check_level(session->ctx, &session->start, first) != CARRY_OK) {
        return cli_refuse("--levels: %s", carry_ctx_error(session->ctx));
    }
    if (session->model.folder[0] != '\0' && !session->model.needs_text &&
        carry_vocabulary_read(session->ctx, words, session->model.folder) != CARRY_OK) {
        return cli_refuse("%s", carry_ctx_error(session->ctx));
    }
    carry_controls_set_model(session->controls, words, first);
    carry_controls_note(session->controls, note);
    if (note[0] != '\0' && cli_process_rank() <= 0) {
        (void)fprintf(stderr, "carry: warning: %s\n", note);
    }
    return CLI_DONE;
}

static int take_controls(stream_session *session) {
    const stream_options *given = session->options;
    carry_control_state *state = &session->start;
    *state = stream_model_controls(&session->model);
    state->seed = (uint64_t)session->options->common.seed;
    state->kv_bias = given->kv_bias;
    state->noise = given->noise;
    state->transition = given->transition;
    int code = take_prompts(session);
    code = code == CLI_DONE ? take_loras(session) : code;
    const int64_t first = state->step[0];
    code = code == CLI_DONE ? take_steps(given, state, first) : code;
    if (code == CLI_DONE && given->batch > 0 && given->batch != state->steps) {
        code = cli_refuse("--batch %lld has as many chunks at once as there are steps, which are %d",
                          (long long)given->batch, state->steps);
    }
    if (code == CLI_DONE && carry_controls_new(session->ctx, &session->controls, state) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(session->ctx));
    }
    return code == CLI_DONE ? take_model(session, first) : code;
}

static int take_options(stream_session *session) {
    const char *const modes[] = {carry_recompute_name(CARRY_RECOMPUTE_OFF),
                                 carry_recompute_name(CARRY_RECOMPUTE_ANCHOR),
                                 carry_recompute_name(CARRY_RECOMPUTE_LATENT)};
    static const char *const topologies[] = {"pipeline", "mesh"};
    char shown[64];
    const stream_options *given = session->options;
    carry_pipeline_options *o = &session->pipeline;
    int mode = 0;
    int topology = 0;
    if (given->depth > CARRY_STAGE_DEPTH) { /* it is stored as an int */
        return cli_refuse("--depth %lld: 1 to %d envelopes are under way", (long long)given->depth, CARRY_STAGE_DEPTH);
    }
    if (!(given->change >= 0.0 && given->change <= 86400.0)) {
        return cli_refuse("--change-prompt %g: expected seconds, above 0 and at most 86400", given->change);
    }
    *o = stream_model_options(&session->model);
    o->codec = given->codec != NULL ? given->codec : o->codec;
    o->chunk = given->chunk >= 0 ? given->chunk : o->chunk;
    o->window = given->window >= 0 ? given->window : o->window;
    o->sink = given->sink >= 0 ? given->sink : o->sink;
    o->shift = !isnan(given->shift) ? given->shift : o->shift;
    o->depth = (int)given->depth;
    o->chunks = given->chunks;
    o->batch = given->batch;
    o->no_graphs = given->no_graphs;
    o->fp8 = given->fp8;
    o->strength = given->strength;
    o->motion = given->motion;
    o->slow_stage0 = 1e-3 * given->slow_stage0;
    o->slow_stage1 = 1e-3 * given->slow_stage1;
    o->fail_memory = given->fail_memory;
    o->fps = !isnan(given->fps) ? given->fps : given->serve || given->record != NULL ? 16.0 : 0.0;
    int code = stream_set_size(o, given->size)
                   ? CLI_DONE
                   : cli_refuse("--size needs a width and a height in pixels such as 64x64, not '%s'",
                                cli_shown(shown, given->size));
    code = code == CLI_DONE ? choice("recompute", given->recompute, modes, 3, &mode) : code;
    code = code == CLI_DONE ? choice("topology", given->topology, topologies, 2, &topology) : code;
    stream_set_recompute(o, (carry_recompute)mode, given->context);
    o->clean_pass = o->clean_pass && !given->no_clean;
    o->with_stage = topology == 0;
    return code == CLI_DONE ? choose_text(session, o) : code;
}

/* Refuses options that would have no effect, since the user expects one. */
static int refuse_unused(const stream_options *given) {
    if (given->processes > 0 && !given->supervise) {
        return cli_refuse("--processes needs --supervise: without it, mpirun -n %lld carry stream ... starts ranks",
                          (long long)given->processes);
    }
    if (given->context > 0 && strcmp(given->recompute, "off") == 0) {
        return cli_refuse("--context needs --recompute latent or anchor");
    }
    const char *of_page = given->address != NULL      ? "address"
                          : given->token != NULL      ? "token"
                          : given->token_file != NULL ? "token-file"
                          : given->record_to != NULL  ? "record-to"
                                                      : NULL;
    return of_page == NULL || given->serve ? CLI_DONE : cli_refuse("--%s needs --serve", of_page);
}

/* Uses --token, else the first line of --token-file, else the variable CARRY_TOKEN. The file and the variable exist
   because other users can see the arguments of a process. */
static int take_token(stream_session *session) {
    const stream_options *given = session->options;
    char *text;
    size_t length;
    if (given->token != NULL && given->token_file != NULL) {
        return cli_refuse("--token and --token-file both give a token: give one of them");
    }
    if (given->token_file == NULL) {
        session->token = given->token != NULL ? given->token : getenv("CARRY_TOKEN");
        return CLI_DONE;
    }
    if (carry_file_read(session->ctx, &text, &length, given->token_file, sizeof session->token_text - 1) != CARRY_OK) {
        return cli_refuse("--token-file: %s", carry_ctx_error(session->ctx));
    }
    (void)snprintf(session->token_text, sizeof session->token_text, "%.*s", (int)strcspn(text, "\r\n"), text);
    free(text);
    session->token = session->token_text;
    return CLI_DONE;
}

/* On a GPU, stage 0 is a separate rank (a thread with its own stream) unless the user gave ranks or a topology:
   frames are decoded while the next chunk is denoised. */
static void choose_ranks(const stream_session *session) {
    if (session->pipeline.device != 0 && session->pipeline.with_stage && cli_process_rank() < 0 &&
        cli_ranks_asked() == 0) {
        cli_set_ranks(2);
    }
}

/* A mesh of several ranks runs on the CPU unless the user gave a device: ranks that share one GPU are no faster. */
static int choose_device(stream_session *session) {
    const int ranks = cli_ranks();
    const int mesh = ranks - (session->pipeline.with_stage && ranks > 1 ? 1 : 0);
    return cli_device(session->ctx, session->options->device == NULL && mesh > 1 ? "cpu" : session->options->device,
                      &session->pipeline.device);
}

static int check_fp8(const stream_session *session) {
    const int device = session->pipeline.device;
    char name[CLI_DEVICE];
    const char *why;
    if (!session->pipeline.fp8 || carry_fp8_is_fast(session->ctx, device, true, &why)) {
        return CLI_DONE;
    }
    return cli_refuse("--fp8: %s does not multiply 8-bit floats: %s", cli_device_name(name, session->ctx, device), why);
}

int stream_prepare(stream_session *session) {
    carry_dit_config config;
    const stream_options *given = session->options;
    session->display.json = given->common.json;
    session->port = (int)given->port;
    int code = refuse_unused(given);
    code = code == CLI_DONE ? stream_video_check(given) : code;
    code = code == CLI_DONE ? choose_model(session) : code;
    code = code == CLI_DONE ? take_options(session) : code;
    code = code == CLI_DONE ? choose_device(session) : code;
    code = code == CLI_DONE ? check_fp8(session) : code;
    if (code == CLI_DONE) {
        choose_ranks(session);
    }
    const int ranks = cli_ranks();
    if (code == CLI_DONE && ranks > 0 &&
        carry_pipeline_check(session->ctx, &session->pipeline, &config, ranks) != CARRY_OK) {
        code = cli_refuse("%s", carry_ctx_error(session->ctx));
    }
    code = code == CLI_DONE ? take_controls(session) : code;
    code = code == CLI_DONE && given->serve ? take_token(session) : code;
    return code == CLI_DONE ? stream_page_check(given) : code;
}
