/* Reads blocks of text files. */
#include "tokenizer/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "tokenizer/text_files.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

#define BLOCK_BYTES ((int64_t)1 << 20)
#define BLOCK_LEAST 4096
#define SEARCHED ((int64_t)64 << 10) /* how many bytes before a block's nominal end are searched for a place to cut */
#define HEAD_BYTES 4096              /* bytes of each file that are checked when a text is opened */
#define INVALID_SHARE 32             /* a file is binary if more than one byte in this many is not UTF-8 */
#define INVALID_LEAST 8

struct carry_text {
    carry_file_list list;
    carry_text_options options;
    int64_t *first; /* number of each file's first block; [files + 1] */
    int64_t bytes;
};

bool carry_text_is_binary(const void *bytes, size_t length, char *why, size_t size) {
    const unsigned char *text = bytes;
    const unsigned char *zero = length > 0 ? memchr(text, 0, length) : NULL;
    if (zero != NULL) {
        (void)snprintf(why, size, "has a 0 byte at place %lld", (long long)(zero - text));
        return true;
    }
    size_t invalid = 0;
    for (size_t at = 0; at < length;) {
        int used = carry_utf8_at(text + at, length - at);
        /* A character that is cut off by the end of the buffer does not count as invalid. */
        invalid += used == 0 && length - at >= CARRY_UTF8_LONGEST;
        at += used > 0 ? (size_t)used : 1;
    }
    if (invalid >= INVALID_LEAST && invalid > length / INVALID_SHARE) {
        (void)snprintf(why, size, "has %zu bytes that are not UTF-8 among %zu", invalid, length);
        return true;
    }
    return false;
}

/* Reads length bytes of a file from offset; an error if the file has shrunk. */
static carry_status read_part(carry_ctx *ctx, const carry_text *text, int64_t file, int64_t offset, char *to,
                              size_t length) {
    const char *path = text->list.file[file].path;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        return carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(errno));
    }
    size_t got = 0;
    while (got < length) {
        ssize_t more = pread(opened, to + got, length - got, (off_t)(offset + (int64_t)got));
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more <= 0) {
            int reason = errno;
            (void)close(opened);
            if (more < 0) {
                return carry_fail(ctx, CARRY_EIO, "%s cannot be read: %s", path, strerror(reason));
            }
            return carry_fail(ctx, CARRY_EIO, "%s shrank while it was in use: it had %lld bytes, and ends at %lld now",
                              path, (long long)text->list.file[file].bytes, (long long)(offset + (int64_t)got));
        }
        got += (size_t)more;
    }
    (void)close(opened);
    return CARRY_OK;
}

/* *place: the offset at which part `part` of a file begins. */
static carry_status find_boundary(carry_ctx *ctx, const carry_text *text, int64_t file, int64_t part, int64_t *place) {
    int64_t size = text->list.file[file].bytes;
    int64_t nominal = part * text->options.block_bytes;
    if (part == 0 || nominal >= size) {
        *place = part == 0 ? 0 : size;
        return CARRY_OK;
    }
    int64_t searched = text->options.block_bytes / 2 < SEARCHED ? text->options.block_bytes / 2 : SEARCHED;
    int64_t longest = text->options.tokenizer != NULL ? (int64_t)text->options.tokenizer->longest_added : 0;
    int64_t beyond = size - nominal < longest ? size - nominal : longest;
    char *bytes = malloc((size_t)(searched + beyond));
    if (bytes == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", text->list.file[file].path);
    }
    carry_status status = read_part(ctx, text, file, nominal - searched, bytes, (size_t)(searched + beyond));
    if (status == CARRY_OK) {
        size_t length = (size_t)(searched + beyond);
        size_t cut = text->options.tokenizer != NULL ? carry_tokenizer_last_cut(text->options.tokenizer, bytes, length)
                                                     : carry_pattern_last_cut(bytes, length);
        if (cut <= CARRY_UTF8_LONGEST) { /* no usable cut: it cannot be trusted near the start, where the text before it
                                            is unknown */
            for (cut = (size_t)searched;
                 cut > (size_t)searched - 3 && ((unsigned char)bytes[cut - 1] & 0xC0) == 0x80;) {
                cut--;
            }
            cut -= (unsigned char)bytes[cut - 1] >= 0xC0;
        }
        *place = nominal - searched + (int64_t)cut;
    }
    free(bytes);
    return status;
}

static carry_status refuse_binary(carry_ctx *ctx, const carry_text *text, int64_t file, const void *bytes,
                                  size_t length) {
    char why[96];
    if (!text->options.take_binary && carry_text_is_binary(bytes, length, why, sizeof why)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s does not look like text: it %s (--binary takes it all the same)",
                          text->list.file[file].path, why);
    }
    return CARRY_OK;
}

