/* carry train dit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_train.h"
#include "core/file.h"
#include "train/checkpoint.h"
#include "train/dit/dit_loop.h"

#define KEYS 48
#define FORMS 3  /* default of --forms */
#define CHUNKS 8 /* default chunks of each stream */
#define OWN 9    /* number of options that are not keys, plus the end of the list */

typedef struct dit_session {
    cli_common common;
    carry_dit_train_options options;
    carry_dit_train_hooks hooks;
    bool resume, overwrite, eval, second_prompt, redraws, has_unended;
    const char *show, *device;
    int64_t forms, chunks; /* options of an evaluation */
    carry_ctx *ctx;
    char from[CARRY_FILE_PATH]; /* the checkpoint from which a run continues */
    const char *text[KEYS];     /* as typed */
    cli_option option[KEYS + OWN];
} dit_session;

static void list_options(dit_session *session) {
    int n = 0;
    for (int i = 0; i < KEYS && carry_dit_train_keys[i].name != NULL; i++) {
        const carry_train_key *key = &carry_dit_train_keys[i];
        session->option[n++] = (cli_option){key->name, 0, CLI_TEXT, &session->text[i], key->argument, key->help};
    }
    const cli_option own[OWN] = {
        {"resume", 0, CLI_FLAG, &session->resume, NULL, "continue the run in DIR (an argument, or --out)"},
        {"overwrite", 0, CLI_FLAG, &session->overwrite, NULL,
         "--out: allow a folder with other files, or a link to one"},
        {"eval", 0, CLI_FLAG, &session->eval, NULL,
         "evaluate the model in DIR (an argument, or --out) without training"},
        {"forms", 0, CLI_NUMBER, &session->forms, "N", "--eval: forms to ask for, 1 to 3 (3)"},
        {"stream", 0, CLI_NUMBER, &session->chunks, "N", "--eval: chunks to stream for each prompt (8)"},
        {"second-prompt", 0, CLI_FLAG, &session->second_prompt, NULL,
         "--eval: followed by as many chunks of another prompt, without a cut"},
        {"show", 0, CLI_TEXT, &session->show, "DIR", "--eval: write frames of each prompt there as a strip (PPM)"},
        CLI_DEVICE_OPTION(&session->device),
        {0},
    };
    memcpy(session->option + n, own, sizeof own);
}

static int set_typed(dit_session *session) {
    for (int i = 0; i < KEYS && carry_dit_train_keys[i].name != NULL; i++) {
        const carry_train_key *key = &carry_dit_train_keys[i];
        if (session->text[i] == NULL || (strcmp(key->name, "out") == 0 && session->resume)) {
            continue;
        }
        if (session->resume && key->fixed) {
            return cli_refuse("--%s cannot be changed when a run is resumed: start a new run from its weights with "
                              "--model %s/latest",
                              key->name, session->options.out);
        }
        if (carry_keys_set(session->ctx, carry_dit_train_keys, &session->options, key->name, session->text[i]) !=
            CARRY_OK) {
            return cli_refuse("--%s", carry_ctx_error(session->ctx));
        }
    }
    return CLI_DONE;
}

static void end_line(dit_session *session) {
    if (session->has_unended) {
        (void)putchar('\n');
        session->has_unended = false;
    }
}

static void on_start(void *user, const carry_dit_train_start *s) {
    const dit_session *session = user;
    const carry_dit_config *c = &s->dit->config;
    char device[CLI_DEVICE];
    if (session->common.json) {
        return;
    }
    if (s->resumed != NULL) {
        (void)printf("going on from %s, after step %lld\n", s->resumed, (long long)s->step);
    }
    (void)printf("%svideo transformer%s on %s: %.2f M parameters, %lld blocks, width %lld, %lld heads, FFN %lld\n",
                 cli_bold(), cli_plain(), cli_device_name(device, session->ctx, session->hooks.device),
                 1e-6 * (double)s->dit->own.trained, (long long)c->num_layers, (long long)c->dim,
                 (long long)c->num_heads, (long long)c->ffn_dim);
    (void)printf("%lld steps of %lld videos of %lld chunks of %lld frames, %lld x %lld pixels; a chunk sees %lld "
                 "frames; seed %lld\n",
                 (long long)s->options->steps, (long long)s->options->batch, (long long)s->options->chunks,
                 (long long)c->chunk_frames, (long long)s->options->size, (long long)s->options->size,
                 (long long)c->window_frames, (long long)s->options->seed);
    (void)printf("%s%d rank%s, %.0f MB of activations each, %.1f GFLOP a step%s\n", cli_dim(), s->ranks,
                 s->ranks == 1 ? "" : "s", 1e-6 * (double)s->memory, 1e-9 * s->flops, cli_plain());
    (void)fflush(stdout);
}

