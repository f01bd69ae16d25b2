/* carry stream. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_stream.h"
#include "core/error.h"

static carry_status on_frames(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch) {
    return stream_page_frames(user, frames, chunk_index, cache_epoch);
}

static carry_status on_source(void *user, carry_ctx *ctx, carry_tensor frames, int64_t *got) {
    return stream_video_read(user, ctx, frames, got);
}

static bool on_ready(void *user, int64_t frames) {
    return stream_video_is_ready(user, frames);
}

static void on_cut(void *user, uint64_t cache_epoch, bool is_asked) {
    stream_page_cut(user, cache_epoch, is_asked);
}

static void on_figures(void *user, const carry_stream_figures *figures) {
    stream_desk *desk = user;
    desk->figures = *figures;
    stream_page_figures(desk, figures);
    if (figures->chunks > 0) {
        stream_state_write(desk, desk->ctx);
    }
}

static void on_chunk(void *user, const carry_chunk_times *times) {
    stream_show_chunk(user, times);
}

static carry_status note_memory(stream_desk *desk, carry_status status) {
    if (status == CARRY_EMEMORY) {
        atomic_store(&desk->has_run_out, true);
    }
    return status;
}

static carry_status stream_rank(void *user, carry_comm *comm) {
    stream_desk *desk = user;
    const carry_pipeline_hooks none = {0};
    if (carry_comm_rank(comm) > 0) {
        return note_memory(desk, carry_pipeline_run(comm, &desk->options, &none, NULL));
    }
    const carry_pipeline_hooks hooks = {.controls = desk->controls,
                                        .stop = cli_interrupted,
                                        .frames = on_frames,
                                        .source = desk->wish.input != NULL ? on_source : NULL,
                                        .is_ready = on_ready,
                                        .cut = on_cut,
                                        .chunk = on_chunk,
                                        .figures = on_figures,
                                        .user = desk};
    carry_status status = stream_video_open(desk, carry_comm_ctx(comm));
    status = status == CARRY_OK ? stream_page_open(desk, carry_comm_ctx(comm)) : status;
    if (status == CARRY_OK) { /* nothing is said of a stream that is refused */
        stream_show_start(desk);
    }
    status = status == CARRY_OK ? note_memory(desk, carry_pipeline_run(comm, &desk->options, &hooks, &desk->figures))
                                : status;
    stream_page_close(desk);
    stream_video_close(desk);
    if (status == CARRY_OK) {
        stream_show_end(desk);
        desk->has_ended = true;
    } else {
        stream_show_clear(desk);
        (void)fflush(stdout);
    }
    if (desk->unsaved[0] != '\0') {
        (void)fprintf(stderr, "carry: not all was saved: %s\n", desk->unsaved);
    }
    return status;
}

/* Memory ran out after it had streamed: all of it is given back, and the stream goes on at a hard cut with a window of
   two thirds. Frames that were recorded are in their files, and recordings continue in another. Not where it cannot be
   smaller, where ranks are processes, and with video in, which would begin again. */
static bool goes_on_smaller(stream_desk *desk) {
    carry_pipeline_options *o = &desk->options;
    carry_dit_config config;
    const int64_t before = o->window;
    const int64_t chunks = (o->window - o->sink) * 2 / 3 / o->chunk;
    const bool was_asked_to_end = cli_interrupted() || (o->chunks > 0 && (int64_t)desk->figures.chunks >= o->chunks);
    if (!atomic_load(&desk->has_run_out) || desk->figures.chunks == 0 || was_asked_to_end || cli_process_rank() >= 0 ||
        desk->wish.input != NULL) {
        return false;
    }
    o->window = o->sink + (chunks > 1 ? chunks : 1) * o->chunk;
    if (o->window >= before || carry_pipeline_check(desk->ctx, o, &config, cli_ranks()) != CARRY_OK) {
        (void)fprintf(stderr, "carry: memory has run out, and a window of %lld frames cannot be smaller\n",
                      (long long)before);
        return false;
    }
    (void)fprintf(stderr,
                  "carry: memory has run out with a window of %lld frames: the stream goes on with %lld, at a "
                  "hard cut\n",
                  (long long)before, (long long)o->window);
    o->chunks -= o->chunks > 0 ? (int64_t)desk->figures.chunks : 0;
    o->first_epoch = desk->figures.epoch + 1;
    o->restarts++;
    desk->figures = (carry_stream_figures){0};
    return true;
}

