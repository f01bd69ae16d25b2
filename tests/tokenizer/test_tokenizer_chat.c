/* Chats: variables as transformers passes them to the template of a tokenizer's folder. */
#include "core/file.h"
#include "core/json.h"
#include "support.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer_internal.h"

static carry_ctx *ctx;

#define LOOP "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"

/* A tokenizer with this template. */
static carry_tokenizer *with_template(const char *template) {
    static const char *const added[] = {CARRY_END_OF_TEXT, "<|im_start|>", "<|im_end|>"};
    carry_tokenizer *made;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &made, added, 3));
    if (template != NULL) {
        made->chat = strdup(template);
        assert_non_null(made->chat);
        made->chat_length = strlen(template);
    }
    return made;
}

/* A tokenizer with its template and settings in the same folder. */
static carry_tokenizer *with_files(const char *template, const char *settings, char folder[CARRY_FILE_PATH]) {
    static const char *const added[] = {CARRY_END_OF_TEXT, "<|im_start|>", "<|im_end|>"};
    char path[CARRY_FILE_PATH];
    assert_ok(ctx, carry_file_temporary_folder(ctx, folder, "carry-chat-"));
    carry_tokenizer *made;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &made, added, 3));
    assert_ok(ctx, carry_tokenizer_save_folder(ctx, made, folder));
    carry_tokenizer_close(made);
    if (template != NULL) {
        assert_ok(ctx, carry_file_in(ctx, path, folder, "chat_template.jinja"));
        assert_ok(ctx, carry_file_replace(ctx, path, template, strlen(template)));
    }
    assert_ok(ctx, carry_file_in(ctx, path, folder, "tokenizer_config.json"));
    assert_ok(ctx, carry_file_replace(ctx, path, settings, strlen(settings)));
    assert_ok(ctx, carry_tokenizer_open(ctx, &made, folder));
    return made;
}

static carry_status render(const carry_chat *chat, const char *variables, carry_thinking thinking, char **text) {
    carry_json *root;
    size_t length;
    assert_ok(ctx, carry_json_parse(ctx, &root, variables, strlen(variables), "variables"));
    carry_chat_request request = {.variables = root, .thinking = thinking};
    carry_status status = carry_chat_render(ctx, chat, &request, text, &length);
    carry_json_free(root);
    return status;
}

static void expect_render(const char *template, const char *variables, carry_thinking thinking, const char *expected) {
    carry_tokenizer *tokenizer = with_template(template);
    carry_chat chat;
    char *text;
    assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
    assert_ok(ctx, render(&chat, variables, thinking, &text));
    assert_string_equal(text, expected);
    free(text);
    carry_chat_close(&chat);
    carry_tokenizer_close(tokenizer);
}

#define ASK "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"

static void test_defaults_of_variables_are_those_of_transformers(void **state) {
    (void)state;
    expect_render("{{ tools }}{{ documents is defined }}{{ add_generation_prompt }}{{ enable_thinking is defined }}",
                  ASK, CARRY_THINKING_AS_IS, "NoneTrueTrueFalse");
    expect_render("{{ add_generation_prompt }}{{ x }}",
                  "{\"messages\": [{\"role\": \"user\"}], \"add_generation_prompt\": false, \"x\": [1, null]}",
                  CARRY_THINKING_AS_IS, "False[1, None]");
    expect_render("{{ enable_thinking }}", ASK, CARRY_THINKING_ON, "True");
    expect_render("{{ enable_thinking }}", ASK, CARRY_THINKING_OFF, "False");
    expect_render("{{ thinking }}", ASK, CARRY_THINKING_ON, "True");
    expect_render("x", ASK, CARRY_THINKING_OFF, "x");
}

static void test_messages_lose_nulls_and_share_their_reasoning(void **state) {
    (void)state;
    expect_render(
        "{{ messages }}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": null, \"reasoning\": \"r\", \"n\": [null]}]}",
        CARRY_THINKING_AS_IS,
        "[{'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'n': [None], 'reasoning_content': 'r'}]");
    expect_render("{{ messages }}",
                  "{\"messages\": [{\"role\": \"a\", \"thinking\": \"t\", \"reasoning_content\": \"c\"}]}",
                  CARRY_THINKING_AS_IS, "[{'role': 'a', 'thinking': 't', 'reasoning_content': 'c'}]");
    expect_render(LOOP, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}]}", CARRY_THINKING_AS_IS,
                  "<|im_start|>user\na");
}

