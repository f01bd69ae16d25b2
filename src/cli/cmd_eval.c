/* carry eval: measures how well a model predicts files. */
#include <math.h>
#include <string.h>

#include "cli/engine_options.h"
#include "core/progress.h"
#include "engine/evaluate.h"
#include "tokenizer/wikitext.h"

typedef struct eval_session {
    cli_common common;
    carry_ctx *ctx;
    carry_model model;
    carry_progress progress;
    carry_evaluate_options options;
    const char *on;            /* the device, as it was typed */
    char why[CARRY_MODEL_WHY]; /* the reason for options.dtype; "" once it has been printed */
} eval_session;

static bool on_progress(void *user, int64_t done, int64_t total) {
    carry_progress *progress = user;
    progress->total = total;
    carry_progress_step(progress, done < total ? done : total);
    return !cli_interrupted();
}

static void print_json(const eval_session *d, const char *name, const carry_evaluation *e) {
    double loss = carry_evaluation_loss(e);
    cli_json_open();
    cli_json_text("file", name);
    char device[CLI_DEVICE];
    cli_json_text("model", d->model.folder);
    cli_json_text("device", cli_device_name(device, d->ctx, d->model.device));
    cli_json_number("loss", loss);
    cli_json_number("perplexity", exp(loss));
    cli_json_number("bits_per_byte", carry_evaluation_bits_per_byte(e));
    if (e->words > 0) {
        cli_json_number("word_perplexity", carry_wikitext_perplexity(e->nll, e->words));
        cli_json_integer("words", e->words);
    }
    cli_json_integer("tokens", e->tokens);
    cli_json_integer("bytes", e->bytes);
    cli_json_text("dtype", carry_dtype_name(d->options.dtype));
    if (d->options.kv_type != NULL) {
        cli_json_text("kv_type", d->options.kv_type);
    }
    if (d->options.state_type != NULL) {
        cli_json_text("state_type", d->options.state_type);
    }
    if (d->options.at_once > 0) {
        cli_json_integer("at_once", d->options.at_once);
    }
    cli_json_integer("length", d->options.length);
    cli_json_bool("start", d->options.from_start);
    cli_json_number("seconds", e->seconds);
    cli_json_number("tokens_per_s", (double)e->tokens / e->seconds);
    cli_json_close();
}

static void print_evaluation(const eval_session *d, const char *name, const carry_evaluation *e) {
    if (d->common.json) {
        print_json(d, name, e);
        return;
    }
    double loss = carry_evaluation_loss(e);
    char device[CLI_DEVICE];
    (void)printf("%s%s%s: loss %.4f, perplexity %.3f, %.4f bits per byte (%s)\n", cli_bold(), name, cli_plain(), loss,
                 exp(loss), carry_evaluation_bits_per_byte(e), cli_device_name(device, d->ctx, d->model.device));
    if (e->words > 0) {
        (void)printf("  perplexity per word %.2f over %lld words, ends of lines included\n",
                     carry_wikitext_perplexity(e->nll, e->words), (long long)e->words);
    }
    (void)printf("  %s%lld tokens of %lld bytes in %.1f s: %.0f tokens/s%s\n", cli_dim(), (long long)e->tokens,
                 (long long)e->bytes, e->seconds, (double)e->tokens / e->seconds, cli_plain());
}

static int refuse_interrupted(const char *name, const carry_evaluation *e) {
    return cli_refuse("interrupted: the first %lld tokens of %s have loss %.4f", (long long)e->tokens, name,
                      carry_evaluation_loss(e));
}

