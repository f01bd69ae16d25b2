/* carry generate: continues prompts with a model. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_generate.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/tensor.h"
#include "engine/model_random.h"

#define SCHEMA_BYTES ((size_t)1 << 20)

typedef cli_generating generate_session;

/* A prompt may be invalid UTF-8; the output is always valid. */
static char *prompt_text(const carry_prompt *prompt, size_t *length) {
    char *text = malloc(CARRY_UNFOLD_GROWTH * (prompt->length + 4));
    carry_unfold unfold = {0};
    *length = 0;
    if (text != NULL) {
        *length = carry_unfold_bytes(&unfold, text, prompt->text, prompt->length);
        *length += carry_unfold_end(&unfold, text + *length);
    }
    return text;
}

static void show_heading(generate_session *d) {
    size_t length;
    char *prompt = prompt_text(&d->asked[d->current], &length);
    if (d->count > 1) {
        (void)printf("%s%s--- %lld of %lld ---%s\n", d->current > 0 ? "\n" : "", cli_dim(), (long long)d->current + 1,
                     (long long)d->count, cli_plain());
    }
    if (!d->is_chat && !d->by_ids) {
        (void)fputs(cli_bold(), stdout);
        cli_print_text(prompt, length, d->on_terminal);
        (void)fputs(cli_plain(), stdout);
    }
    free(prompt);
    d->headed = true;
}

/* Tokens per second after the first token, which is computed with the prompt. */
static double rate(int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0.0 ? (double)tokens / seconds : 0.0;
}

static double speed(const carry_continuation *c) {
    return c->tokens > 1 ? rate(c->tokens - 1, c->seconds - c->first) : rate(c->tokens, c->seconds);
}

static void print_object(const generate_session *d, const carry_continuation *c) {
    size_t length;
    char *prompt = prompt_text(&d->asked[d->current], &length);
    cli_json_open();
    cli_json_bytes("prompt", prompt, length);
    if (d->by_ids) {
        cli_json_numbers("ids", c->ids.id, c->ids.count);
    } else {
        cli_json_bytes("text", c->text != NULL ? c->text : "", c->length);
    }
    cli_json_text("dtype", carry_dtype_name(d->dtype));
    cli_json_text("ended", carry_ending_name(c->ending));
    cli_json_integer("prompt_tokens", c->prompt_tokens);
    cli_json_integer("cached_tokens", c->cached_tokens);
    cli_json_integer("tokens", c->tokens);
    if (d->engine.draft != NULL) {
        cli_json_integer("drafted_tokens", c->drafted_tokens);
        cli_json_integer("accepted_tokens", c->accepted_tokens);
    }
    cli_json_number("first_s", c->first);
    cli_json_number("seconds", c->seconds);
    cli_json_number("prompt_tokens_per_s", rate(c->prompt_tokens, c->first));
    cli_json_number("tokens_per_s", speed(c));
    cli_json_close();
    free(prompt);
}

/* Prints the new token ids, or the new text that can no longer change. */
static void show_more(generate_session *d, const carry_continuation *c) {
    for (; d->by_ids && d->shown < c->ids.count; d->shown++) {
        (void)printf("%s%u", d->shown > 0 ? " " : "", c->ids.id[d->shown]);
    }
    if (!d->by_ids && c->settled > d->shown) {
        cli_print_text(c->text + d->shown, c->settled - d->shown, d->on_terminal);
        d->shown = c->settled;
    }
}

/* Prints the new part of the current text and, once that has ended, of the texts after it. */
static bool on_token(void *user, int64_t prompt) {
    (void)prompt;
    generate_session *d = user;
    cli_tell_dtype(d->dtype, d->why, d->common.json);
    for (; d->current < d->count; d->current++) {
        const carry_continuation *c = &d->results[d->current];
        bool has_ended = c->ending != CARRY_UNDER_WAY;
        if (d->common.json && has_ended) {
            print_object(d, c);
        }
        if (!d->common.json && !d->headed && (c->tokens > 0 || (has_ended && c->ending != CARRY_INTERRUPTED))) {
            show_heading(d);
        }
        if (!d->common.json) {
            show_more(d, c);
        }
        if (!has_ended) {
            break;
        }
        if (d->headed) {
            (void)putchar('\n');
        }
        d->shown = 0;
        d->headed = false;
    }
    if (!d->common.json) {
        (void)fflush(stdout);
    }
    return !cli_interrupted() && ferror(stdout) == 0;
}

static void print_rates(const generate_session *d, double seconds) {
    int64_t tokens = 0;
    int64_t read = 0;
    int64_t texts = 0;
    double reading = 0.0;
    for (int64_t i = 0; i < d->count; i++) {
        tokens += d->results[i].tokens;
        read += d->results[i].prompt_tokens;
        reading += d->results[i].first;
        texts += d->results[i].tokens > 0;
    }
    char first[32];
    char loading[32];
    (void)fprintf(stderr,
                  "prompt: %lld tokens in %.2f s, %.1f tokens/s, the first token after %s; generated: %lld tokens in "
                  "%.2f s, %.1f tokens/s; %s was read in %s\n",
                  (long long)read, reading, rate(read, reading), carry_time_text(first, d->results[0].first),
                  (long long)tokens, seconds, rate(tokens - texts, seconds - reading), d->model.folder,
                  carry_time_text(loading, d->loading));
}