static int stream(stream_desk *desk) {
    int code = stream_prepare(desk);
    code = code == CLI_DONE ? stream_state_read(desk) : code;
    if (code != CLI_DONE) {
        return code;
    }
    cli_catch_interrupt();
    cli_limit_interrupt(CLI_STREAM_PATIENCE);
    struct stream_change *change = stream_change_start(desk->controls, desk->wish.change);
    carry_status status = CARRY_OK;
    do {
        atomic_store(&desk->has_run_out, false);
        status = cli_on_ranks(&desk->common, stream_rank, desk);
    } while (status != CARRY_OK && goes_on_smaller(desk));
    stream_change_end(change);
    if (status != CARRY_OK) {
        return CLI_IMPOSSIBLE;
    }
    const bool is_below = desk->wish.gate && desk->has_ended && !desk->figures.overlap.passes;
    return is_below || desk->unsaved[0] != '\0' ? CLI_WRONG : CLI_DONE;
}

#ifdef CARRY_HAVE_LAB
/* --trace FILE ...: what carry profile -o FILE stream ... does. */
static int with_trace(int count, char **arguments, const char *trace) {
    char **given = calloc((size_t)count + 5, sizeof *given);
    int n = 0;
    if (given == NULL) {
        return cli_refuse("out of memory");
    }
    static char words[][16] = {"--no-store", "-o", "stream"};
    given[n++] = words[0];
    given[n++] = words[1];
    given[n++] = (char *)(uintptr_t)trace;
    given[n++] = words[2];
    for (int i = 0; i < count; i++) {
        if (strcmp(arguments[i], "--trace") == 0) {
            i++;
        } else if (strncmp(arguments[i], "--trace=", 8) != 0) {
            given[n++] = arguments[i];
        }
    }
    const int code = cli_profile.run(n, given);
    free(given);
    return code;
}
#else
static int with_trace(int count, char **arguments, const char *trace) {
    (void)count;
    (void)arguments;
    return cli_refuse("this carry was built without the lab, which writes traces such as %s", trace);
}
#endif

static const char *find_trace(int count, char **arguments) {
    for (int i = 0; i < count && strcmp(arguments[i], "--") != 0; i++) {
        if (strcmp(arguments[i], "--trace") == 0 && i + 1 < count) {
            return arguments[i + 1];
        }
        if (strncmp(arguments[i], "--trace=", 8) == 0) {
            return arguments[i] + 8;
        }
    }
    return NULL;
}

