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
    stream_session *session = user;
    session->figures = *figures;
    stream_page_figures(session, figures);
    if (figures->chunks > 0) {
        stream_state_write(session, session->ctx);
    }
}

static void on_chunk(void *user, const carry_chunk_times *times) {
    stream_session *session = user;
    stream_show_chunk(&session->display, &session->figures, times);
}

static carry_status note_memory(stream_session *session, carry_status status) {
    if (status == CARRY_EMEMORY) {
        atomic_store(&session->out_of_memory, true);
    }
    return status;
}

static carry_status stream_rank(void *user, carry_comm *comm) {
    stream_session *session = user;
    const carry_pipeline_hooks none = {0};
    if (carry_comm_rank(comm) > 0) {
        return note_memory(session, carry_pipeline_run(comm, &session->pipeline, &none, NULL));
    }
    const carry_pipeline_hooks hooks = {.controls = session->controls,
                                        .stop = cli_interrupted,
                                        .frames = on_frames,
                                        .source = session->options->input != NULL ? on_source : NULL,
                                        .is_ready = on_ready,
                                        .cut = on_cut,
                                        .chunk = on_chunk,
                                        .figures = on_figures,
                                        .user = session};
    carry_status status = stream_video_open(session, carry_comm_ctx(comm));
    status = status == CARRY_OK ? stream_page_open(session, carry_comm_ctx(comm)) : status;
    if (status == CARRY_OK) { /* a stream that is refused prints nothing */
        stream_show_start(&session->display, session);
    }
    status = status == CARRY_OK
                 ? note_memory(session, carry_pipeline_run(comm, &session->pipeline, &hooks, &session->figures))
                 : status;
    stream_page_close(session);
    stream_video_close(session);
    if (status == CARRY_OK) {
        stream_show_end(&session->display, session);
        session->has_ended = true;
    } else {
        stream_show_clear(&session->display);
        (void)fflush(stdout);
    }
    if (session->unsaved[0] != '\0') {
        (void)fprintf(stderr, "carry: not all was saved: %s\n", session->unsaved);
    }
    return status;
}

/* Called when a stream has failed and freed its memory. If memory ran out after the first chunk, changes the options so
   that the stream continues after a hard cut with two thirds of the window (without the sink, in whole chunks);
   recordings continue in another file. Returns false otherwise, if the stream should end anyway, if the window is
   already the smallest, if ranks are processes, or with video input, which would start over. */
static bool continue_smaller(stream_session *session) {
    carry_pipeline_options *o = &session->pipeline;
    carry_dit_config config;
    const int64_t before = o->window;
    const int64_t chunks = (o->window - o->sink) * 2 / 3 / o->chunk;
    const bool was_asked_to_end = cli_interrupted() || (o->chunks > 0 && (int64_t)session->figures.chunks >= o->chunks);
    if (!atomic_load(&session->out_of_memory) || session->figures.chunks == 0 || was_asked_to_end ||
        cli_process_rank() >= 0 || session->options->input != NULL) {
        return false;
    }
    o->window = o->sink + (chunks > 1 ? chunks : 1) * o->chunk;
    if (o->window >= before || carry_pipeline_check(session->ctx, o, &config, cli_ranks()) != CARRY_OK) {
        (void)fprintf(stderr, "carry: memory has run out, and a window of %lld frames cannot be smaller\n",
                      (long long)before);
        return false;
    }
    (void)fprintf(stderr,
                  "carry: memory has run out with a window of %lld frames: the stream goes on with %lld, at a "
                  "hard cut\n",
                  (long long)before, (long long)o->window);
    o->chunks -= o->chunks > 0 ? (int64_t)session->figures.chunks : 0;
    o->first_epoch = session->figures.epoch + 1;
    o->restarts++;
    session->figures = (carry_stream_figures){0};
    return true;
}

static int stream(stream_session *session) {
    int code = stream_prepare(session);
    code = code == CLI_DONE ? stream_state_read(session) : code;
    if (code != CLI_DONE) {
        return code;
    }
    cli_catch_interrupt();
    cli_limit_interrupt(CLI_STREAM_PATIENCE);
    struct stream_change *change = stream_change_start(session->controls, session->options->change);
    carry_status status = CARRY_OK;
    do {
        atomic_store(&session->out_of_memory, false);
        status = cli_on_ranks(&session->options->common, stream_rank, session);
    } while (status != CARRY_OK && continue_smaller(session));
    stream_change_end(change);
    if (status != CARRY_OK) {
        return CLI_IMPOSSIBLE;
    }
    const bool is_below = session->options->gate && session->has_ended && !session->figures.overlap.passes;
    return is_below || session->unsaved[0] != '\0' ? CLI_WRONG : CLI_DONE;
}