static void on_report(void *user, const carry_dit_train_report *r) {
    dit_session *session = user;
    if (session->common.json) {
        cli_json_open();
        cli_json_integer("step", r->step);
        cli_json_number("loss", r->loss);
        cli_json_number("videos_per_s", r->videos_per_s);
        cli_json_number("memory", r->memory);
        cli_json_integer("steps", r->steps);
        cli_json_number("rate", r->rate);
        cli_json_number("norm", r->norm);
        cli_json_number("gflops", r->gflops);
        cli_json_number("left_s", r->left);
        cli_json_close();
    } else {
        const long long left = r->left < 1e9 ? (long long)(r->left + 0.5) : 0;
        (void)printf(
            "%sstep %lld/%lld  loss %.4f  rate %.2e  norm %.2f  %.1f videos/s  %.0f GFLOP/s  %lldm%02llds left",
            session->redraws ? "\r\033[K" : "", (long long)r->step, (long long)r->steps, r->loss, r->rate, r->norm,
            r->videos_per_s, r->gflops, left / 60, left % 60);
        session->has_unended = true;
        if (!session->redraws) {
            end_line(session);
        }
    }
    (void)fflush(stdout);
}

static void print_evaluation(const dit_session *session, const carry_dit_evaluation *e, int64_t step) {
    if (session->common.json) {
        cli_json_open();
        if (step >= 0) {
            cli_json_integer("step", step);
        }
        cli_json_integer("prompts", e->prompts);
        cli_json_integer("colours", e->colours);
        cli_json_integer("directions", e->directions);
        cli_json_integer("right", e->both);
        if (session->second_prompt) {
            cli_json_integer("turned", e->turned);
        }
        cli_json_number("step_error", e->step_error);
        cli_json_close();
    } else {
        (void)printf("%lld prompts: %s%lld right%s (colour %lld, direction %lld); steps are off by %.2f pixels a "
                     "frame\n",
                     (long long)e->prompts, cli_green(), (long long)e->both, cli_plain(), (long long)e->colours,
                     (long long)e->directions, e->step_error);
        if (session->second_prompt) {
            (void)printf("%lld of them followed a second prompt as well\n", (long long)e->turned);
        }
    }
    (void)fflush(stdout);
}

static void on_evaluation(void *user, int64_t step, const carry_dit_evaluation *e) {
    dit_session *session = user;
    end_line(session);
    print_evaluation(session, e, step);
}

static void on_note(void *user, int64_t step, const char *line) {
    (void)step;
    end_line(user);
    (void)fflush(stdout);
    (void)fprintf(stderr, "carry: %s\n", line);
}

static carry_status train_rank(void *user, carry_comm *comm) {
    dit_session *session = user;
    return carry_dit_train_run(comm, &session->options, &session->hooks);
}

