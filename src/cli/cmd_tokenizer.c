/* carry tokenizer train|encode|decode|show|render. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carry/chat.h"
#include "cli/cli.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_write.h"
#include "core/progress.h"
#include "tokenizer/text.h"
#include "tokenizer/tokenizer.h"

#define VOCABULARY 4096
#define LEAST 2
#define ADDED 64 /* maximum number of added tokens */

typedef struct tokenizer_session {
    cli_common common;
    carry_ctx *ctx;
    carry_tokenizer *tokenizer;
    int64_t vocabulary, least;
    const char *output, *added, *text;
    bool bytes_only, binary, as_text, bare, keep;
} tokenizer_session;

static const cli_option *options_of(tokenizer_session *d) {
    static cli_option options[11];
    const cli_option all[] = {
        {"vocab", 0, CLI_NUMBER, &d->vocabulary, "N",
         "train: number of tokens, including bytes and added tokens (4096)"},
        {"output", 'o', CLI_TEXT, &d->output, "DIR", "train: folder for tokenizer.json (tokenizer)"},
        {"added", 0, CLI_TEXT, &d->added, "LIST", "train: added tokens, separated by commas (" CARRY_END_OF_TEXT ")"},
        {"least", 0, CLI_NUMBER, &d->least, "N", "train: how often a pair must occur to be merged (2)"},
        {"bytes", 0, CLI_FLAG, &d->bytes_only, NULL, "train: only the 256 bytes; needs no text"},
        {"binary", 0, CLI_FLAG, &d->binary, NULL, "train: accept files that do not look like text"},
        {"text", 't', CLI_TEXT, &d->text, "TEXT", "encode: this text instead of files"},
        {"as-text", 0, CLI_FLAG, &d->as_text, NULL, "encode: treat added tokens as ordinary text"},
        {"bare", 0, CLI_FLAG, &d->bare, NULL, "encode: omit the tokens that the tokenizer adds around a text (<s>)"},
        {"keep-special", 0, CLI_FLAG, &d->keep, NULL, "decode: include special tokens"},
        {0},
    };
    memcpy(options, all, sizeof all);
    return options;
}

static bool on_progress(void *user, int64_t done, int64_t total) {
    carry_progress *progress = user;
    progress->total = total;
    carry_progress_step(progress, done);
    return !cli_interrupted();
}

/* Splits the list at its commas. Returns the number of parts, or -1 if there are more than `most`. */
static int split_added(char *list, const char **added, int most) {
    int count = 0;
    for (char *at = strtok(list, ","); at != NULL; at = strtok(NULL, ",")) {
        if (count == most) {
            return -1;
        }
        added[count++] = at;
    }
    return count;
}

static carry_status train_on(tokenizer_session *d, const carry_text *text, carry_trainer *trainer) {
    carry_progress reading;
    carry_bytes bytes = {0};
    int64_t blocks = carry_text_blocks(text);
    carry_status status = CARRY_OK;
    carry_progress_start(&reading, stderr, "reading", blocks);
    for (int64_t i = 0; i < blocks && status == CARRY_OK && !cli_interrupted(); i++) {
        bool ends_file;
        bytes.count = 0;
        status = carry_text_read(d->ctx, text, i, &bytes, &ends_file);
        if (status == CARRY_OK) {
            status = carry_trainer_feed(d->ctx, trainer, bytes.at, bytes.count);
        }
        carry_progress_step(&reading, i + 1);
    }
    carry_progress_clear(&reading);
    free(bytes.at);
    status = status == CARRY_OK ? carry_trainer_finish(d->ctx, trainer, &d->tokenizer) : status;
    if (status == CARRY_OK && cli_interrupted()) { /* the vocabulary may be based on a part of the text */
        status = carry_fail(d->ctx, CARRY_EINTERRUPTED, "training a tokenizer was interrupted: nothing is written");
    }
    return status;
}

static carry_status train(tokenizer_session *d, int count, char **paths, const char *const *added, int added_count) {
    if (d->bytes_only) {
        return carry_tokenizer_bytes(d->ctx, &d->tokenizer, added, added_count);
    }
    carry_progress merging;
    carry_progress_start(&merging, stderr, "merging", 0);
    carry_trainer_options options = {.size = d->vocabulary,
                                     .least = d->least,
                                     .added = added,
                                     .added_count = added_count,
                                     .progress = on_progress,
                                     .user = &merging};
    carry_text *text = NULL;
    carry_trainer *trainer = NULL;
    carry_status status = carry_text_open(d->ctx, &text, (const char *const *)paths, count,
                                          &(carry_text_options){.take_binary = d->binary});
    if (status == CARRY_OK) {
        status = carry_trainer_new(d->ctx, &trainer, &options);
    }
    if (status == CARRY_OK) {
        status = train_on(d, text, trainer);
    }
    carry_progress_clear(&merging);
    carry_trainer_free(trainer);
    carry_text_free(text);
    return status;
}

