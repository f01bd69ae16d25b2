/* Reads parameters of OpenAI's requests. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"

#define TOP_LOGPROBS 20
#define TOKENS_MOST ((int64_t)1 << 40)

/* Reads the token id that is a key of logit_bias. */
static bool token_of(const carry_json *entry, int64_t *token) {
    char *end;
    errno = 0;
    const long long number = strtoll(entry->key, &end, 10);
    *token = number;
    return entry->key_length > 0 && entry->key_length == strlen(entry->key) && *end == '\0' && errno == 0 &&
           entry->key[0] >= '0' && entry->key[0] <= '9';
}

static bool read_bias(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *bias = carry_serve_member(r->body, "logit_bias");
    if (bias == NULL) {
        return true;
    }
    if (bias->kind != CARRY_JSON_OBJECT || carry_json_count(bias) > CARRY_SERVE_BIASES) {
        return carry_serve_refuse(refusal, 400, "logit_bias",
                                  "logit_bias: expected an object of at most %d token ids and biases",
                                  CARRY_SERVE_BIASES);
    }
    const size_t count = (size_t)carry_json_count(bias);
    r->bias_tokens = calloc(count + 1, sizeof *r->bias_tokens);
    r->biases = calloc(count + 1, sizeof *r->biases);
    if (r->bias_tokens == NULL || r->biases == NULL) {
        return carry_serve_refuse(refusal, 500, "", "out of memory");
    }
    for (const carry_json *entry = carry_json_first(bias); entry != NULL; entry = entry->next) {
        const double value = carry_json_number(entry);
        if (!token_of(entry, &r->bias_tokens[r->bias_count]) || !(value >= -100.0 && value <= 100.0)) {
            return carry_serve_refuse(refusal, 400, "logit_bias",
                                      "logit_bias has '%.40s': expected token ids with biases from -100 to 100",
                                      entry->key);
        }
        r->biases[r->bias_count++] = (float)value;
    }
    return true;
}

/* max_completion_tokens overrides max_tokens, its older name. */
static bool read_lengths(carry_serve_request *r, carry_serve_refusal *refusal) {
    return carry_serve_read_integer(r->body, "max_tokens", &r->max_tokens, 1, TOKENS_MOST, refusal) &&
           carry_serve_read_integer(r->body, "max_completion_tokens", &r->max_tokens, 1, TOKENS_MOST, refusal) &&
           carry_serve_read_integer(r->body, "n", &r->choices, 1, CARRY_SERVE_CHOICES, refusal);
}

static bool read_sampling(carry_serve_request *r, carry_serve_refusal *refusal) {
    int64_t seed = 0;
    const carry_json *body = r->body;
    r->has_seed = carry_serve_member(body, "seed") != NULL;
    const bool is_read = carry_serve_read_number(body, "temperature", &r->temperature, 0.0, 100.0, refusal) &&
                         carry_serve_read_number(body, "top_p", &r->top_p, 0.0, 1.0, refusal) &&
                         carry_serve_read_integer(body, "top_k", &r->top_k, -1, INT32_MAX, refusal) &&
                         carry_serve_read_number(body, "min_p", &r->min_p, 0.0, 1.0, refusal) &&
                         carry_serve_read_number(body, "frequency_penalty", &r->frequency, -2.0, 2.0, refusal) &&
                         carry_serve_read_number(body, "presence_penalty", &r->presence, -2.0, 2.0, refusal) &&
                         carry_serve_read_number(body, "repetition_penalty", &r->repetition, 0.01, 100.0, refusal) &&
                         carry_serve_read_integer(body, "seed", &seed, INT64_MIN, INT64_MAX, refusal) &&
                         carry_serve_read_bool(body, "ignore_eos", &r->ignores_ends, refusal);
    r->seed = (uint64_t)seed;
    r->top_k = r->top_k < 0 ? 0 : r->top_k;
    if (is_read && r->top_p == 0.0) {
        return carry_serve_refuse(refusal, 400, "top_p", "top_p is 0: expected a number above 0, up to 1");
    }
    return is_read;
}

static bool read_stream(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *options = carry_serve_member(r->body, "stream_options");
    if (!carry_serve_read_bool(r->body, "stream", &r->is_streamed, refusal)) {
        return false;
    }
    if (options != NULL && options->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, "stream_options", "stream_options: expected an object");
    }
    if (options != NULL && !r->is_streamed) {
        return carry_serve_refuse(refusal, 400, "stream_options", "stream_options is set without stream");
    }
    return carry_serve_read_bool(options, "include_usage", &r->includes_usage, refusal);
}

bool carry_serve_openai_parameters(carry_serve_request *r, carry_serve_refusal *refusal) {
    if (r->body->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, "", "the body is not a JSON object");
    }
    return carry_serve_read_text(r->body, "model", &r->model, refusal) && read_lengths(r, refusal) &&
           read_sampling(r, refusal) && read_bias(r, refusal) && carry_serve_read_stops(r->body, "stop", r, refusal) &&
           read_stream(r, refusal);
}

static bool read_schema(carry_serve_request *r, const carry_json *format, carry_serve_refusal *refusal) {
    const carry_json *named = carry_serve_member(format, "json_schema");
    const carry_json *schema = carry_serve_member(named, "schema");
    if (schema == NULL || (schema->kind != CARRY_JSON_OBJECT && schema->kind != CARRY_JSON_BOOL)) {
        return carry_serve_refuse(refusal, 400, "response_format.json_schema.schema",
                                  "response_format.json_schema.schema: expected a JSON schema");
    }
    r->format = (carry_serve_format){.kind = CARRY_FORMAT_JSON_SCHEMA, .schema = schema};
    return true;
}