static int evaluate(eval_session *d, int count, char **files) {
    carry_evaluation all = {0};
    bool all_words = true;
    for (int i = 0; i < count; i++) {
        carry_evaluation one;
        carry_progress_start(&d->progress, stderr, "evaluating", 0);
        carry_status status = carry_evaluate(d->ctx, &d->model, files[i], &d->options, &one);
        carry_progress_clear(&d->progress);
        if (status != CARRY_OK) {
            return status == CARRY_EINTERRUPTED ? refuse_interrupted(files[i], &one) : cli_failed(d->ctx);
        }
        if (one.tokens == 0) {
            return cli_refuse("%s has one token, and nothing before it to predict it from", files[i]);
        }
        cli_tell_dtype(d->options.dtype, d->why, d->common.json);
        print_evaluation(d, files[i], &one);
        all.nll += one.nll;
        all.tokens += one.tokens;
        all.bytes += one.bytes;
        all.words += one.words;
        all.seconds += one.seconds;
        all_words = all_words && one.words > 0;
    }
    if (count > 1) {
        all.words = all_words ? all.words : 0;
        print_evaluation(d, "all", &all);
    }
    return CLI_DONE;
}

static int run(int count, char **arguments) {
    eval_session d = {.options = {.progress = on_progress, .dtype = CARRY_F32}};
    const char *dtype = NULL;
    const char *adapter = NULL;
    const cli_option own[] = {
        {"length", 0, CLI_NUMBER, &d.options.length, "N",
         "evaluate separate windows of N tokens (0: the whole text at once)"},
        {"start", 0, CLI_FLAG, &d.options.from_start, NULL,
         "predict the first token too, from the model's start or end-of-text token"},
        {"at-once", 0, CLI_POSITIVE, &d.options.at_once, "N",
         "tokens of a step, after which states are stored (1024; on a GPU 16384)"},
        {"binary", 0, CLI_FLAG, &d.options.take_binary, NULL, "accept files that do not look like text"},
        CLI_DTYPE_OPTION(&dtype),
        CLI_STATE_TYPE_OPTIONS(&d.options.kv_type, &d.options.state_type),
        CLI_ADAPTER_OPTION(&adapter),
        CLI_DEVICE_OPTION(&d.on),
        {0},
    };
    d.options.user = &d.progress;
    int words = cli_parse(&cli_eval, count, arguments, own, &d.common);
    if (words < 0 || d.common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words < 2) {
        return cli_refuse("eval needs a model's folder and a text: carry eval MODEL FILE...");
    }
    if (cli_dtype(dtype, &d.options.dtype) != CLI_DONE ||
        !cli_state_types_check(d.options.kv_type, d.options.state_type)) {
        return CLI_IMPOSSIBLE;
    }
    cli_catch_interrupt();
    d.ctx = cli_open(&d.common);
    if (d.ctx == NULL) {
        return CLI_IMPOSSIBLE;
    }
    int device;
    int code = CLI_IMPOSSIBLE;
    if (cli_device(d.ctx, d.on, &device) != CLI_DONE) {
        carry_ctx_free(d.ctx);
        return code;
    }
    if (carry_model_open(d.ctx, &d.model, arguments[0], device) == CARRY_OK &&
        carry_model_adapt(&d.model, adapter) == CARRY_OK) {
        cli_choose_dtype(d.ctx, &d.model, dtype, &d.options.dtype, d.why);
        code = evaluate(&d, words - 1, arguments + 1);
    } else {
        (void)cli_failed(d.ctx);
    }
    carry_model_close(&d.model);
    carry_ctx_free(d.ctx);
    return code;
}

const cli_verb cli_eval = {
    .name = "eval",
    .arguments = "MODEL FILE...",
    .summary = "loss, perplexity and bits per byte of texts",
    .details =
        "MODEL is as for carry generate. FILE is a text or a folder of texts. Each text is read from start to end\n"
        "with the state carried along, so every token is predicted from all tokens before it; --length N cuts the\n"
        "text into windows of N tokens instead. For the files of WikiText it also prints the perplexity per word as\n"
        "published results define it: over words and line ends, independent of the tokenizer.\n\n"
        "The first token of a text is not counted, as in the loss of Hugging Face models, unless the tokenizer puts\n"
        "a token such as <s> before the text; --start also predicts it, from the start token of the model. With\n"
        "--length, the first token of a window is predicted from the token before the window and is counted;\n"
        "Hugging Face models do not count it.\n\n"
        "The loss is in nats per token and depends on the tokenizer; bits per byte do not.",
    .example = "carry eval model wiki.test.tokens",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16 f16"},
    .run = run,
};