static void print_tokenizer(const tokenizer_session *d, const char *path) {
    const carry_tokenizer *t = d->tokenizer;
    if (d->common.json) {
        cli_json_open();
        cli_json_text("tokenizer", path);
        cli_json_integer("vocabulary", carry_tokenizer_size(t));
        cli_json_integer("merges", carry_tokenizer_merges(t));
        cli_json_integer("end_of_text", carry_tokenizer_end(t));
        cli_json_close();
    } else {
        (void)printf("%s: %lld tokens, %lld merges\n", path, (long long)carry_tokenizer_size(t),
                     (long long)carry_tokenizer_merges(t));
    }
}

static int run_train(tokenizer_session *d, int count, char **paths) {
    const char *added[ADDED];
    char list[4096];
    (void)snprintf(list, sizeof list, "%s", d->added != NULL ? d->added : CARRY_END_OF_TEXT);
    if (d->added != NULL && strlen(d->added) >= sizeof list) {
        return cli_refuse("--added is longer than %zu bytes", sizeof list);
    }
    int added_count = split_added(list, added, ADDED);
    if (added_count < 0) {
        return cli_refuse("--added names more than %d tokens", ADDED);
    }
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/tokenizer.json", d->output != NULL ? d->output : "tokenizer");
    if (length < 0 || (size_t)length >= sizeof path) {
        return cli_refuse("the path after --output is too long");
    }
    if (count == 0 && !d->bytes_only) {
        return cli_refuse("tokenizer train needs a text: carry tokenizer train FILE... -o DIR");
    }
    if (train(d, count, paths, added, added_count) != CARRY_OK ||
        carry_tokenizer_save_folder(d->ctx, d->tokenizer, d->output != NULL ? d->output : "tokenizer") != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    print_tokenizer(d, path);
    if (!d->bytes_only && carry_tokenizer_size(d->tokenizer) < d->vocabulary && !d->common.json) {
        (void)printf("%sthe text has no more pairs that occur %lld times%s\n", cli_dim(), (long long)d->least,
                     cli_plain());
    }
    return CLI_DONE;
}

static int print_ids(const tokenizer_session *d, const carry_ids *ids, size_t bytes) {
    if (d->common.json) {
        (void)printf("{\"bytes\": %zu, \"tokens\": %zu, \"ids\": [", bytes, ids->count);
    }
    for (size_t i = 0; i < ids->count; i++) {
        (void)printf("%s%u", i == 0 ? "" : d->common.json ? ", " : " ", ids->id[i]);
    }
    (void)puts(d->common.json ? "]}" : "");
    return CLI_DONE;
}

static int encode_one(tokenizer_session *d, carry_encoder *encoder, const char *text, size_t length) {
    carry_ids ids = {0};
    carry_status status = d->bare ? CARRY_OK : carry_encode_start(d->ctx, d->tokenizer, &ids);
    if (status == CARRY_OK) {
        status = carry_encode(d->ctx, encoder, &ids, text, length,
                              d->as_text ? CARRY_SPECIALS_AS_TEXT : CARRY_SPECIALS_FOUND);
    }
    if (status == CARRY_OK && !d->bare) {
        status = carry_encode_end(d->ctx, d->tokenizer, &ids);
    }
    int code = status == CARRY_OK ? print_ids(d, &ids, length) : cli_failed(d->ctx);
    carry_ids_free(&ids);
    return code;
}

static int encode_file(tokenizer_session *d, carry_encoder *encoder, const char *path) {
    bool is_input = strcmp(path, "-") == 0;
    FILE *from = is_input ? stdin : fopen(path, "rb");
    if (from == NULL) {
        return cli_refuse("%s cannot be read: %s", path, strerror(errno));
    }
    size_t length;
    char *text = cli_read_all(from, is_input ? "standard input" : path, &length);
    if (!is_input) {
        (void)fclose(from);
    }
    int code = text != NULL ? encode_one(d, encoder, text, length) : CLI_IMPOSSIBLE;
    free(text);
    return code;
}

static int run_encode(tokenizer_session *d, int count, char **words) {
    carry_encoder *encoder;
    if (carry_tokenizer_open(d->ctx, &d->tokenizer, words[0]) != CARRY_OK ||
        carry_encoder_new(d->ctx, &encoder, d->tokenizer) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    int code = CLI_DONE;
    if (d->text != NULL) {
        code = encode_one(d, encoder, d->text, strlen(d->text));
    } else if (count == 1) {
        code = encode_file(d, encoder, "-");
    }
    for (int i = 1; i < count && code == CLI_DONE && d->text == NULL; i++) {
        code = encode_file(d, encoder, words[i]);
    }
    carry_encoder_free(encoder);
    return code;
}

/* Parses token ids: the given words or, if count is 0, all of standard input. Returns the number of ids, or -1
   after printing a message. */
static int64_t take_numbers(uint32_t **ids, int count, char **words) {
    size_t length = 0;
    char *input = count == 0 ? cli_read_all(stdin, "standard input", &length) : NULL;
    *ids = NULL;
    if (count == 0 && input == NULL) {
        return -1;
    }
    size_t most = count > 0 ? (size_t)count : length / 2 + 1;
    *ids = calloc(most, sizeof **ids);
    int64_t taken = 0;
    const char *space = " \t\r\n,[]";
    char *rest = NULL;
    char *word = count > 0 ? words[0] : input != NULL ? strtok_r(input, space, &rest) : NULL;
    while (word != NULL && taken >= 0 && *ids != NULL && (size_t)taken < most) {
        char *end;
        unsigned long long number = strtoull(word, &end, 10);
        if (*end != '\0' || word[0] < '0' || word[0] > '9' || number > UINT32_MAX) {
            char shown[64];
            (void)cli_refuse("'%s' is not a token id", cli_shown(shown, word));
            taken = -1;
            break;
        }
        (*ids)[taken++] = (uint32_t)number;
        word = count == 0 ? strtok_r(NULL, space, &rest) : taken < count ? words[taken] : NULL;
    }
    free(input);
    if (*ids == NULL) {
        (void)cli_refuse("out of memory: %zu numbers", most);
        return -1;
    }
    return taken;
}

static int run_decode(tokenizer_session *d, int count, char **words) {
    if (carry_tokenizer_open(d->ctx, &d->tokenizer, words[0]) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    uint32_t *ids;
    int64_t taken = take_numbers(&ids, count - 1, words + 1);
    char *text = NULL;
    size_t length;
    int code = CLI_IMPOSSIBLE;
    if (taken >= 0 && carry_decode(d->ctx, d->tokenizer, &text, &length, ids, (size_t)taken, !d->keep) != CARRY_OK) {
        (void)cli_failed(d->ctx);
    } else if (taken >= 0 && d->common.json) {
        char *shown = malloc(CARRY_UNFOLD_GROWTH * (length + 4) + 1);
        carry_unfold unfold = {0};
        if (shown != NULL) { /* JSON is UTF-8 */
            size_t written = carry_unfold_bytes(&unfold, shown, text, length);
            written += carry_unfold_end(&unfold, shown + written);
            shown[written] = '\0';
            cli_json_open();
            cli_json_integer("tokens", taken);
            cli_json_text("text", shown);
            cli_json_close();
            code = CLI_DONE;
        }
        free(shown);
    } else if (taken >= 0) {
        (void)fwrite(text, 1, length, stdout);
        code = CLI_DONE;
    }
    free(text);
    free(ids);
    return code;
}

static int run_show(tokenizer_session *d, int count, char **words) {
    (void)count;
    if (carry_tokenizer_open(d->ctx, &d->tokenizer, words[0]) != CARRY_OK) {
        return cli_failed(d->ctx);
    }
    print_tokenizer(d, words[0]);
    return CLI_DONE;
}

/* tokenizer render TEMPLATE FILE. TEMPLATE is a file that ends with .jinja, or the folder of a model. */
static int run_render(tokenizer_session *d, int count, char **words) {
    if (count != 2) {
        return cli_refuse("tokenizer render needs a model folder or a .jinja file, and a JSON file of variables (-: "
                          "standard input)");
    }
    FILE *from = strcmp(words[1], "-") == 0 ? stdin : fopen(words[1], "rbe");
    if (from == NULL) {
        return cli_refuse("%s cannot be read: %s", words[1], strerror(errno));
    }
    size_t length, ending = strlen(words[0]);
    char *variables = cli_read_all(from, words[1], &length), *source = NULL, *text = NULL;
    if (from != stdin) {
        (void)fclose(from);
    }
    if (variables == NULL) {
        return CLI_IMPOSSIBLE;
    }
    bool is_file = ending > 6 && strcmp(words[0] + ending - 6, ".jinja") == 0;
    carry_status status = CARRY_OK;
    if (is_file) {
        status = carry_file_read(d->ctx, &source, &length, words[0], (size_t)4 << 20);
    }
    if (status == CARRY_OK) {
        status = is_file ? carry_render_template(d->ctx, source, variables, &text)
                         : carry_render_chat(d->ctx, words[0], variables, &text);
    }
    int code = status == CARRY_OK ? CLI_DONE : cli_failed(d->ctx);
    if (status == CARRY_OK && d->common.json) {
        carry_json_text line = {0};
        carry_json_begin(&line, NULL, '{');
        carry_json_add_text(&line, "text", text);
        carry_json_end(&line, '}');
        (void)printf("%s\n", line.failed ? "{}" : line.bytes);
        carry_json_text_free(&line);
    } else if (status == CARRY_OK) {
        (void)fputs(text, stdout);
    }
    carry_render_free(text);
    free(source);
    free(variables);
    return code;
}

/* Refuses options and words that the action would ignore. */
static int refuse_unused(const tokenizer_session *d, const char *action, int words) {
    const bool trains = strcmp(action, "train") == 0;
    const bool has_sizes = d->vocabulary >= 0 || d->least >= 0;
    if (!trains && (has_sizes || d->output != NULL || d->added != NULL || d->bytes_only || d->binary)) {
        return cli_refuse("tokenizer %s does not take --vocab, --output, --added, --least, --bytes or --binary",
                          action);
    }
    if (strcmp(action, "encode") != 0 && (d->text != NULL || d->as_text || d->bare)) {
        return cli_refuse("--text, --as-text and --bare are options of tokenizer encode, not of %s", action);
    }
    if (strcmp(action, "decode") != 0 && d->keep) {
        return cli_refuse("--keep-special is an option of tokenizer decode, not of %s", action);
    }
    if (d->bytes_only && (has_sizes || words > 0)) {
        return cli_refuse("--bytes learns nothing: it has no use for a text, --vocab or --least");
    }
    if ((d->text != NULL || strcmp(action, "show") == 0) && words > 1) {
        return cli_refuse("tokenizer %s takes the tokenizer%s alone, and %d words are there", action,
                          d->text != NULL ? " and --text" : "", words);
    }
    return d->least != 0 ? CLI_DONE : cli_refuse("--least 0 merges pairs that never occur: 1 or more is needed");
}

static int run(int count, char **arguments) {
    static const struct {
        const char *name;
        int least; /* minimum number of words after it */
        int (*run)(tokenizer_session *d, int count, char **words);
    } actions[] = {{"train", 0, run_train},
                   {"encode", 1, run_encode},
                   {"decode", 1, run_decode},
                   {"show", 1, run_show},
                   {"render", 0, run_render}};
    tokenizer_session d = {.vocabulary = -1, .least = -1}; /* not given */
    int words = cli_parse(&cli_tokenizer, count, arguments, options_of(&d), &d.common);
    if (words < 0 || d.common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    for (size_t i = 0; words > 0 && i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(arguments[0], actions[i].name) != 0) {
            continue;
        }
        if (words - 1 < actions[i].least) {
            return cli_refuse("tokenizer %s needs a tokenizer.json or its folder", arguments[0]);
        }
        if (refuse_unused(&d, arguments[0], words - 1) != CLI_DONE) {
            return CLI_IMPOSSIBLE;
        }
        d.vocabulary = d.vocabulary >= 0 ? d.vocabulary : VOCABULARY;
        d.least = d.least > 0 ? d.least : LEAST;
        cli_catch_interrupt();
        d.ctx = cli_open(&d.common);
        int code = d.ctx != NULL ? actions[i].run(&d, words - 1, arguments + 1) : CLI_IMPOSSIBLE;
        carry_tokenizer_close(d.tokenizer);
        carry_ctx_free(d.ctx);
        return code;
    }
    char shown[64];
    return cli_refuse("tokenizer does train, encode, decode, show or render, not '%s'",
                      words > 0 ? cli_shown(shown, arguments[0]) : "nothing");
}

const cli_verb cli_tokenizer = {
    .name = "tokenizer",
    .arguments = "train|encode|decode|render ...",
    .summary = "train or use a BPE tokenizer",
    .details =
        "train FILE...             learn merges from text files and folders, and write tokenizer.json\n"
        "encode TOKENIZER FILE...  print the token ids of each file on a line (without FILE: of standard input)\n"
        "decode TOKENIZER N...     print the text of token ids, byte for byte (without N: from standard input)\n"
        "show TOKENIZER            print the number of tokens and merges\n"
        "render MODEL FILE         render the chat template of a folder (or a .jinja file) with variables from JSON\n"
        "\n"
        "TOKENIZER is a tokenizer.json in the format of Hugging Face, or a folder that contains one: BPE over bytes,\n"
        "as in GPT-2, Llama 3, Qwen and OLMo, or over characters with byte_fallback, as in Llama 2 and Mistral. A\n"
        "tokenizer with parts that are not supported is refused with a message that names the part.",
    .example =
        "carry tokenizer train book.txt --vocab 4096 -o tokenizer && carry tokenizer encode tokenizer -t 'Hello'",
    .run = run,
};