#ifdef CARRY_HAVE_LAB
/* Handles --trace FILE by running carry profile -o FILE stream ... */
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

static int parse(stream_options *given, int count, char **arguments) {
    const char *trace = NULL; /* --trace is handled before parsing */
    const cli_option own[] = {
        {"model", 0, CLI_TEXT, &given->model, "FOLDER", "a model folder of Wan or diffusers, or a .safetensors file"},
        {"demo", 0, CLI_FLAG, &given->demo, NULL, "the model that comes with carry, models/shapes (the default)"},
        {"config", 0, CLI_TEXT, &given->config, "NAME", "random weights of a known shape: 1.3B, 14B, shapes"},
        {"codec", 0, CLI_TEXT, &given->codec, "FOLDER", "codec (the subfolder vae or codec of the model, else dct)"},
        {"text-encoder", 0, CLI_TEXT, &given->text_encoder, "FOLDER",
         "UMT5 and its tokenizer (text_encoder of the model); none: fixed word vectors"},
        {"prompt", 'p', CLI_TEXTS, &given->prompts, "TEXT", "what to show; several are mixed (red circle moving left)"},
        {"transition", 0, CLI_NUMBER, &given->transition, "N", "chunks over which a new prompt is blended in (4)"},
        {"lora", 0, CLI_TEXTS, &given->loras, "FILE[:X]",
         "a LoRA file and its scale (1); of several the first is used, until the control lora names another"},
        {"input", 0, CLI_TEXT, &given->input, "PATH", "video input: a Motion JPEG .avi, a folder of JPEGs, a camera"},
        {"strength", 0, CLI_REAL, &given->strength, "X",
         "share of noise added to --input, above 0 and at most 1 (0.6)"},
        {"motion", 0, CLI_REAL, &given->motion, "X",
         "less noise where --input moves: the share of --strength that fast motion removes, below 1 (0)"},
        {"size", 0, CLI_TEXT, &given->size, "WxH", "size of the pictures in pixels (64x64)"},
        {"chunks", 0, CLI_NUMBER, &given->chunks, "N", "chunks to stream; 0: until Ctrl-C (0)"},
        {"steps", 0, CLI_NUMBER, &given->steps, "N", "denoising steps, 1 to 16, at even levels (from the model)"},
        {"levels", 0, CLI_TEXT, &given->levels, "T,T,...", "noise levels of the steps, in falling order from 1000"},
        {"kv-bias", 0, CLI_REAL, &given->kv_bias, "X", "weight of older frames, above 0 and at most 1 (1)"},
        {"noise", 0, CLI_REAL, &given->noise, "X", "scale of the noise between steps, 0 to 2 (1)"},
        {"shift", 0, CLI_REAL, &given->shift, "X", "timestep shift of the sampler (from the model)"},
        {"depth", 0, CLI_NUMBER, &given->depth, "N", "chunks in flight between the stages, 1 to 8 (2)"},
        {"recompute", 0, CLI_TEXT, &given->recompute, "MODE",
         "rebuild the cache for every chunk: off, anchor, latent (off)"},
        {"context", 0, CLI_NUMBER, &given->context, "N", "frames to recompute, a multiple of --chunk (one chunk)"},
        {"batch", 0, CLI_NUMBER, &given->batch, "N",
         "stream batch: N chunks at once, each at a different one of N steps (0: off)"},
        {"no-clean", 0, CLI_FLAG, &given->no_clean, NULL, "omit the last pass at t = 0, which fills the cache"},
        {"topology", 0, CLI_TEXT, &given->topology, "NAME",
         "pipeline: rank 0 is only stage 0; mesh: it also generates (pipeline)"},
        {"chunk", 0, CLI_NUMBER, &given->chunk, "N", "latent frames per chunk (from the model, else 3)"},
        {"window", 0, CLI_NUMBER, &given->window, "N",
         "latent frames in the attention window (from the model, else 21)"},
        {"sink", 0, CLI_NUMBER, &given->sink, "N", "first frames that stay in the window (from the model, else 0)"},
        {"fps", 0, CLI_REAL, &given->fps, "N", "most frames per second; 0: no limit (16 with a page or --record)"},
        {"serve", 0, CLI_FLAG, &given->serve, NULL, "serve a web page with live video, controls and charts"},
        {"port", 0, CLI_NUMBER, &given->port, "N", "port of the page; 0: any free port (8080)"},
        {"address", 0, CLI_TEXT, &given->address, "A", "address of the page (127.0.0.1; others need a token)"},
        {"token", 0, CLI_TEXT, &given->token, "T", "token that the page requires; ps shows it, so prefer --token-file"},
        {"token-file", 0, CLI_TEXT, &given->token_file, "FILE", "file with the token (or set CARRY_TOKEN)"},
        {"record", 0, CLI_TEXT, &given->record, "FILE.avi", "record all frames to a video"},
        {"record-to", 0, CLI_TEXT, &given->record_to, "FOLDER", "folder that the page may record to"},
        {"quality", 0, CLI_NUMBER, &given->quality, "N", "JPEG quality, 1 to 100 (85)"},
        {"out", 0, CLI_TEXT, &given->out, "FOLDER", "write every frame to a file, frame-000000.ppm"},
        {"overwrite", 0, CLI_FLAG, &given->overwrite, NULL, "--out: allow a folder that is not empty"},
        {"headless", 0, CLI_FLAG, &given->headless, NULL, "no page (the default)"},
        {"slow-stage0", 0, CLI_REAL, &given->slow_stage0, "MS", "slow stage 0 down, for experiments"},
        {"slow-stage1", 0, CLI_REAL, &given->slow_stage1, "MS", "slow stage 1 down, for experiments"},
        {"fail-memory", 0, CLI_NUMBER, &given->fail_memory, "N", "for tests: run out of memory in chunk N"},
        {"change-prompt", 0, CLI_REAL, &given->change, "S",
         "change the prompt about every S seconds, for measurements"},
        CLI_DEVICE_OPTION(&given->device),
        {"no-graphs", 0, CLI_FLAG, &given->no_graphs, NULL,
         "on a GPU, launch kernels one by one; a mesh adds through host memory"},
        {"fp8", 0, CLI_FLAG, &given->fp8, NULL,
         "on a Hopper GPU, multiply in 8-bit floats in the model's blocks: less accurate"},
        {"gate", 0, CLI_FLAG, &given->gate, NULL, "exit with 1 if the overlap score is below 0.30"},
        {"trace", 0, CLI_TEXT, &trace, "FILE", "write a trace, as carry profile does"},
        {"supervise", 0, CLI_FLAG, &given->supervise, NULL, "restart the stream, with a hard cut, when it fails"},
        {"processes", 0, CLI_NUMBER, &given->processes, "N", "with --supervise: N ranks under mpirun"},
        {"state", 0, CLI_TEXT, &given->state, "FILE",
         "keep the controls in this file for a restart (--supervise has its own)"},
        {0},
    };
    return cli_parse(&cli_stream, count, arguments, own, &given->common);
}

