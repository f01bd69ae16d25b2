/* Chat templates: those that are known render as Jinja does, and all others are refused. The properties that known
   templates differ in are tried one by one. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer_internal.h"

static carry_ctx *ctx;

#define LOOP "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
#define PROMPT "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
#define PLAIN LOOP PROMPT "{% endif %}"
#define SWITCH                                                                      \
    LOOP PROMPT "{%- if enable_thinking is defined and enable_thinking is false %}" \
                "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"

/* A tokenizer with this template. */
static carry_tokenizer *with_template(const char *template, bool has_tokens) {
    static const char *const added[] = {CARRY_END_OF_TEXT, "<|im_start|>", "<|im_end|>"};
    carry_tokenizer *made;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &made, added, has_tokens ? 3 : 1));
    if (template != NULL) {
        made->chat = strdup(template);
        assert_non_null(made->chat);
        made->chat_length = strlen(template);
    }
    return made;
}

/* One whose template lies beside it. */
static carry_tokenizer *with_file(const char *template, bool in_settings) {
    static const char *const added[] = {CARRY_END_OF_TEXT, "<|im_start|>", "<|im_end|>"};
    char folder[] = "/tmp/carry-chat-XXXXXX";
    char path[CARRY_FILE_PATH];
    assert_non_null(mkdtemp(folder));
    carry_tokenizer *made;
    assert_ok(ctx, carry_tokenizer_bytes(ctx, &made, added, 3));
    assert_ok(ctx, carry_tokenizer_save_folder(ctx, made, folder));
    carry_tokenizer_close(made);
    if (!in_settings) {
        assert_ok(ctx, carry_file_in(ctx, path, folder, "chat_template.jinja"));
        assert_ok(ctx, carry_file_replace(ctx, path, template, strlen(template)));
    } else {
        static char text[8192];
        size_t at = (size_t)sprintf(text, "{\"eos_token\": {\"content\": \"<|im_end|>\"}, \"chat_template\": \"");
        for (const char *c = template; *c != '\0'; c++) {
            if (*c == '\\' || *c == '"') {
                text[at++] = '\\';
            }
            text[at++] = *c;
        }
        (void)sprintf(text + at, "\"}");
        assert_ok(ctx, carry_file_in(ctx, path, folder, "tokenizer_config.json"));
        assert_ok(ctx, carry_file_replace(ctx, path, text, strlen(text)));
    }
    assert_ok(ctx, carry_tokenizer_open(ctx, &made, folder));
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    return made;
}

static void expect_render(const carry_tokenizer *tokenizer, carry_thinking thinking, const carry_message *messages,
                          int64_t count, const char *expected) {
    carry_chat chat;
    char *text;
    size_t length;
    assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
    assert_int_equal(chat.end, 258);
    assert_ok(ctx, carry_chat_render(ctx, &chat, messages, count, thinking, &text, &length));
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(text, expected, length);
    free(text);
}

static void expect_chat(carry_chat chat, carry_thinking thinking, const carry_message *messages, int64_t count,
                        const char *expected) {
    char *text;
    size_t length;
    assert_ok(ctx, carry_chat_render(ctx, &chat, messages, count, thinking, &text, &length));
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(text, expected, length);
    free(text);
}

#define MESSAGE(who, what) \
    { who, what, sizeof what - 1 }