/* Returns the exit code. A text that Ctrl-C cut off looks like any other, so the exit code reports it. */
static int count_whole(const generate_session *d) {
    int64_t whole = 0;
    for (int64_t i = 0; i < d->count; i++) {
        whole += d->results[i].ending != CARRY_INTERRUPTED;
    }
    return whole == d->count || !cli_interrupted()
               ? CLI_DONE
               : cli_refuse("interrupted: %lld of %lld texts are whole", (long long)whole, (long long)d->count);
}

static int generate(generate_session *d) {
    d->sampling.seed = (uint64_t)d->common.seed;
    const carry_generate_options options = {.sampling = d->sampling,
                                            .tokens = d->tokens,
                                            .dtype = d->dtype,
                                            .stops = d->stops.text,
                                            .stop_count = d->stops.count,
                                            .regex = d->regex,
                                            .json_schema = d->schema,
                                            .state_load = d->state_load,
                                            .state_save = d->state_save,
                                            .engine = &d->engine,
                                            .heard = on_token,
                                            .user = d};
    d->on_terminal = isatty(STDOUT_FILENO) != 0;
    d->results = calloc((size_t)d->count, sizeof *d->results);
    if (d->results == NULL) {
        return cli_refuse("out of memory: %lld texts", (long long)d->count);
    }
    double started = carry_seconds();
    carry_status status = carry_generate(d->ctx, &d->model, d->prompts, d->count, &options, d->results);
    if (status != CARRY_OK) {
        if (d->headed) {
            (void)putchar('\n');
        }
        return cli_failed(d->ctx);
    }
    (void)on_token(d, 0); /* texts that were never started */
    if (d->common.verbose > 0 || (isatty(STDERR_FILENO) && !d->common.json)) {
        print_rates(d, carry_seconds() - started);
    }
    return count_whole(d);
}

/* Opens a model with the weights in the folder, or with random weights (--random). A folder for --random may lack a
   tokenizer; prompts must then be token ids. */
static carry_status open_model(generate_session *d, const char *folder, int device) {
    if (!d->is_random) {
        CARRY_TRY((d->by_ids ? carry_model_open_bare : carry_model_open)(d->ctx, &d->model, folder, device));
        return carry_model_adapt(&d->model, d->adapter);
    }
    carry_lm *lm;
    CARRY_TRY(
        carry_model_random_quantised(d->ctx, &lm, folder, device, d->dtype, d->quantise, (uint64_t)d->common.seed));
    carry_model_borrow(d->ctx, &d->model, lm);
    (void)snprintf(d->model.folder, sizeof d->model.folder, "%s", folder);
    return d->by_ids || d->model.tokenizer != NULL
               ? CARRY_OK
               : carry_fail(d->ctx, CARRY_EARGUMENT, "--random %s has no tokenizer: prompts are token ids, with --ids",
                            folder);
}