static int run_options(const stream_options *options, int count, char **typed) {
    stream_session *session = calloc(1, sizeof *session);
    int code = CLI_IMPOSSIBLE;
    if (session == NULL ||
        carry_ctx_new(&session->ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1}) != CARRY_OK) {
        (void)cli_refuse("out of memory");
    } else if (options->supervise) {
        code = stream_supervise(session->ctx, options, count, typed);
    } else {
        session->options = options;
        code = stream(session);
    }
    if (session != NULL) {
        carry_controls_free(session->controls);
        carry_ctx_free(session->ctx);
    }
    free(session);
    return code;
}

static int parse_and_run(int count, char **arguments, char **typed, const char **texts) {
    char shown[64];
    stream_options options = {.prompts = {.text = texts},
                              .loras = {.text = texts + count},
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
    const int words = parse(&options, count, arguments);
    if (words < 0) {
        return CLI_IMPOSSIBLE;
    }
    if (options.common.help) {
        return CLI_DONE;
    }
    return words == 0 ? run_options(&options, count, typed)
                      : cli_refuse("stream takes options only, not '%s': a prompt comes after --prompt",
                                   cli_shown(shown, arguments[0]));
}

static int run(int count, char **arguments) {
    const char *trace = find_trace(count, arguments);
    if (trace != NULL) {
        return with_trace(count, arguments, trace);
    }
    char **typed = calloc((size_t)count + 1, sizeof *typed);
    const char **texts = calloc(2 * (size_t)count + 2, sizeof *texts); /* prompts, then LoRA files */
    int code = CLI_IMPOSSIBLE;
    if (typed == NULL || texts == NULL) {
        (void)cli_refuse("out of memory");
    } else {
        for (int i = 0; i < count; i++) {
            typed[i] = arguments[i]; /* cli_parse moves them */
        }
        code = parse_and_run(count, arguments, typed, texts);
    }
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