static int parse(stream_desk *desk, int count, char **arguments) {
    stream_wish *w = &desk->wish;
    const char *trace = NULL; /* found before */
    const cli_option own[] = {
        {"model", 0, CLI_TEXT, &w->model, "FOLDER", "a model folder of Wan or diffusers, or a .safetensors file"},
        {"demo", 0, CLI_FLAG, &w->demo, NULL, "the model that comes with carry, models/shapes (the default)"},
        {"config", 0, CLI_TEXT, &w->config, "NAME", "random weights of a known shape: 1.3B, 14B, shapes"},
        {"codec", 0, CLI_TEXT, &w->codec, "FOLDER", "codec (the subfolder vae or codec of the model, else dct)"},
        {"text-encoder", 0, CLI_TEXT, &w->text_encoder, "FOLDER",
         "UMT5 and its tokenizer (text_encoder of the model); none: fixed word vectors"},
        {"prompt", 'p', CLI_TEXTS, &w->prompts, "TEXT", "what to show; several are mixed (red circle moving left)"},
        {"transition", 0, CLI_NUMBER, &w->transition, "N", "chunks over which a new prompt is blended in (4)"},
        {"input", 0, CLI_TEXT, &w->input, "PATH", "video input: a Motion JPEG .avi, a folder of JPEGs, a camera"},
        {"strength", 0, CLI_REAL, &w->strength, "X", "share of noise added to --input, above 0 and at most 1 (0.6)"},
        {"size", 0, CLI_TEXT, &w->size, "WxH", "size of the pictures in pixels (64x64)"},
        {"chunks", 0, CLI_NUMBER, &w->chunks, "N", "chunks to stream; 0: until Ctrl-C (0)"},
        {"steps", 0, CLI_NUMBER, &w->steps, "N", "denoising steps, 1 to 16, at even levels (from the model)"},
        {"levels", 0, CLI_TEXT, &w->levels, "T,T,...", "noise levels of the steps, in falling order from 1000"},
        {"kv-bias", 0, CLI_REAL, &w->kv_bias, "X", "weight of older frames, above 0 and at most 1 (1)"},
        {"noise", 0, CLI_REAL, &w->noise, "X", "scale of the noise between steps, 0 to 2 (1)"},
        {"shift", 0, CLI_REAL, &w->shift, "X", "timestep shift of the sampler (from the model)"},
        {"depth", 0, CLI_NUMBER, &w->depth, "N", "chunks in flight between the stages, 1 to 8 (2)"},
        {"recompute", 0, CLI_TEXT, &w->recompute, "MODE",
         "rebuild the cache for every chunk: off, anchor, latent (off)"},
        {"context", 0, CLI_NUMBER, &w->context, "N", "frames to recompute, a multiple of --chunk (one chunk)"},
        {"batch", 0, CLI_NUMBER, &w->batch, "N",
         "stream batch: N chunks at once, each at a different one of N steps (0: off)"},
        {"no-clean", 0, CLI_FLAG, &w->no_clean, NULL, "omit the last pass at t = 0, which fills the cache"},
        {"topology", 0, CLI_TEXT, &w->topology, "NAME",
         "pipeline: rank 0 is only stage 0; mesh: it also generates (pipeline)"},
        {"chunk", 0, CLI_NUMBER, &w->chunk, "N", "latent frames per chunk (from the model, else 3)"},
        {"window", 0, CLI_NUMBER, &w->window, "N", "latent frames in the attention window (from the model, else 21)"},
        {"sink", 0, CLI_NUMBER, &w->sink, "N", "first frames that stay in the window (from the model, else 0)"},
        {"fps", 0, CLI_REAL, &w->fps, "N", "most frames per second; 0: no limit (16 with a page or --record)"},
        {"serve", 0, CLI_FLAG, &w->serve, NULL, "serve a web page with live video, controls and charts"},
        {"port", 0, CLI_NUMBER, &w->port, "N", "port of the page; 0: any free port (8080)"},
        {"address", 0, CLI_TEXT, &w->address, "A", "address of the page (127.0.0.1; others need a token)"},
        {"token", 0, CLI_TEXT, &w->token, "T", "token that the page requires; ps shows it, so prefer --token-file"},
        {"token-file", 0, CLI_TEXT, &w->token_file, "FILE", "file with the token (or set CARRY_TOKEN)"},
        {"record", 0, CLI_TEXT, &w->record, "FILE.avi", "record all frames to a video"},
        {"record-to", 0, CLI_TEXT, &w->record_to, "FOLDER", "folder that the page may record to"},
        {"quality", 0, CLI_NUMBER, &w->quality, "N", "JPEG quality, 1 to 100 (85)"},
        {"out", 0, CLI_TEXT, &w->out, "FOLDER", "write every frame to a file, frame-000000.ppm"},
        {"overwrite", 0, CLI_FLAG, &w->overwrite, NULL, "--out: allow a folder that is not empty"},
        {"headless", 0, CLI_FLAG, &w->headless, NULL, "no page (the default)"},
        {"slow-stage0", 0, CLI_REAL, &w->slow_stage0, "MS", "slow stage 0 down, for experiments"},
        {"slow-stage1", 0, CLI_REAL, &w->slow_stage1, "MS", "slow stage 1 down, for experiments"},
        {"fail-memory", 0, CLI_NUMBER, &w->fail_memory, "N", "for tests: run out of memory in chunk N"},
        {"change-prompt", 0, CLI_REAL, &w->change, "S", "change the prompt about every S seconds, for measurements"},
        CLI_DEVICE_OPTION(&w->device),
        {"no-graphs", 0, CLI_FLAG, &w->no_graphs, NULL, "on a GPU, launch kernels one by one, for measurements"},
        {"gate", 0, CLI_FLAG, &w->gate, NULL, "exit with 1 if the overlap score is below 0.30"},
        {"trace", 0, CLI_TEXT, &trace, "FILE", "write a trace, as carry profile does"},
        {"supervise", 0, CLI_FLAG, &w->supervise, NULL, "restart the stream, with a hard cut, when it fails"},
        {"processes", 0, CLI_NUMBER, &w->processes, "N", "with --supervise: N ranks under mpirun"},
        {"state", 0, CLI_TEXT, &w->state, "FILE",
         "keep the controls in this file for a restart (--supervise has its own)"},
        {0},
    };
    return cli_parse(&cli_stream, count, arguments, own, &desk->common);
}