static void test_templates_are_read_from_either_file(void **state) {
    (void)state;
    static const char settings[] =
        "{\"eos_token\": {\"content\": \"<|im_end|>\"}, \"bos_token\": \"<s>\", \"add_bos_token\": "
        "true, \"unk_token\": null, \"chat_template\": \"{{ bos_token ~ eos_token ~ unk_token ~ add_bos_token }}%s\"}";
    for (int in_settings = 0; in_settings < 2; in_settings++) {
        char folder[CARRY_FILE_PATH], both[512], command[CARRY_FILE_PATH + 16], *text;
        (void)snprintf(both, sizeof both, settings, "!");
        carry_tokenizer *tokenizer =
            with_files(in_settings != 0 ? NULL : "{{ bos_token ~ eos_token ~ unk_token }}!", both, folder);
        carry_chat chat;
        assert_int_equal(carry_tokenizer_eos(tokenizer), 258);
        assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
        assert_int_equal(chat.end, 258);
        assert_ok(ctx, render(&chat, ASK, CARRY_THINKING_AS_IS, &text));
        assert_string_equal(text, "<s><|im_end|>!");
        free(text);
        carry_chat_close(&chat);
        assert_ok(ctx, carry_chat_open_folder(ctx, &chat, folder));
        assert_ok(ctx, render(&chat, ASK, CARRY_THINKING_AS_IS, &text));
        assert_string_equal(text, "<s><|im_end|>!");
        free(text);
        carry_chat_close(&chat);
        carry_tokenizer_close(tokenizer);
        (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
        assert_int_equal(system(command), 0);
    }
}

static void test_the_end_of_an_answer_is_the_token_that_the_template_writes(void **state) {
    (void)state;
    carry_chat chat;
    carry_tokenizer *tokenizer = with_template(LOOP);
    assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
    assert_int_equal(chat.end, 258);
    carry_chat_close(&chat);
    carry_tokenizer_close(tokenizer);
}

static void test_what_cannot_be_rendered_is_refused(void **state) {
    (void)state;
    carry_chat chat;
    char *text;
    carry_tokenizer *tokenizer = with_template(NULL);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no chat template", carry_chat_open(ctx, &chat, tokenizer));
    carry_tokenizer_close(tokenizer);
    tokenizer = with_template("a\n{% extends 'x' %}");
    assert_refused(ctx, CARRY_EUNSUPPORTED, "line 2: the tag 'extends'", carry_chat_open(ctx, &chat, tokenizer));
    carry_tokenizer_close(tokenizer);
    tokenizer = with_template("{{ raise_exception('roles: ' ~ messages[0].role) }}");
    assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
    assert_refused(ctx, CARRY_EARGUMENT, "roles: user", render(&chat, ASK, CARRY_THINKING_AS_IS, &text));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "thinking on", render(&chat, ASK, CARRY_THINKING_ON, &text));
    static const char *const wrong[] = {"{}",
                                        "{\"messages\": []}",
                                        "{\"messages\": {}}",
                                        "{\"messages\": [1]}",
                                        "{\"messages\": [{\"content\": \"x\"}]}",
                                        "{\"messages\": [{\"role\": 1}]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "message", render(&chat, wrong[i], CARRY_THINKING_AS_IS, &text));
    }
    carry_chat_close(&chat);
    carry_tokenizer_close(tokenizer);
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_of_variables_are_those_of_transformers),
        cmocka_unit_test(test_messages_lose_nulls_and_share_their_reasoning),
        cmocka_unit_test(test_templates_are_read_from_either_file),
        cmocka_unit_test(test_the_end_of_an_answer_is_the_token_that_the_template_writes),
        cmocka_unit_test(test_what_cannot_be_rendered_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
