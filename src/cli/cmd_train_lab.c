/* carry train and the lab: its YAML files and its run store, where they are built. */
#include <math.h>
#include <stdlib.h>

#include "cli/cmd_train.h"
#include "core/error.h"

#ifdef CARRY_HAVE_LAB
#include "core/file.h"
#include "lab/store/store.h"
#include "lab/yaml.h"

#define CONFIG_BYTES ((size_t)1 << 20)

static carry_status take_member(carry_ctx *ctx, carry_train_options *options, const carry_yaml *node,
                                const char *path) {
    const char *text;
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

static carry_status take_config(carry_ctx *ctx, carry_train_options *options, const char *path) {
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
        status = take_member(ctx, options, node, path);
    }
    carry_yaml_free(root);
    free(text);
    return status;
}

int train_read_config(train_desk *desk, const char *path) {
    return take_config(desk->ctx, &desk->options, path) == CARRY_OK ? CLI_DONE
                                                                    : cli_refuse("%s", carry_ctx_error(desk->ctx));
}

int train_store_begin(train_desk *desk) {
    if (desk->unstored || cli_process_rank() > 0) {
        return CLI_DONE;
    }
    const carry_run_start start = {.kind = "train", .name = desk->name, .command = desk->command};
    if (carry_store_open(desk->ctx, &desk->store, desk->store_path) != CARRY_OK ||
        carry_store_begin(desk->store, &desk->run, &start) != CARRY_OK) {
        carry_store_close(desk->store);
        desk->store = NULL;
        return cli_refuse("%s (--no-store trains without the run store)", carry_ctx_error(desk->ctx));
    }
    return CLI_DONE;
}

/* A store that fails half-way is no reason to lose the training. */
void train_store_metric(train_desk *desk, int64_t step, const char *name, double value) {
    if (desk->store == NULL || desk->store_failed || !isfinite(value)) {
        return;
    }
    if (carry_store_metric(desk->store, desk->run, step, name, value) != CARRY_OK) {
        desk->store_failed = true;
        (void)cli_refuse("from step %lld on the run store gets nothing: %s", (long long)step,
                         carry_ctx_error(desk->ctx));
    }
}

void train_store_end(train_desk *desk, carry_status status, const char *note) {
    if (desk->store == NULL) {
        return;
    }
    const char *state = status == CARRY_OK ? "done" : status == CARRY_EINTERRUPTED ? "interrupted" : "failed";
    (void)carry_store_end(desk->store, desk->run, state, NULL, note);
    carry_store_close(desk->store);
    desk->store = NULL;
}

#else

int train_read_config(train_desk *desk, const char *path) {
    (void)desk;
    return cli_refuse("this carry was built without the lab, which reads %s: give its keys as options", path);
}

int train_store_begin(train_desk *desk) {
    desk->unstored = true;
    return CLI_DONE;
}

void train_store_metric(train_desk *desk, int64_t step, const char *name, double value) {
    (void)desk;
    (void)step;
    (void)name;
    (void)value;
}

void train_store_end(train_desk *desk, carry_status status, const char *note) {
    (void)desk;
    (void)status;
    (void)note;
}

#endif
