/* Default sampling parameters from generation_config.json in the model's folder, read as transformers and vLLM do. */
#include <sys/stat.h>

#include "core/context.h"
#include "core/file.h"
#include "serve/server_internal.h"

#define BYTES ((size_t)1 << 20)

void carry_serve_read_defaults(carry_lm_server *s) {
    carry_ctx *ctx = s->engine->ctx;
    carry_serve_defaults *d = &s->defaults;
    char path[CARRY_FILE_PATH];
    struct stat about;
    carry_json *root;
    carry_serve_refusal refusal = {0};
    *d = (carry_serve_defaults){.temperature = 1.0, .top_p = 1.0, .repetition = 1.0};
    if (s->engine->model.folder[0] == '\0' ||
        carry_file_in(ctx, path, s->engine->model.folder, "generation_config.json") != CARRY_OK ||
        stat(path, &about) != 0 || carry_json_read(ctx, &root, path, BYTES) != CARRY_OK) {
        return; /* a warning was logged when the model was opened */
    }
    carry_serve_defaults found = *d;
    if (carry_serve_read_number(root, "temperature", &found.temperature, 0.0, 100.0, &refusal) &&
        carry_serve_read_number(root, "top_p", &found.top_p, 1e-6, 1.0, &refusal) &&
        carry_serve_read_integer(root, "top_k", &found.top_k, 0, INT32_MAX, &refusal) &&
        carry_serve_read_number(root, "min_p", &found.min_p, 0.0, 1.0, &refusal) &&
        carry_serve_read_number(root, "repetition_penalty", &found.repetition, 0.01, 100.0, &refusal)) {
        *d = found;
    } else {
        carry_log(ctx, CARRY_LOG_WARNING, "generation_config.json gives no defaults of sampling: %s", refusal.message);
    }
    carry_json_free(root);
}

void carry_serve_use_defaults(const carry_lm_server *s, carry_serve_request *r) {
    r->temperature = s->defaults.temperature;
    r->top_p = s->defaults.top_p;
    r->top_k = s->defaults.top_k;
    r->min_p = s->defaults.min_p;
    r->repetition = s->defaults.repetition;
}