/* Reads the options of the run that is resumed. */
static int take_checkpoint(dit_session *session) {
    carry_found found;
    train_run_folder(session->options.out);
    carry_status status = carry_checkpoint_find(session->ctx, &found, session->options.out, NULL);
    if (status == CARRY_OK && strcmp(found.path, session->options.out) == 0) {
        carry_found_free(&found);
        return cli_refuse("%s is one checkpoint: --resume takes the folder of the run, --model starts from weights",
                          session->options.out);
    }
    if (status == CARRY_OK) {
        char out[CARRY_DIT_TRAIN_PATH];
        (void)snprintf(out, sizeof out, "%s", session->options.out);
        status = carry_keys_read(session->ctx, carry_dit_train_keys, &session->options,
                                 carry_json_find(found.document, "options"));
        (void)snprintf(session->options.out, sizeof session->options.out, "%s", out);
        (void)snprintf(session->from, sizeof session->from, "%s", found.path);
        carry_found_free(&found);
    }
    return status == CARRY_OK ? CLI_DONE : cli_refuse("%s", carry_ctx_error(session->ctx));
}

/* A model is evaluated with pictures like those of its training, if its run still exists and has their options. */
static void take_pictures(dit_session *session) {
    carry_found found;
    carry_dit_train_options run = session->options;
    if (carry_checkpoint_find(session->ctx, &found, session->options.out, NULL) == CARRY_OK) {
        if (carry_keys_read(session->ctx, carry_dit_train_keys, &run, carry_json_find(found.document, "options")) ==
            CARRY_OK) {
            session->options.size = run.size;
            session->options.speed = run.speed;
        }
        carry_found_free(&found);
    }
}

/* Without --device, several ranks run on the CPU. */
static int choose_device(dit_session *session) {
    const char *text = session->device == NULL && cli_ranks() != 1 ? "cpu" : session->device;
    const int code = cli_device(session->ctx, text, &session->hooks.device);
    if (code == CLI_DONE && session->hooks.device != 0 && cli_ranks() != 1) {
        return cli_refuse("--device %.40s: several ranks train on the CPU only", session->device);
    }
    return code;
}

/* Checks options that need --eval: their values, and that --eval was given. */
static int check_exam(dit_session *session) {
    if (!session->eval &&
        (session->forms >= 0 || session->chunks >= 0 || session->second_prompt || session->show != NULL)) {
        return cli_refuse(
            "--forms, --stream, --second-prompt and --show are options of an evaluation: give --eval too");
    }
    session->forms = session->forms >= 0 ? session->forms : FORMS;
    session->chunks = session->chunks >= 0 ? session->chunks : CHUNKS;
    if (session->forms < 1 || session->forms > FORMS) {
        return cli_refuse("--forms is %lld: expected 1 to %d", (long long)session->forms, FORMS);
    }
    return session->chunks > 0 ? CLI_DONE : cli_refuse("--stream 0 shows nothing: 1 or more is needed");
}

/* Writes the frames of a prompt as one picture, with up to twelve frames in each row. */
static carry_status write_strip(dit_session *session, const char *prompt, const float *frames, int64_t count) {
    const int64_t side = session->options.size;
    const int64_t across = count < 12 ? count : 12;
    const int64_t down = (count + across - 1) / across;
    const size_t size = (size_t)(across * down * side * side) * 3;
    char name[CARRY_SHAPE_CAPTION + 8];
    char path[CARRY_FILE_PATH];
    unsigned char *bytes = calloc(size + 32, 1);
    if (bytes == NULL) {
        return carry_fail(session->ctx, CARRY_EMEMORY, "out of memory: a picture");
    }
    const long long width = across * side;
    const long long height = down * side;
    const size_t head = (size_t)snprintf((char *)bytes, 32, "P6\n%lld %lld\n255\n", width, height);
    for (int64_t f = 0; f < count; f++) {
        for (int64_t i = 0; i < 3 * side * side; i++) {
            const int64_t channel = i / (side * side);
            const int64_t row = f / across * side + i / side % side;
            const int64_t column = f % across * side + i % side;
            const float value = frames[f * 3 * side * side + i];
            bytes[head + (size_t)((row * across * side + column) * 3 + channel)] =
                (unsigned char)(fminf(fmaxf(value, 0.0f), 1.0f) * 255.0f + 0.5f);
        }
    }
    (void)snprintf(name, sizeof name, "%s.ppm", prompt);
    for (char *c = name; *c != '\0'; c++) {
        *c = *c == ' ' ? '-' : *c;
    }
    carry_status status = carry_file_in(session->ctx, path, session->show, name);
    status = status == CARRY_OK ? carry_file_replace(session->ctx, path, bytes, head + size) : status;
    free(bytes);
    return status;
}