static bool read_pattern(carry_serve_request *r, const carry_json *pattern, const char *field,
                         carry_serve_refusal *refusal) {
    const char *text = carry_json_string(pattern);
    if (text == NULL) {
        return carry_serve_refuse(refusal, 400, field, "%s: expected a regular expression as a text", field);
    }
    r->format =
        (carry_serve_format){.kind = CARRY_FORMAT_REGEX, .pattern = text, .pattern_length = pattern->as.text.length};
    return true;
}

static bool read_format(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *format = carry_serve_member(r->body, "response_format");
    const carry_json *regex = carry_serve_member(r->body, "regex");
    if (format == NULL) {
        return regex == NULL || read_pattern(r, regex, "regex", refusal);
    }
    const carry_json *type = carry_serve_member(format, "type");
    if (carry_json_is_text(type, "text")) {
        return true;
    }
    if (carry_json_is_text(type, "json_object")) {
        r->format.kind = CARRY_FORMAT_JSON_OBJECT;
        return true;
    }
    if (carry_json_is_text(type, "json_schema")) {
        return read_schema(r, format, refusal);
    }
    if (carry_json_is_text(type, "regex")) {
        const carry_json *pattern = carry_serve_member(format, "pattern");
        return read_pattern(r, pattern != NULL ? pattern : carry_serve_member(format, "regex"),
                            "response_format.pattern", refusal);
    }
    return carry_serve_refuse(refusal, 400, "response_format.type",
                              "response_format.type: expected text, json_object, json_schema or regex");
}

static bool read_tool_choice(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *choice = carry_serve_member(r->body, "tool_choice");
    if (choice == NULL || carry_json_is_text(choice, "auto")) {
        return true;
    }
    if (carry_json_is_text(choice, "none")) {
        r->tool_choice = CARRY_TOOLS_NONE;
        return true;
    }
    if (r->tools == NULL) {
        return carry_serve_refuse(refusal, 400, "tool_choice", "tool_choice is set without tools");
    }
    if (carry_json_is_text(choice, "required")) {
        r->tool_choice = CARRY_TOOLS_REQUIRED;
        return true;
    }
    r->tool_choice = CARRY_TOOLS_NAMED;
    r->tool_name = carry_json_string(carry_json_find(carry_json_find(choice, "function"), "name"));
    for (const carry_json *tool = carry_json_first(r->tools); tool != NULL && r->tool_name != NULL; tool = tool->next) {
        if (carry_json_is_text(carry_json_find(carry_json_find(tool, "function"), "name"), r->tool_name)) {
            return true;
        }
    }
    return carry_serve_refuse(refusal, 400, "tool_choice",
                              "tool_choice: expected none, auto, required or the function of one of the tools");
}

static bool check_tool(const carry_json *tool, int64_t at, carry_serve_refusal *refusal) {
    const carry_json *function = carry_serve_member(tool, "function");
    char path[CARRY_SERVE_FIELD / 4];
    char inside[CARRY_SERVE_FIELD / 2];
    char field[CARRY_SERVE_FIELD];
    (void)snprintf(path, sizeof path, "tools[%" PRId64 "]", at);
    (void)snprintf(inside, sizeof inside, "%s.function", path);
    if (tool->kind != CARRY_JSON_OBJECT) {
        return carry_serve_refuse(refusal, 400, path, "%s: expected an object", path);
    }
    if (!carry_json_is_text(carry_json_find(tool, "type"), "function")) {
        (void)snprintf(field, sizeof field, "%s.type", path);
        return carry_serve_refuse(refusal, 400, field, "%s: expected function", field);
    }
    if (!carry_serve_check(tool, path, "function", CARRY_JSON_OBJECT, true, refusal) ||
        !carry_serve_check(function, inside, "name", CARRY_JSON_STRING, true, refusal) ||
        !carry_serve_check(function, inside, "description", CARRY_JSON_STRING, false, refusal) ||
        !carry_serve_check(function, inside, "parameters", CARRY_JSON_OBJECT, false, refusal)) {
        return false;
    }
    if (carry_json_string(carry_json_find(function, "name"))[0] == '\0') {
        (void)snprintf(field, sizeof field, "%s.name", inside);
        return carry_serve_refuse(refusal, 400, field, "%s is empty: expected a name", field);
    }
    return true;
}

static bool read_tools(carry_serve_request *r, carry_serve_refusal *refusal) {
    const carry_json *tools = carry_serve_member(r->body, "tools");
    int64_t at = 0;
    if (tools == NULL || carry_json_count(tools) == 0) {
        return tools == NULL || tools->kind == CARRY_JSON_ARRAY ||
               carry_serve_refuse(refusal, 400, "tools", "tools: expected a list");
    }
    if (tools->kind != CARRY_JSON_ARRAY) {
        return carry_serve_refuse(refusal, 400, "tools", "tools: expected a list");
    }
    for (const carry_json *tool = carry_json_first(tools); tool != NULL; tool = tool->next, at++) {
        if (!check_tool(tool, at, refusal)) {
            return false;
        }
    }
    r->tools = tools;
    return true;
}

bool carry_serve_openai_format(carry_serve_request *r, carry_serve_refusal *refusal) {
    bool is_parallel = true;
    const bool is_read = read_format(r, refusal) && read_tools(r, refusal) && read_tool_choice(r, refusal) &&
                         carry_serve_read_bool(r->body, "parallel_tool_calls", &is_parallel, refusal);
    r->no_parallel_tools = !is_parallel;
    return is_read;
}