static void test_properties_of_templates_render_as_jinja_does(void **state) {
    (void)state;
    const carry_message ask[] = {MESSAGE("user", " Hi \n")};
    const carry_message told[] = {MESSAGE("system", "Be brief."), MESSAGE("user", "Hi"),
                                  MESSAGE("assistant", "<think>\nhm\n</think>\n\n  Hello. "), MESSAGE("user", "Why?")};
    const char *asked = "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\n";
    const carry_chat thinks = {.can_think = true, .can_not_think = true, .thinks = true};
    const carry_chat opens = {.can_think = true, .can_not_think = true, .opens_thought = true};
    char expected[512];
    (void)sprintf(expected, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n%s", asked);
    expect_chat((carry_chat){.system = "You are a helpful assistant."}, CARRY_THINKING_AS_IS, ask, 1, expected);
    expect_chat(thinks, CARRY_THINKING_AS_IS, ask, 1, asked);
    expect_chat(thinks, CARRY_THINKING_ON, ask, 1, asked);
    (void)sprintf(expected, "%s<think>\n\n</think>\n\n", asked);
    expect_chat(thinks, CARRY_THINKING_OFF, ask, 1, expected);
    expect_chat(opens, CARRY_THINKING_AS_IS, ask, 1, expected);
    (void)sprintf(expected, "%s<think>\n", asked);
    expect_chat(opens, CARRY_THINKING_ON, ask, 1, expected);
    expect_chat((carry_chat){.trims = true}, CARRY_THINKING_AS_IS, ask, 1,
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    const carry_message wide[] = {
        MESSAGE("user", "\xE3\x80\x80\xE6\xBC\xA2 \xE3\x80\x80\xC2\xA0")}; /* spaces beyond ASCII */
    expect_chat((carry_chat){.trims = true}, CARRY_THINKING_AS_IS, wide, 1,
                "<|im_start|>user\n\xE6\xBC\xA2<|im_end|>\n<|im_start|>assistant\n");
    for (int trims = 0; trims < 2; trims++) { /* Qwen3.5 trims a text before it drops the thoughts */
        (void)sprintf(expected,
                      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                      "  Hello.%s<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
                      trims == 1 ? "" : " ");
        expect_chat((carry_chat){.drops_thoughts = true, .trims = trims == 1}, CARRY_THINKING_AS_IS, told, 4, expected);
    }
}

static void test_known_templates_are_told_apart(void **state) {
    (void)state;
    const carry_message ask[] = {MESSAGE("user", "Hi")};
    const char *asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    static const char *const templates[] = {PLAIN, PLAIN "\n", SWITCH};
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        carry_tokenizer *tokenizer = with_template(templates[i], true);
        carry_chat chat;
        expect_render(tokenizer, CARRY_THINKING_AS_IS, ask, 1, asked);
        assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
        assert_int_equal(chat.can_not_think, i == 2);
        carry_tokenizer_close(tokenizer);
    }
}

static void test_templates_are_read_from_either_file(void **state) {
    (void)state;
    const carry_message ask[] = {MESSAGE("user", "Hi")};
    for (int in_settings = 0; in_settings < 2; in_settings++) {
        carry_tokenizer *tokenizer = with_file(SWITCH, in_settings != 0);
        assert_int_equal(carry_tokenizer_eos(tokenizer), in_settings != 0 ? 258 : 256);
        expect_render(tokenizer, CARRY_THINKING_AS_IS, ask, 1,
                      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        carry_tokenizer_close(tokenizer);
    }
}

static void test_other_templates_are_refused(void **state) {
    (void)state;
    static const char *const templates[] = {
        NULL, "{{ '[INST]' }}", LOOP, LOOP "{% if add_generation_prompt %}{% endif %}",
        "{{ '<|user|>' }}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        /* No newline after the end tag. */
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}" PROMPT
        "{% endif %}",
        /* A token before the text, and texts that are trimmed. */
        "{{ bos_token }}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + "
        "'<|im_end|>\\n' "
        "}}{% endfor %}" PROMPT "{% endif %}",
        /* A system prompt in parts, as OLMo's template has it. */
        "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful AI assistant. ' }}"
        "{{ 'You do not currently have access to any functions.<|im_end|>\\n' }}{% endif %}" LOOP PROMPT "{% endif %}",
        /* Anything before or after a known one. */
        " " PLAIN, PLAIN " ", PLAIN "\n\n"};
    carry_chat chat;
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        carry_tokenizer *tokenizer = with_template(templates[i], true);
        assert_refused(ctx, CARRY_EUNSUPPORTED, i == 0 ? "no chat template" : "not known",
                       carry_chat_open(ctx, &chat, tokenizer));
        carry_tokenizer_close(tokenizer);
    }
    carry_tokenizer *tokenizer = with_template(SWITCH, false);
    assert_refused(ctx, CARRY_EUNSUPPORTED, "no such tokens", carry_chat_open(ctx, &chat, tokenizer));
    carry_tokenizer_close(tokenizer);
}

static void test_messages_that_cannot_be_are_refused(void **state) {
    (void)state;
    carry_tokenizer *tokenizer = with_template(PLAIN, true);
    carry_chat chat;
    char *text;
    size_t length;
    assert_ok(ctx, carry_chat_open(ctx, &chat, tokenizer));
    const carry_message late[] = {MESSAGE("user", "a"), MESSAGE("system", "b"), MESSAGE("user", "c")};
    const carry_message tool[] = {MESSAGE("tool", "a"), MESSAGE("user", "c")};
    assert_refused(ctx, CARRY_EARGUMENT, "must be the first",
                   carry_chat_render(ctx, &chat, late, 3, CARRY_THINKING_AS_IS, &text, &length));
    assert_refused(ctx, CARRY_EARGUMENT, "must be the user's",
                   carry_chat_render(ctx, &chat, late, 2, CARRY_THINKING_AS_IS, &text, &length));
    assert_refused(ctx, CARRY_EARGUMENT, "'tool'",
                   carry_chat_render(ctx, &chat, tool, 2, CARRY_THINKING_AS_IS, &text, &length));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "thinking on",
                   carry_chat_render(ctx, &chat, late, 1, CARRY_THINKING_ON, &text, &length));
    chat.drops_thoughts = true;
    const carry_message result[] = {MESSAGE("user", "<tool_response>\n4\n</tool_response>")};
    assert_refused(ctx, CARRY_EUNSUPPORTED, "the result of a tool",
                   carry_chat_render(ctx, &chat, result, 1, CARRY_THINKING_AS_IS, &text, &length));
    carry_tokenizer_close(tokenizer);
}

int main(void) {
    ctx = support_ctx(1, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties_of_templates_render_as_jinja_does),
        cmocka_unit_test(test_known_templates_are_told_apart),
        cmocka_unit_test(test_templates_are_read_from_either_file),
        cmocka_unit_test(test_other_templates_are_refused),
        cmocka_unit_test(test_messages_that_cannot_be_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
