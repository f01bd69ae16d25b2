/* The parts of carry train that use the lab: YAML files and the run store, if they are built. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_train.h"
#include "core/error.h"

#ifdef CARRY_HAVE_LAB
#include "core/file.h"
#include "lab/store/store.h"
#include "core/json_write.h"
#include "lab/yaml.h"

#define CONFIG_BYTES ((size_t)1 << 20)
#define UNSTORED ".no-store" /* a file in the folder of a run that was started with --no-store */

static carry_status take_member(train_session *session, const carry_yaml *node, const char *path) {
    carry_ctx *ctx = session->ctx;
    carry_train_options *options = &session->options;
    const char *text;
    if (strcmp(node->key, "download") == 0) { /* not an option: the hint to print when the text is missing */
        CARRY_TRY(carry_yaml_text(ctx, &text, node, path));
        (void)snprintf(session->download, sizeof session->download, "%s", text);
        return CARRY_OK;
    }
    if (carry_train_key_find(node->key) == NULL) {
        return carry_yaml_fail(ctx, node, path, "there is no key '%.40s' (carry train --help lists them)", node->key);
    }
    CARRY_TRY(carry_yaml_text(ctx, &text, node, path));
    if (carry_train_set(ctx, options, node->key, text) != CARRY_OK) {
        char why[256];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(ctx));
        return carry_yaml_fail(ctx, node, path, "%s", why);
    }
    return CARRY_OK;
}

static carry_status take_config(train_session *session, const char *path) {
    carry_ctx *ctx = session->ctx;
    char *text;
    size_t length;
    carry_yaml *root = NULL;
    CARRY_TRY(carry_file_read(ctx, &text, &length, path, CONFIG_BYTES));
    carry_status status = carry_yaml_parse(ctx, &root, text, length, path);
    if (status == CARRY_OK && root->kind != CARRY_YAML_MAPPING) {
        status = carry_yaml_fail(ctx, root, path, "a mapping of keys to values is needed");
    }
    for (const carry_yaml *node = status == CARRY_OK ? root->first : NULL; node != NULL && status == CARRY_OK;
         node = node->next) {
        status = take_member(session, node, path);
    }
    carry_yaml_free(root);
    free(text);
    return status;
}

int train_read_config(train_session *session, const char *path) {
    return take_config(session, path) == CARRY_OK ? CLI_DONE : cli_refuse("%s", carry_ctx_error(session->ctx));
}

int train_check_download(const train_session *session) {
    const char *const lists[] = {session->options.data, session->options.eval_data};
    char shown[64];
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && session->download[0] != '\0'; i++) {
        for (const char *at = lists[i]; *at != '\0'; at += strcspn(at, "\n"), at += *at != '\0') {
            char path[CARRY_TRAIN_PATH];
            (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\n"), at);
            if (access(path, R_OK) != 0) {
                return cli_refuse("there is no %s: %s", cli_shown(shown, path), session->download);
            }
        }
    }
    return CLI_DONE;
}

/* A run that was started with --no-store continues without the store, unless one is given. */
static void take_mark(train_session *session) {
    char path[CARRY_FILE_PATH];
    if (session->resume && session->store_path == NULL &&
        carry_file_in(session->ctx, path, session->options.out, UNSTORED) == CARRY_OK && access(path, F_OK) == 0) {
        session->unstored = true;
    }
}

/* Called once the training has made its folder. An error is ignored: it is no reason to end the training. */
static void leave_mark(train_session *session) {
    static const char text[] = "This run is not kept in the run store (carry train --no-store).\n";
    char path[CARRY_FILE_PATH];
    if (session->unstored && !session->marked &&
        carry_file_in(session->ctx, path, session->options.out, UNSTORED) == CARRY_OK) {
        (void)carry_file_replace(session->ctx, path, text, sizeof text - 1);
    }
    session->marked = true;
}