static int run(int count, char **arguments) {
    const char *trace = find_trace(count, arguments);
    if (trace != NULL) {
        return with_trace(count, arguments, trace);
    }
    stream_desk *desk = calloc(1, sizeof *desk);
    char **typed = calloc((size_t)count + 1, sizeof *typed);
    const char **texts = calloc((size_t)count + 1, sizeof *texts);
    int code = CLI_IMPOSSIBLE;
    if (desk == NULL || typed == NULL || texts == NULL ||
        carry_ctx_new(&desk->ctx, &(carry_ctx_options){.threads = 1}) != CARRY_OK) {
        (void)cli_refuse("out of memory");
        goto done;
    }
    for (int i = 0; i < count; i++) {
        typed[i] = arguments[i]; /* cli_parse moves them */
    }
    desk->wish = (stream_wish){.prompts = {.text = texts},
                               .size = "64x64",
                               .recompute = "off",
                               .topology = "pipeline",
                               .depth = 2,
                               .chunk = -1,
                               .window = -1,
                               .sink = -1,
                               .steps = -1,
                               .transition = 4,
                               .port = 8080,
                               .quality = 85,
                               .kv_bias = 1.0,
                               .noise = 1.0,
                               .shift = NAN,
                               .strength = 0.6,
                               .fps = NAN};
    const int words = parse(desk, count, arguments);
    if (words != 0 || desk->common.help) {
        char shown[64];
        code = words < 0           ? CLI_IMPOSSIBLE
               : desk->common.help ? CLI_DONE
                                   : cli_refuse("stream takes options only, not '%s': a prompt comes after --prompt",
                                                cli_shown(shown, arguments[0]));
        goto done;
    }
    code = desk->wish.supervise ? stream_supervise(desk, count, typed) : stream(desk);
done:
    if (desk != NULL) {
        carry_controls_free(desk->controls);
        carry_ctx_free(desk->ctx);
    }
    free(desk);
    free(typed);
    free(texts);
    return code;
}

const cli_verb cli_stream = {
    .name = "stream",
    .arguments = "[--serve] [--prompt TEXT]",
    .summary = "stream video from a causal video transformer, to a web page or to files",
    .details =
        "Generates video chunk by chunk with a key/value cache. With several ranks (carry --ranks N stream ... or\n"
        "mpirun -n N carry stream ...) it is a pipeline: rank 0 encodes, decodes and serves, and ranks 1 to N-1\n"
        "share the generator; with --topology mesh all N share it, and rank 0 is also stage 0. The pictures are the\n"
        "same.\n"
        "\n"
        "--serve serves a page with the live video, prompts, seed, steps, cuts, pause and charts. Ctrl-C ends the\n"
        "stream between two chunks. At the end it prints how the time of a chunk was spent, the period next to the\n"
        "predicted one, and the overlap score.",
    .example = "carry --ranks 2 stream --demo --serve --prompt \"red circle moving left\"",
    .support = {.cpu = "f32", .cuda = "bf16", .ranks = "cpu cuda"},
    .run = run,
    .on_ranks = true,
};