static void print_wrong(const char *prompt, const carry_shapes_verdict *v) {
    const char *colour = carry_shape_colour(v->colour, NULL);
    const char *direction = carry_shape_direction(v->direction, NULL);
    (void)printf("%s: shows %s, %s (%.2f right, %.2f down a frame)\n", prompt, colour != NULL ? colour : "nothing",
                 direction != NULL ? direction : "no direction", v->right, v->down);
}

static bool on_asked(void *user, const char *prompt, carry_shape shape, const carry_shapes_verdict *v,
                     const carry_shapes_verdict *second, const float *frames, int64_t count) {
    dit_session *session = user;
    const char *colour = carry_shape_colour(v->colour, NULL);
    const char *direction = carry_shape_direction(v->direction, NULL);
    const bool is_right = v->colour == shape.colour && v->direction == shape.direction;
    if (session->common.json) {
        cli_json_open();
        cli_json_text("prompt", prompt);
        cli_json_text("colour", colour != NULL ? colour : "");
        cli_json_text("direction", direction != NULL ? direction : "");
        cli_json_number("right_px", v->right);
        cli_json_number("down_px", v->down);
        cli_json_number("area", v->area);
        cli_json_bool("right", is_right);
        cli_json_close();
    } else if (!is_right) {
        print_wrong(prompt, v);
    }
    const carry_shape then = carry_dit_evaluation_second(shape);
    if (second != NULL && !session->common.json &&
        (second->colour != then.colour || second->direction != then.direction)) {
        char later[CARRY_SHAPE_CAPTION];
        (void)printf("%s, then ", prompt);
        print_wrong(carry_shape_caption(later, then), second);
    }
    if (session->show != NULL && write_strip(session, prompt, frames, count) != CARRY_OK) {
        (void)cli_failed(session->ctx);
        session->show = NULL;
    }
    return !cli_interrupted();
}

