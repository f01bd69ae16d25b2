/* The public functions for chat templates. */
#include <stdlib.h>
#include <string.h>

#include "carry/chat.h"
#include "core/error.h"
#include "tokenizer/chat.h"

static carry_status read_variables(carry_ctx *ctx, carry_json **root, const char *variables) {
    CARRY_TRY(carry_json_parse(ctx, root, variables, strlen(variables), "variables"));
    if ((*root)->kind != CARRY_JSON_OBJECT) {
        carry_json_free(*root);
        *root = NULL;
        return carry_fail(ctx, CARRY_EARGUMENT, "the variables of a template must be a JSON object");
    }
    return CARRY_OK;
}

carry_status carry_render_chat(carry_ctx *ctx, const char *folder, const char *variables, char **text) {
    carry_chat chat;
    carry_json *root;
    size_t length;
    *text = NULL;
    CARRY_TRY(read_variables(ctx, &root, variables));
    carry_status status = carry_chat_open_folder(ctx, &chat, folder);
    if (status == CARRY_OK) {
        status = carry_chat_render(ctx, &chat, &(carry_chat_request){.variables = root}, text, &length);
    }
    carry_chat_close(&chat);
    carry_json_free(root);
    return status;
}

carry_status carry_render_template(carry_ctx *ctx, const char *source, const char *variables, char **text) {
    carry_template *parsed = NULL;
    carry_json *root;
    size_t length;
    *text = NULL;
    CARRY_TRY(read_variables(ctx, &root, variables));
    carry_status status = carry_template_parse(ctx, &parsed, source, strlen(source), "template");
    if (status == CARRY_OK) {
        const carry_json *objects[] = {root};
        status =
            carry_template_render(ctx, parsed, &(carry_template_input){.objects = objects, .count = 1}, text, &length);
    }
    carry_template_free(parsed);
    carry_json_free(root);
    return status;
}

void carry_render_free(char *text) {
    free(text);
}
