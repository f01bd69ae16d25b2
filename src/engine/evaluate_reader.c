/* Files, blocks and tokens. */
#include "engine/evaluate_reader.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "tokenizer/tokenizer_internal.h"

carry_status carry_evaluate_reader_open(const carry_evaluate_files *files, carry_evaluate_reader *r) {
    return carry_encoder_new(files->ctx, &r->encoder, files->model->tokenizer);
}

void carry_evaluate_reader_close(carry_evaluate_reader *r) {
    carry_encoder_free(r->encoder);
    carry_ids_free(&r->ids);
    free(r->bytes.at);
    *r = (carry_evaluate_reader){0};
}

/* Begins a file. The tokenizer's start tokens come before its text, or the model's start token if asked for. */
static carry_status begin_file(carry_evaluate_files *files, carry_evaluate_reader *r) {
    const carry_model *model = files->model;
    const int64_t blocks = carry_text_blocks(files->text);
    r->has_file = true;
    r->file = files->next_file++;
    r->block = files->next_block++;
    while (files->next_block < blocks && !carry_text_begins_file(files->text, files->next_block)) {
        files->next_block++;
    }
    r->ids.count = r->at = 0;
    r->is_read = false;
    r->given = r->given_bytes = r->file_bytes = r->first_bytes = 0;
    CARRY_TRY(carry_encode_start(files->ctx, model->tokenizer, &r->ids));
    r->has_start = r->ids.count > 0 || (files->from_start && model->start >= 0);
    if (!r->has_start || r->ids.count > 0) {
        return CARRY_OK;
    }
    if (!carry_list_grow(&r->ids.id, &r->ids.room, 0, 1, sizeof *r->ids.id)) {
        return carry_fail(files->ctx, CARRY_EMEMORY, "out of memory: a token");
    }
    r->ids.id[r->ids.count++] = (uint32_t)model->start;
    return CARRY_OK;
}

static int64_t bytes_of(const carry_model *model, uint32_t id) {
    size_t bytes = 0;
    (void)carry_tokenizer_token(model->tokenizer, (int64_t)id, &bytes);
    return (int64_t)bytes;
}

/* Reads the next block of the file; its tokens are appended to those not yet returned. */
static carry_status read_block(const carry_evaluate_files *files, carry_evaluate_reader *r) {
    const bool begins = carry_text_begins_file(files->text, r->block);
    if (r->at > 0) {
        memmove(r->ids.id, r->ids.id + r->at, (r->ids.count - r->at) * sizeof *r->ids.id);
        r->ids.count -= r->at;
        r->at = 0;
    }
    const size_t before = r->ids.count;
    r->bytes.count = 0;
    CARRY_TRY(carry_text_read(files->ctx, files->text, r->block++, &r->bytes, &r->is_read));
    CARRY_TRY(carry_encode(files->ctx, r->encoder, &r->ids, r->bytes.at, r->bytes.count,
                           begins ? CARRY_SPECIALS_FOUND : CARRY_TEXT_GOES_ON));
    r->file_bytes += (int64_t)r->bytes.count;
    if (begins && r->ids.count > before) {
        r->first_bytes = bytes_of(files->model, r->ids.id[before]);
    }
    return CARRY_OK;
}

static carry_status take_piece(const carry_evaluate_files *files, carry_evaluate_reader *r, int64_t most,
                               carry_evaluate_piece *piece) {
    while (!r->is_read && (int64_t)(r->ids.count - r->at) <= most + 1) { /* one more: is it the last piece? */
        CARRY_TRY(read_block(files, r));
    }
    const int64_t left = r->ids.count > r->at ? (int64_t)(r->ids.count - r->at) - 1 : 0;
    *piece = (carry_evaluate_piece){.id = r->ids.id + r->at,
                                    .count = left < most ? left : most,
                                    .first = r->given,
                                    .ends_file = r->is_read && left <= most};
    for (int64_t i = 0; i < piece->count; i++) {
        piece->bytes += bytes_of(files->model, piece->id[i + 1]);
    }
    r->at += (size_t)piece->count;
    r->given += piece->count;
    r->given_bytes += piece->bytes;
    r->has_file = !piece->ends_file;
    if (piece->ends_file && r->given_bytes > 0) {
        piece->bytes += r->file_bytes - (r->has_start ? 0 : r->first_bytes) - r->given_bytes;
    }
    return CARRY_OK;
}

carry_status carry_evaluate_reader_next(carry_evaluate_files *files, carry_evaluate_reader *r, int64_t most,
                                        carry_evaluate_piece *piece, int64_t *skipped) {
    *piece = (carry_evaluate_piece){0};
    while (piece->count == 0) {
        if (!r->has_file && files->next_block >= carry_text_blocks(files->text)) {
            return CARRY_OK;
        }
        CARRY_TRY(!r->has_file ? begin_file(files, r) : CARRY_OK);
        CARRY_TRY(take_piece(files, r, most, piece));
        *skipped += piece->count == 0 ? 1 : 0;
    }
    return CARRY_OK;
}

carry_status carry_evaluate_longest(const carry_evaluate_files *from, int64_t *longest) {
    carry_evaluate_files files = *from;
    carry_evaluate_reader r = {0};
    carry_evaluate_piece piece;
    int64_t skipped = 0;
    carry_status status = carry_evaluate_reader_open(&files, &r);
    *longest = 1;
    do {
        status = status == CARRY_OK ? carry_evaluate_reader_next(&files, &r, 1 << 20, &piece, &skipped) : status;
        *longest = status == CARRY_OK && r.given > *longest ? r.given : *longest;
    } while (status == CARRY_OK && piece.count > 0);
    carry_evaluate_reader_close(&r);
    return status;
}