int train_store_begin(train_session *session) {
    take_mark(session);
    if (session->unstored || cli_process_rank() > 0) {
        return CLI_DONE;
    }
    const carry_run_start start = {.kind = "train",
                                   .name = session->given_name != NULL ? session->given_name : session->name,
                                   .command = session->command};
    if (carry_store_open(session->ctx, &session->store, session->store_path) != CARRY_OK ||
        carry_store_begin(session->store, &session->run, &start) != CARRY_OK) {
        carry_store_close(session->store);
        session->store = NULL;
        return cli_refuse("%s (--no-store trains without the run store)", carry_ctx_error(session->ctx));
    }
    return CLI_DONE;
}

/* Writes the options as a file that --config accepts. Options that were neither given nor filled in are left out. */
static void write_options(carry_json_text *text, const carry_train_options *options) {
    for (const carry_train_key *key = carry_train_keys; key->name != NULL; key++) {
        const void *field = (const char *)options + key->offset;
        if (strcmp(key->name, "out") == 0) {
            continue;
        }
        if (key->kind == CARRY_TRAIN_TEXT && *(const char *)field != '\0') {
            carry_json_put_raw(text, "%s: ", key->name);
            carry_json_put_string(text, field);
            carry_json_put_raw(text, "\n");
        } else if (key->kind == CARRY_TRAIN_WHOLE && *(const int64_t *)field != 0 && *(const int64_t *)field != -1) {
            carry_json_put_raw(text, "%s: %lld\n", key->name, (long long)*(const int64_t *)field);
        } else if (key->kind == CARRY_TRAIN_REAL && *(const double *)field != 0.0) {
            carry_json_put_raw(text, "%s: ", key->name);
            carry_json_put_double(text, *(const double *)field);
            carry_json_put_raw(text, "\n");
        } else if (key->kind == CARRY_TRAIN_FLAG && *(const bool *)field) {
            carry_json_put_raw(text, "%s: true\n", key->name);
        }
    }
}

void train_store_started(train_session *session, const carry_train_start *start) {
    char device[CLI_DEVICE];
    carry_json_text text = {0};
    leave_mark(session);
    session->has_started = true;
    if (session->store == NULL) {
        return;
    }
    write_options(&text, start->options);
    const carry_run_used used = {.threads = carry_ctx_threads(start->lm->ctx),
                                 .ranks = start->ranks * start->parts,
                                 .device = cli_device_name(device, start->lm->ctx, start->lm->own.device),
                                 .spec = text.failed ? NULL : text.bytes};
    if (carry_store_used(session->store, session->run, &used) != CARRY_OK) {
        (void)cli_refuse("the options of this run could not be stored: %s", carry_ctx_error(session->ctx));
    }
    carry_json_text_free(&text);
}

/* If the store fails during a training, the training continues. */
void train_store_metric(train_session *session, int64_t step, const char *name, double value) {
    if (session->store == NULL || session->store_failed || !isfinite(value)) {
        return;
    }
    if (carry_store_metric(session->store, session->run, step, name, value) != CARRY_OK) {
        session->store_failed = true;
        (void)cli_refuse("from step %lld on nothing is stored in the run store: %s", (long long)step,
                         carry_ctx_error(session->ctx));
    }
}

void train_store_end(train_session *session, carry_status status, const char *note) {
    if (session->store == NULL) {
        return;
    }
    const char *state = status == CARRY_OK ? "done" : status == CARRY_EINTERRUPTED ? "interrupted" : "failed";
    (void)carry_store_end(session->store, session->run, state, NULL, note);
    if (!session->has_started && status != CARRY_OK) { /* a training that was refused is not stored */
        (void)carry_store_delete(session->store, session->run);
    }
    carry_store_close(session->store);
    session->store = NULL;
}

#else

int train_check_download(const train_session *session) {
    (void)session;
    return CLI_DONE;
}

int train_read_config(train_session *session, const char *path) {
    (void)session;
    return cli_refuse("this carry was built without the lab, which reads %s: give its keys as options", path);
}

int train_store_begin(train_session *session) {
    session->unstored = true;
    return CLI_DONE;
}

void train_store_started(train_session *session, const carry_train_start *start) {
    (void)session;
    (void)start;
}

void train_store_metric(train_session *session, int64_t step, const char *name, double value) {
    (void)session;
    (void)step;
    (void)name;
    (void)value;
}

void train_store_end(train_session *session, carry_status status, const char *note) {
    (void)session;
    (void)status;
    (void)note;
}

#endif