static int64_t file_of(const carry_text *text, int64_t block) {
    int64_t low = 0;
    int64_t high = text->list.count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (text->first[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

bool carry_text_begins_file(const carry_text *text, int64_t block) {
    return text->first[file_of(text, block)] == block;
}

carry_status carry_text_read(carry_ctx *ctx, const carry_text *text, int64_t block, carry_bytes *bytes,
                             bool *ends_file) {
    int64_t file = file_of(text, block);
    int64_t part = block - text->first[file];
    int64_t start;
    int64_t end;
    CARRY_TRY(find_boundary(ctx, text, file, part, &start));
    CARRY_TRY(find_boundary(ctx, text, file, part + 1, &end));
    *ends_file = block + 1 == text->first[file + 1];
    size_t length = end > start ? (size_t)(end - start) : 0; /* the file may have changed between the two reads */
    if (!carry_list_grow(&bytes->at, &bytes->room, bytes->count, length + 1, 1)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: reading %s", text->list.file[file].path);
    }
    char *to = bytes->at + bytes->count;
    CARRY_TRY(read_part(ctx, text, file, start, to, length));
    CARRY_TRY(refuse_binary(ctx, text, file, to, length));
    bytes->count += length;
    return CARRY_OK;
}

/* Numbers the blocks, and checks the start of every file. */
static carry_status look_at_files(carry_ctx *ctx, carry_text *t) {
    t->first = calloc((size_t)t->list.count + 1, sizeof *t->first);
    if (t->first == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %lld files", (long long)t->list.count);
    }
    for (int64_t i = 0; i < t->list.count; i++) {
        char head[HEAD_BYTES];
        int64_t size = t->list.file[i].bytes;
        size_t length = size < HEAD_BYTES ? (size_t)size : HEAD_BYTES;
        CARRY_TRY(read_part(ctx, t, i, 0, head, length));
        CARRY_TRY(refuse_binary(ctx, t, i, head, length));
        t->bytes += size;
        t->first[i + 1] = t->first[i] + (size + t->options.block_bytes - 1) / t->options.block_bytes;
    }
    return CARRY_OK;
}

carry_status carry_text_open(carry_ctx *ctx, carry_text **text, const char *const *paths, int count,
                             const carry_text_options *options) {
    *text = NULL;
    carry_text *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a text");
    }
    if (options != NULL) {
        made->options = *options;
    }
    made->options.block_bytes = made->options.block_bytes > 0 ? made->options.block_bytes : BLOCK_BYTES;
    carry_status status = CARRY_OK;
    if (made->options.block_bytes < BLOCK_LEAST || made->options.block_bytes > (int64_t)1 << 30) {
        status = carry_fail(ctx, CARRY_EARGUMENT, "blocks of %lld bytes are not between %d and 2^30",
                            (long long)made->options.block_bytes, BLOCK_LEAST);
    }
    status = status == CARRY_OK ? carry_file_list_find(ctx, &made->list, paths, count) : status;
    status = status == CARRY_OK ? look_at_files(ctx, made) : status;
    if (status != CARRY_OK) {
        carry_text_free(made);
        return status;
    }
    *text = made;
    return CARRY_OK;
}

void carry_text_free(carry_text *text) {
    if (text != NULL) {
        carry_file_list_free(&text->list);
        free(text->first);
        free(text);
    }
}

int64_t carry_text_files(const carry_text *text) {
    return text->list.count;
}

int64_t carry_text_bytes(const carry_text *text) {
    return text->bytes;
}

int64_t carry_text_blocks(const carry_text *text) {
    return text->first[text->list.count];
}

const char *carry_text_path(const carry_text *text, int64_t file) {
    return text->list.file[file].path;
}

int64_t carry_text_file_bytes(const carry_text *text, int64_t file) {
    return text->list.file[file].bytes;
}

int64_t carry_text_block_bytes(const carry_text *text, int64_t block) {
    int64_t file = file_of(text, block);
    int64_t rest = text->list.file[file].bytes - (block - text->first[file]) * text->options.block_bytes;
    return rest < text->options.block_bytes ? rest : text->options.block_bytes;
}

uint32_t carry_text_crc(const carry_text *text) {
    uint32_t crc = carry_crc32c(0, &text->options.block_bytes, sizeof text->options.block_bytes);
    for (int64_t i = 0; i < text->list.count; i++) {
        const char *slash = strrchr(text->list.file[i].path, '/');
        const char *name = slash != NULL ? slash + 1 : text->list.file[i].path;
        crc = carry_crc32c(crc, name, strlen(name) + 1);
        crc = carry_crc32c(crc, &text->list.file[i].bytes, sizeof text->list.file[i].bytes);
    }
    return crc;
}
