/* Encodes pictures as JPEG. libjpeg ends the process on an error by default; here a longjmp returns from it. */
#include "stream/server/hub_jpeg.h"

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include "core/error.h"
#include "core/memory.h"

#define FIRST_ROOM ((size_t)16 << 10)
#define FULL_COLOUR 90 /* from this quality on, colours keep the full resolution */

struct carry_jpeg {
    struct jpeg_compress_struct compress;
    struct jpeg_error_mgr errors;
    struct jpeg_destination_mgr destination;
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    carry_jpeg_bytes *to;
    unsigned char *row; /* [width, 3] */
    int width, height;
    bool created;
};

static void jump_back(j_common_ptr common) {
    carry_jpeg *jpeg = common->client_data;
    common->err->format_message(common, jpeg->why);
    longjmp(jpeg->back, 1);
}

static void say_nothing(j_common_ptr common) {
    (void)common;
}

static void fail_inside(carry_jpeg *jpeg, const char *why) {
    (void)snprintf(jpeg->why, sizeof jpeg->why, "%s", why);
    longjmp(jpeg->back, 1);
}

static void make_room(carry_jpeg *jpeg, size_t room) {
    unsigned char *grown = realloc(jpeg->to->bytes, room);
    if (grown == NULL) {
        fail_inside(jpeg, "out of memory: the bytes");
    }
    jpeg->to->bytes = grown;
    jpeg->to->room = room;
}

static void start_bytes(j_compress_ptr compress) {
    carry_jpeg *jpeg = compress->client_data;
    if (jpeg->to->room == 0) {
        make_room(jpeg, FIRST_ROOM);
    }
    jpeg->destination.next_output_byte = jpeg->to->bytes;
    jpeg->destination.free_in_buffer = jpeg->to->room;
}

/* libjpeg calls this when the whole buffer is full. Its counters are not valid at that time. */
static boolean more_bytes(j_compress_ptr compress) {
    carry_jpeg *jpeg = compress->client_data;
    size_t full = jpeg->to->room, room;
    if (!carry_size_mul(&room, full, 2)) {
        fail_inside(jpeg, "the bytes have no end");
    }
    make_room(jpeg, room);
    jpeg->destination.next_output_byte = jpeg->to->bytes + full;
    jpeg->destination.free_in_buffer = room - full;
    return TRUE;
}

static void end_bytes(j_compress_ptr compress) {
    carry_jpeg *jpeg = compress->client_data;
    jpeg->to->size = jpeg->to->room - jpeg->destination.free_in_buffer;
}

static void set_up(carry_jpeg *jpeg, int quality) {
    struct jpeg_compress_struct *compress = &jpeg->compress;
    jpeg_create_compress(compress);
    jpeg->created = true;
    compress->dest = &jpeg->destination;
    compress->image_width = (JDIMENSION)jpeg->width;
    compress->image_height = (JDIMENSION)jpeg->height;
    compress->input_components = 3;
    compress->in_color_space = JCS_RGB;
    jpeg_set_defaults(compress);
    jpeg_set_quality(compress, quality, TRUE);
    if (quality >= FULL_COLOUR) {
        compress->comp_info[0].h_samp_factor = 1;
        compress->comp_info[0].v_samp_factor = 1;
    }
}

static unsigned char to_byte(float value) {
    if (!(value > 0.0F)) { /* also catches NaN */
        return 0;
    }
    return value >= 1.0F ? 255 : (unsigned char)lrintf(value * 255.0F);
}

static void encode_rows(carry_jpeg *jpeg, const float *pixels) {
    size_t width = (size_t)jpeg->width, plane = width * (size_t)jpeg->height;
    jpeg_start_compress(&jpeg->compress, TRUE);
    for (int y = 0; y < jpeg->height; y++) {
        const float *from = pixels + (size_t)y * width;
        for (size_t x = 0; x < width; x++) {
            jpeg->row[3 * x] = to_byte(from[x]);
            jpeg->row[3 * x + 1] = to_byte(from[plane + x]);
            jpeg->row[3 * x + 2] = to_byte(from[2 * plane + x]);
        }
        JSAMPROW row = jpeg->row;
        (void)jpeg_write_scanlines(&jpeg->compress, &row, 1);
    }
    jpeg_finish_compress(&jpeg->compress);
}

carry_status carry_jpeg_new(carry_ctx *ctx, carry_jpeg **made, int width, int height, int quality) {
    *made = NULL;
    if (width < 1 || height < 1 || width > CARRY_JPEG_SIDE || height > CARRY_JPEG_SIDE) {
        return carry_fail(ctx, CARRY_EARGUMENT, "pictures of %d x %d pixels: sides of 1 to %d can be JPEGs", width,
                          height, CARRY_JPEG_SIDE);
    }
    if (quality < 1 || quality > 100) {
        return carry_fail(ctx, CARRY_EARGUMENT, "JPEG quality %d is not 1 to 100", quality);
    }
    carry_jpeg *jpeg = calloc(1, sizeof *jpeg);
    if (jpeg == NULL || (jpeg->row = malloc((size_t)width * 3)) == NULL) {
        free(jpeg);
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: encoding pictures of %d x %d pixels", width, height);
    }
    jpeg->width = width;
    jpeg->height = height;
    jpeg->compress.err = jpeg_std_error(&jpeg->errors);
    jpeg->compress.client_data = jpeg;
    jpeg->errors.error_exit = jump_back;
    jpeg->errors.output_message = say_nothing;
    jpeg->destination.init_destination = start_bytes;
    jpeg->destination.empty_output_buffer = more_bytes;
    jpeg->destination.term_destination = end_bytes;
    if (setjmp(jpeg->back) != 0) {
        carry_status status = carry_fail(ctx, CARRY_EUNSUPPORTED, "no JPEG encoder: %s", jpeg->why);
        carry_jpeg_free(jpeg);
        return status;
    }
    set_up(jpeg, quality);
    *made = jpeg;
    return CARRY_OK;
}

void carry_jpeg_free(carry_jpeg *jpeg) {
    if (jpeg == NULL) {
        return;
    }
    if (jpeg->created) {
        jpeg_destroy_compress(&jpeg->compress);
    }
    free(jpeg->row);
    free(jpeg);
}

carry_status carry_jpeg_encode(carry_ctx *ctx, carry_jpeg *jpeg, carry_jpeg_bytes *to, const float *pixels) {
    jpeg->to = to;
    to->size = 0;
    if (setjmp(jpeg->back) != 0) {
        jpeg_abort_compress(&jpeg->compress);
        return carry_fail(ctx, CARRY_EMEMORY, "a picture of %d x %d pixels could not be encoded: %s", jpeg->width,
                          jpeg->height, jpeg->why);
    }
    encode_rows(jpeg, pixels);
    return CARRY_OK;
}
