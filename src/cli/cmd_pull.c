/* carry pull: downloads a checkpoint from the Hugging Face hub. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/clock.h"
#include "core/json_write.h"
#include "core/progress.h"
#ifdef CARRY_HAVE_CURL
#include "hub/hub.h"

typedef struct pull_session {
    cli_common common;
    cli_texts include;
    const char *endpoint;
    int64_t part, stall;
    carry_progress progress;
} pull_session;

static bool on_progress(void *user, int64_t done, int64_t total) {
    pull_session *d = user;
    d->progress.total = total;
    carry_progress_step(&d->progress, done);
    return !cli_interrupted();
}

static void print_json(const carry_hub_pull *pull, double seconds) {
    for (int64_t i = 0; i < pull->count; i++) {
        carry_json_text line = {.spaced = true};
        carry_json_begin(&line, NULL, '{');
        carry_json_add_text(&line, "file", pull->files[i].path);
        carry_json_add_integer(&line, "bytes", pull->files[i].size);
        carry_json_add_text(&line, "hash", pull->files[i].hash);
        carry_json_end(&line, '}');
        (void)printf("%s\n", line.failed ? "{}" : line.bytes);
        carry_json_text_free(&line);
    }
    carry_json_text line = {.spaced = true};
    carry_json_begin(&line, NULL, '{');
    carry_json_add_text(&line, "model", pull->model.name);
    carry_json_add_text(&line, "revision", pull->model.revision);
    carry_json_add_text(&line, "commit", pull->commit);
    carry_json_add_text(&line, "folder", pull->folder);
    carry_json_add_integer(&line, "files", pull->count);
    carry_json_add_integer(&line, "bytes", pull->bytes);
    carry_json_add_integer(&line, "fetched_bytes", pull->fetched_bytes);
    carry_json_add_number(&line, "seconds", seconds);
    carry_json_end(&line, '}');
    (void)printf("%s\n", line.failed ? "{}" : line.bytes);
    carry_json_text_free(&line);
}

static int fetch(pull_session *d, carry_ctx *ctx, const char *name) {
    carry_hub_pull pull = {.endpoint = d->endpoint,
                           .include = d->include.text,
                           .includes = d->include.count,
                           .part = d->part,
                           .stall = (double)d->stall,
                           .on_progress = on_progress,
                           .user = d};
    double started = carry_seconds();
    if (carry_hub_parse(ctx, &pull.model, name) != CARRY_OK) {
        return cli_failed(ctx);
    }
    carry_progress_start(&d->progress, stderr, "fetching bytes", 0);
    carry_status status = carry_hub_fetch(ctx, &pull);
    carry_progress_clear(&d->progress);
    double seconds = carry_seconds() - started;
    if (status == CARRY_OK && d->common.json) {
        print_json(&pull, seconds);
    } else if (status == CARRY_OK) {
        (void)printf("%s\n%lld files, %.3g MB, of which %.3g MB were fetched in %.1f s\n", pull.folder,
                     (long long)pull.count, (double)pull.bytes / 1e6, (double)pull.fetched_bytes / 1e6, seconds);
    }
    carry_hub_pull_free(&pull);
    return status == CARRY_OK ? CLI_DONE : cli_failed(ctx);
}

static int run(int count, char **arguments) {
    pull_session d = {0};
    const cli_option own[] = {
        {"include", 0, CLI_TEXTS, &d.include, "PATTERN", "only files like this, as *.json; may be repeated"},
        {"endpoint", 0, CLI_TEXT, &d.endpoint, "URL", "the hub (HF_ENDPOINT, else https://huggingface.co)"},
        {"part", 0, CLI_NUMBER, &d.part, "BYTES", "size of the ranges that are fetched in parallel (33554432)"},
        {"stall", 0, CLI_NUMBER, &d.stall, "SECONDS", "ask again for a range that gets no byte for so long (60)"},
        {0},
    };
    d.include.text = calloc((size_t)count + 1, sizeof *d.include.text);
    if (d.include.text == NULL) {
        return cli_refuse("out of memory");
    }
    int words = cli_parse(&cli_pull, count, arguments, own, &d.common);
    int code = CLI_IMPOSSIBLE;
    if (words >= 0 && d.common.help) {
        code = CLI_DONE;
    } else if (words >= 0 && words != 1) {
        (void)cli_refuse("pull takes one model: carry pull OWNER/NAME");
    } else if (words == 1 && (d.part < 0 || d.stall < 0)) {
        (void)cli_refuse("--part and --stall: expected 1 or more");
    } else if (words == 1) {
        cli_catch_interrupt();
        carry_ctx *ctx = cli_open(&d.common);
        code = ctx != NULL ? fetch(&d, ctx, arguments[0]) : CLI_IMPOSSIBLE;
        carry_ctx_free(ctx);
    }
    free(d.include.text);
    return code;
}
#else
static int run(int count, char **arguments) {
    cli_common common = {0};
    int words = cli_parse(&cli_pull, count, arguments, NULL, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    return cli_refuse("pull needs libcurl, which this build does not have (libcurl4-openssl-dev on Debian)");
}
#endif

const cli_verb cli_pull = {
    .name = "pull",
    .arguments = "OWNER/NAME[@REVISION]",
    .summary = "fetch a checkpoint from the Hugging Face hub",
    .details =
        "Files go to the cache of the hub (HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub), which "
        "other\n"
        "programs share. Files that are there are not fetched again. The free space is checked first; large files are\n"
        "fetched in parallel ranges, and a call that was killed is resumed by the next. The hashes of all fetched "
        "files\n"
        "are checked. HF_TOKEN is the token for private and gated models. generate, eval and tokenizer take\n"
        "hf:OWNER/NAME in place of a model folder.",
    .example = "carry pull Qwen/Qwen3.5-0.8B && carry generate hf:Qwen/Qwen3.5-0.8B --chat -p 'Hello'",
    .run = run,
};