static int evaluate(dit_session *session) {
    carry_dit_config config;
    carry_dit *dit = NULL;
    carry_dit_evaluation evaluation;
    carry_ctx *ctx = cli_open(&session->common);
    if (ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    const carry_dit_evaluation_options o = {.side = session->options.size,
                                            .chunks = session->chunks,
                                            .speed = session->options.speed,
                                            .forms = (int)session->forms,
                                            .seed = (uint64_t)session->options.seed,
                                            .turns = session->second_prompt};
    carry_status status = carry_dit_config_read(ctx, &config, session->options.out);
    status = status == CARRY_OK ? carry_dit_new(ctx, &dit, &config, NULL, session->hooks.device) : status;
    status = status == CARRY_OK ? carry_dit_load(dit, session->options.out) : status;
    status = status == CARRY_OK ? carry_dit_evaluate(dit, &o, &evaluation, on_asked, session) : status;
    int code = CLI_DONE;
    if (status == CARRY_OK) {
        print_evaluation(session, &evaluation, -1);
        code = evaluation.both == evaluation.prompts &&
                       (!session->second_prompt || evaluation.turned == evaluation.prompts)
                   ? CLI_DONE
                   : CLI_WRONG;
    } else {
        code = cli_failed(ctx);
    }
    carry_dit_free(dit);
    carry_ctx_free(ctx);
    return code;
}

static int train(dit_session *session) {
    carry_dit_train_options checked = session->options;
    if (session->resume) { /* the model that the run started from may no longer exist */
        (void)snprintf(checked.model, sizeof checked.model, "%s", session->from);
    }
    if (carry_dit_train_check(session->ctx, &checked, cli_ranks()) != CARRY_OK) {
        return cli_refuse("%s", carry_ctx_error(session->ctx));
    }
    if (!session->resume && train_check_out(session->options.out, "carry train dit", session->overwrite) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    const carry_status status = cli_on_ranks(&session->common, train_rank, session);
    end_line(session);
    if (status == CARRY_OK && !session->common.json && cli_process_rank() <= 0) {
        (void)printf("the model is in %s:\n  carry stream --model %s -p \"red circle moving left\"\n",
                     session->options.out, session->options.out);
    }
    return status == CARRY_OK ? CLI_DONE : CLI_IMPOSSIBLE;
}

static int prepare(dit_session *session, int words, char **arguments) {
    if (words > 1) {
        return cli_refuse("train dit takes one folder, not %d", words);
    }
    int code = CLI_DONE;
    for (int i = 0; carry_dit_train_keys[i].name != NULL && words == 0; i++) {
        if (strcmp(carry_dit_train_keys[i].name, "out") == 0 && session->text[i] != NULL) {
            arguments = (char **)(void *)&session->text[i];
            words = 1;
        }
    }
    if (words == 1 &&
        carry_keys_set(session->ctx, carry_dit_train_keys, &session->options, "out", arguments[0]) != CARRY_OK) {
        return cli_refuse("--%s", carry_ctx_error(session->ctx));
    }
    if ((session->resume || session->eval) && words == 0) {
        return cli_refuse("%s needs the folder of the run: carry train dit %s DIR",
                          session->resume ? "--resume" : "--eval", session->resume ? "--resume" : "--eval");
    }
    code = session->resume ? take_checkpoint(session) : code;
    if (session->eval && !session->resume) {
        take_pictures(session);
    }
    code = code == CLI_DONE ? choose_device(session) : code;
    code = code == CLI_DONE ? check_exam(session) : code;
    code = code == CLI_DONE ? set_typed(session) : code;
    if (code == CLI_DONE && session->options.out[0] == '\0') {
        (void)snprintf(session->options.out, sizeof session->options.out, "trained/shapes");
    }
    return code;
}

int train_dit(int count, char **arguments) {
    dit_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        return cli_refuse("out of memory");
    }
    session->options = carry_dit_train_default();
    session->forms = session->chunks = -1; /* not given */
    session->hooks = (carry_dit_train_hooks){.sink = {.user = session, .note = on_note},
                                             .stop = cli_interrupted_in_training,
                                             .started = on_start,
                                             .report = on_report,
                                             .evaluated = on_evaluation,
                                             .user = session};
    list_options(session);
    const int words = cli_parse(&cli_train_dit, count, arguments, session->option, &session->common);
    int code = words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    if (words >= 0 && !session->common.help) {
        if (carry_ctx_new(&session->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) !=
            CARRY_OK) {
            code = cli_refuse("out of memory");
        } else {
            cli_catch_interrupt();
            session->redraws = !session->common.json && isatty(STDOUT_FILENO) != 0;
            code = prepare(session, words, arguments);
            session->hooks.resume = session->resume;
            code = code == CLI_DONE ? (session->eval ? evaluate(session) : train(session)) : code;
        }
        carry_ctx_free(session->ctx);
    }
    free(session);
    return code;
}

const cli_verb cli_train_dit = {
    .name = "train dit",
    .arguments = "[DIR]",
    .summary = "train a causal video transformer on moving coloured shapes",
    .details =
        "Draws videos of moving shapes with captions, encodes them with the dct codec, and trains a transformer with\n"
        "the architecture of Wan2.1 by flow matching, chunk by chunk as in a stream. DIR receives the model\n"
        "(config.json, and model.safetensors with the running average of the weights) and step-N folders, from which\n"
        "--resume continues.\n"
        "\n"
        "--eval DIR streams every colour in every direction with the few-step sampler over the cache and checks the\n"
        "pixels: exits with 0 if all videos show what their prompt says.\n"
        "\n"
        "carry --ranks N train dit ... divides the videos of a step among N ranks.",
    .example = "carry train dit --steps 3000 --batch 32 --out trained/shapes",
    .support = {.cpu = "f32", .cuda = "f32", .cpu_backward = "f32", .cuda_backward = "f32", .ranks = "cpu"},
    .on_ranks = true,
};