static int open_and_generate(generate_session *d, const char *folder) {
    d->ctx = cli_open(&d->common);
    if (d->ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int device;
    size_t length;
    if (d->schema_file != NULL &&
        carry_file_read(d->ctx, &d->schema, &length, d->schema_file, SCHEMA_BYTES) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    double started = carry_seconds();
    if (cli_device(d->ctx, d->on, &device) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    if (carry_sampling_check(d->ctx, &d->sampling) != CARRY_OK || open_model(d, folder, device) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    d->loading = carry_seconds() - started;
    if (!d->is_random) {
        cli_choose_dtype(d->ctx, &d->model, d->dtype_name, &d->dtype, d->why);
    }
    if (d->common.verbose > 0 || device != 0) { /* standard output has only the text */
        char name[CLI_DEVICE];
        (void)fprintf(stderr, "%son %s%s\n", cli_dim(), cli_device_name(name, d->ctx, device), cli_plain());
    }
    if (!cli_generate_gather(d)) {
        return CLI_IMPOSSIBLE;
    }
    return generate(d);
}

static void close_session(generate_session *d) {
    for (int64_t i = 0; i < d->count && d->results != NULL; i++) {
        carry_continuation_free(&d->results[i]);
    }
    for (int64_t i = 0; i < d->held_count; i++) {
        free(d->held[i]);
    }
    free(d->schema);
    free(d->results);
    free(d->held);
    free(d->prompts);
    free(d->asked);
    free(d->given.text);
    free(d->stops.text);
    carry_model_close(&d->model);
    carry_ctx_free(d->ctx);
}

static int run(int count, char **arguments) {
    cli_catch_interrupt();
    generate_session d = {.tokens = 128,
                          .dtype = CARRY_F32,
                          .sampling = CLI_SAMPLING_DEFAULTS,
                          .engine = {CARRY_INIT(carry_engine_options)}};
    const cli_option own[] = {
        {"prompt", 'p', CLI_TEXTS, &d.given, "TEXT", "text to continue; repeat for more; -: standard input"},
        {"file", 0, CLI_TEXT, &d.file, "FILE", "prompts from a file, one per line"},
        {"tokens", 'n', CLI_NUMBER, &d.tokens, "N", "tokens for each prompt, at most (128)"},
        CLI_SAMPLING_OPTIONS(&d.sampling, &d.common.seed),
        {"regex", 0, CLI_TEXT, &d.regex, "R", "a regular expression that every text matches"},
        {"json-schema", 0, CLI_TEXT, &d.schema_file, "FILE", "a JSON schema that every text matches"},
        {"stop", 0, CLI_TEXTS, &d.stops, "TEXT", "end a text before this; may be repeated"},
        CLI_DTYPE_OPTION(&d.dtype_name),
        {"ids", 0, CLI_FLAG, &d.by_ids, NULL, "prompts and texts are token ids; needs no tokenizer"},
        {"state-save", 0, CLI_TEXT, &d.state_save, "FILE",
         "save the state after the text; with -n 0 the one after the prompt"},
        {"state-load", 0, CLI_TEXT, &d.state_load, "FILE",
         "continue from this state, without reading its tokens again; with --chat, as the next turn"},
        CLI_ENGINE_OPTIONS(&d.engine),
        {"random", 0, CLI_FLAG, &d.is_random, NULL,
         "random weights: MODEL is a config.json, its folder, or a shape (tiny, qwen3.5-0.8b, qwen3.5-4b, "
         "qwen3.5-35b-a3b)"},
        {"quantise", 0, CLI_TEXT, &d.quantise, "FORMAT", "quantise random weights: fp8_block, q8_0, q4_k, ..."},
        {"chat", 0, CLI_FLAG, &d.is_chat, NULL, "treat a prompt as a message of the user, with the chat template"},
        {"system", 0, CLI_TEXT, &d.system, "TEXT", "chat: the system prompt"},
        {"messages", 0, CLI_TEXT, &d.messages, "FILE", "chat: earlier messages, a JSON list of {role, content, ...}"},
        {"tools", 0, CLI_TEXT, &d.tools, "FILE", "chat: tools that the model may call, a JSON list"},
        {"variables", 0, CLI_TEXT, &d.variables, "FILE", "chat: more variables of the chat template, a JSON object"},
        {"think", 0, CLI_FLAG, &d.thinks, NULL, "chat: think before the answer"},
        {"no-think", 0, CLI_FLAG, &d.thinks_not, NULL, "chat: answer at once"},
        CLI_ADAPTER_OPTION(&d.adapter),
        CLI_DEVICE_OPTION(&d.on),
        {0},
    };
    d.given.text = calloc((size_t)count + 1, sizeof *d.given.text);
    d.stops.text = calloc((size_t)count + 1, sizeof *d.stops.text);
    if (d.given.text == NULL || d.stops.text == NULL) {
        free(d.given.text);
        free(d.stops.text);
        return cli_refuse("out of memory");
    }
    int code = CLI_IMPOSSIBLE;
    int words = cli_parse(&cli_generate, count, arguments, own, &d.common);
    char shown[64];
    if (words >= 0 && d.common.help) {
        code = CLI_DONE;
    } else if (words == 0) {
        (void)cli_refuse("generate needs a model folder: carry generate MODEL -p TEXT");
    } else if (words > 1) {
        (void)cli_refuse("generate takes one model; is '%s' a prompt? It goes after -p",
                         cli_shown(shown, arguments[1]));
    } else if (words == 1 && cli_dtype(d.dtype_name, &d.dtype) != CLI_DONE) {
        code = CLI_IMPOSSIBLE;
    } else if (words == 1 && d.tokens == 0 && d.state_save == NULL) {
        (void)cli_refuse("-n 0: expected 1 or more");
    } else if (words == 1 && cli_generate_check(&d)) {
        code = open_and_generate(&d, arguments[0]);
    }
    close_session(&d);
    return code;
}

const cli_verb cli_generate = {
    .name = "generate",
    .arguments = "MODEL -p TEXT ...",
    .summary = "continue prompts with a language model",
    .details =
        "MODEL is a folder in the format of Hugging Face (config.json, model.safetensors, tokenizer.json), or a\n"
        "folder written by carry train, of which the newest complete step is used. Text is printed as it is\n"
        "generated, after its prompt. Several prompts are generated together, and their texts are printed one after\n"
        "another. A text ends at the end-of-text token of the model, before --stop, or after -n tokens. The same\n"
        "--seed gives the same text.\n"
        "\n"
        "--chat renders the chat template of the folder (Jinja, as transformers does) with the prompt as the last\n"
        "message of the user. --ids takes prompts as token ids (-p '1 2 3') and prints token ids.",
    .example = "carry generate model -p 'Once upon a time' -n 200 --temperature 0.7 --seed 3",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16"},
    .run = run,
};
