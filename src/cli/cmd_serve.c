/* carry serve: serves a language model over HTTP. */
#include <stdlib.h>
#include <string.h>

#include "cli/engine_options.h"
#include "core/file.h"
#include "core/json_write.h"
#ifdef CARRY_HAVE_SERVE
#include "engine/engine_inside.h"
#include "engine/model_random.h"
#include "serve/server.h"

#define KEY_BYTES 4096
#define PORT 8080

typedef struct serve_session {
    cli_common common;
    carry_ctx *ctx;
    carry_engine_options engine_options;
    carry_lm_server_options options;
    cli_texts hosts, origins;
    const char *folder, *key_file, *dtype_name, *on, *name, *adapter;
    char *key;
    char label[256]; /* the model's name by default */
    char states[CARRY_FILE_PATH];
    carry_dtype dtype;
    char why[CARRY_MODEL_WHY];
    bool is_random;
    int64_t port, seconds;
    carry_model model;
    carry_engine *engine;
    carry_lm_server *server;
} serve_session;

/* Sets the model's name: OWNER/NAME of "hf:OWNER/NAME", or the last part of a folder's path. */
static void name_model(serve_session *d) {
    const char *text = strncmp(d->folder, "hf:", 3) == 0 ? d->folder + 3 : d->folder;
    size_t length = strlen(text);
    while (length > 1 && text[length - 1] == '/') {
        length--;
    }
    if (text == d->folder) {
        const char *slash = memrchr(text, '/', length);
        const size_t start = slash != NULL && slash + 1 < text + length ? (size_t)(slash + 1 - text) : 0;
        text += start;
        length -= start;
    }
    (void)snprintf(d->label, sizeof d->label, "%.*s", (int)length, text);
    d->options.model = d->name != NULL ? d->name : d->label;
}

/* Reads the key from the first line of the key file. */
static bool read_key(serve_session *d) {
    size_t length;
    if (d->key_file == NULL) {
        return true;
    }
    if (carry_file_read(d->ctx, &d->key, &length, d->key_file, KEY_BYTES) != CARRY_OK) {
        (void)cli_failed(d->ctx);
        return false;
    }
    d->key[strcspn(d->key, "\r\n")] = '\0';
    d->options.key = d->key;
    if (d->key[0] == '\0') {
        (void)cli_refuse("--api-key-file %s is empty: expected a key of 16 to 255 characters", d->key_file);
    }
    return d->key[0] != '\0';
}

static bool check(serve_session *d) {
    if (d->port > 65535) {
        (void)cli_refuse("--port %lld: expected 0 (any free port) to 65535", (long long)d->port);
        return false;
    }
    if (d->options.states == NULL && d->engine_options.cache_dir != NULL &&
        snprintf(d->states, sizeof d->states, "%s/states", d->engine_options.cache_dir) < (int)sizeof d->states) {
        d->options.states = d->states;
    }
    d->options.port = (int)d->port;
    d->options.hosts = d->hosts.text;
    d->options.origins = d->origins.text;
    d->options.patience = (double)d->seconds;
    return cli_dtype(d->dtype_name, &d->dtype) == CLI_DONE && cli_engine_check(&d->engine_options);
}

static carry_status open_model(serve_session *d, int device) {
    if (!d->is_random) {
        CARRY_TRY(carry_model_open_with_text(d->ctx, &d->model, d->folder, device));
        CARRY_TRY(carry_model_adapt(&d->model, d->adapter));
        cli_choose_dtype(d->ctx, &d->model, d->dtype_name, &d->dtype, d->why);
        return CARRY_OK;
    }
    carry_lm *lm;
    CARRY_TRY(carry_model_random(d->ctx, &lm, d->folder, device, d->dtype, (uint64_t)d->common.seed));
    carry_model_borrow(d->ctx, &d->model, lm);
    return CARRY_OK;
}

/* Prints one line with the address, once requests are accepted. */
static void on_ready(void *user) {
    serve_session *d = user;
    const char *address = d->options.address != NULL ? d->options.address : "127.0.0.1";
    const bool is_ipv6 = strchr(address, ':') != NULL;
    const int port = carry_lm_server_port(d->server);
    cli_limit_interrupt(0.0); /* running requests are finished */
    if (d->common.json) {
        char url[256];
        (void)snprintf(url, sizeof url, "http://%s%s%s:%d", is_ipv6 ? "[" : "", address, is_ipv6 ? "]" : "", port);
        cli_json_open();
        cli_json_text("address", url);
        cli_json_integer("port", port);
        cli_json_text("model", d->options.model);
        cli_json_close();
    } else {
        (void)printf("%s is served at http://%s%s%s:%d\n", d->options.model, is_ipv6 ? "[" : "", address,
                     is_ipv6 ? "]" : "", port);
    }
    (void)fflush(stdout);
}

static int serve(serve_session *d) {
    int device;
    d->ctx = cli_open(&d->common);
    if (d->ctx == NULL || !read_key(d) || cli_device(d->ctx, d->on, &device) != CLI_DONE) {
        return CLI_IMPOSSIBLE;
    }
    name_model(d);
    d->options.on_ready = on_ready;
    d->options.user = d;
    carry_status status = carry_lm_server_start(d->ctx, &d->server, &d->options);
    status = status == CARRY_OK ? open_model(d, device) : status;
    if (status == CARRY_OK) {
        cli_tell_dtype(d->dtype, d->why, d->common.json);
        status = carry_engine_adopt(d->ctx, &d->engine, &d->model, d->dtype, &d->engine_options);
    }
    status = status == CARRY_OK ? carry_lm_server_run(d->server, d->engine, cli_interrupted) : status;
    return status == CARRY_OK ? CLI_DONE : cli_failed(d->ctx);
}

static void close_session(serve_session *d) {
    carry_lm_server_free(d->server);
    carry_engine_close(d->engine);
    carry_model_close(&d->model);
    carry_ctx_free(d->ctx);
    free(d->key);
    free(d->hosts.text);
    free(d->origins.text);
}

static int run(int count, char **arguments) {
    cli_catch_interrupt();
    serve_session d = {.engine_options = {CARRY_INIT(carry_engine_options)}, .port = PORT, .dtype = CARRY_F32};
    const cli_option own[] = {
        {"host", 0, CLI_TEXT, &d.options.address, "ADDRESS", "address to listen on (127.0.0.1)"},
        {"port", 'p', CLI_NUMBER, &d.port, "N", "port; 0: any free one (8080)"},
        {"api-key-file", 0, CLI_TEXT, &d.key_file, "FILE", "file with the key that clients must send (none)"},
        {"open", 0, CLI_FLAG, &d.options.open, NULL, "serve another address than this machine's own without a key"},
        {"allow-host", 0, CLI_TEXTS, &d.hosts, "NAME", "accept this name in Host, as behind a proxy; may be repeated"},
        {"allow-origin", 0, CLI_TEXTS, &d.origins, "URL", "let pages of this origin use the server; may be repeated"},
        {"name", 0, CLI_TEXT, &d.name, "NAME", "name of the model for clients (that of its folder)"},
        {"states", 0, CLI_TEXT, &d.options.states, "DIR", "folder of /v1/states (states in --cache-dir)"},
        {"patience", 0, CLI_NUMBER, &d.seconds, "S", "seconds that a client may keep the server waiting (30)"},
        CLI_ENGINE_OPTIONS(&d.engine_options),
        {"queue", 0, CLI_POSITIVE, &d.engine_options.queue, "N", "requests that wait, at most; more get 429 (1024)"},
        CLI_DTYPE_OPTION(&d.dtype_name),
        {"random", 0, CLI_FLAG, &d.is_random, NULL, "random weights, as carry generate --random"},
        CLI_ADAPTER_OPTION(&d.adapter),
        CLI_DEVICE_OPTION(&d.on),
        {0},
    };
    d.hosts.text = calloc((size_t)count + 1, sizeof *d.hosts.text);
    d.origins.text = calloc((size_t)count + 1, sizeof *d.origins.text);
    int code = CLI_IMPOSSIBLE;
    if (d.hosts.text == NULL || d.origins.text == NULL) {
        (void)cli_refuse("out of memory");
    } else {
        const int words = cli_parse(&cli_serve, count, arguments, own, &d.common);
        if (words >= 0 && d.common.help) {
            code = CLI_DONE;
        } else if (words >= 0 && words != 1) {
            (void)cli_refuse("serve needs one model folder: carry serve MODEL");
        } else if (words == 1 && check(&d)) {
            d.folder = arguments[0];
            code = serve(&d);
        }
    }
    close_session(&d);
    return code;
}
#else
static int run(int count, char **arguments) {
    cli_common common = {0};
    const int words = cli_parse(&cli_serve, count, arguments, NULL, &common);
    if (words >= 0 && common.help) {
        return CLI_DONE;
    }
    return words < 0 ? CLI_IMPOSSIBLE
                     : cli_refuse("this carry was built without libwebsockets, which 'serve' needs: build it where "
                                  "libwebsockets is found");
}
#endif

const cli_verb cli_serve = {
    .name = "serve",
    .arguments = "MODEL",
    .summary = "serve a language model over HTTP, with OpenAI's and Anthropic's interfaces",
    .details =
        "MODEL is a folder as carry generate takes it, or hf:OWNER/NAME after carry pull. One line is printed once\n"
        "requests are accepted. /v1/chat/completions, /v1/completions and /v1/models are OpenAI's interface, whole "
        "and\n"
        "streamed; /tokenize, /detokenize, /v1/states (states of conversations by name), /health and /metrics\n"
        "(Prometheus) are beside it. Prompts that begin like earlier ones are not read again: usage has "
        "cached_tokens.\n"
        "\n"
        "The server listens on this machine only. Another --host needs --api-key-file or --open. SIGTERM and Ctrl-C\n"
        "finish the requests under way and end; a second one ends at once.",
    .example = "carry serve model --port 8080 --sequences 32 --cache-dir ~/.cache/carry/states",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16"},
    .run = run,
};
