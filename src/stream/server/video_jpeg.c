/* Decodes JPEGs. libjpeg ends the process on an error by default; here a longjmp returns from it. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include "stream/server/video_internal.h"

#define SIDE 16384                 /* maximum width and height in pixels; a larger picture counts as damaged */
#define MEMORY ((size_t)256 << 20) /* maximum bytes of memory for decoding one picture */

typedef struct reading {
    struct jpeg_decompress_struct decompress;
    struct jpeg_error_mgr errors;
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    unsigned char *rgb;
} reading;

static void jump_back(j_common_ptr common) {
    reading *r = common->client_data;
    common->err->format_message(common, r->why);
    longjmp(r->back, 1);
}

/* A libjpeg warning means that data ends early or is damaged: such a frame is not shown. */
static void take_warning(j_common_ptr common, int level) {
    if (level < 0) {
        jump_back(common);
    }
}

static void say_nothing(j_common_ptr common) {
    (void)common;
}

/* Bytes needed for decoding: the picture, and for several scans (progressive) two bytes for each coefficient, which
   libjpeg keeps in memory regardless of max_memory_to_use. */
static size_t memory_of(struct jpeg_decompress_struct *d) {
    size_t bytes = (size_t)d->image_width * d->image_height * 3;
    for (int i = 0; i < d->num_components && jpeg_has_multiple_scans(d); i++) {
        bytes += (size_t)d->comp_info[i].width_in_blocks * d->comp_info[i].height_in_blocks * DCTSIZE2 * sizeof(JCOEF);
    }
    return bytes;
}

static bool decode(reading *r, const carry_jpeg_bytes *jpeg, float *pixels, int width, int height) {
    struct jpeg_decompress_struct *d = &r->decompress;
    if (setjmp(r->back) != 0) {
        return false;
    }
    jpeg_create_decompress(d);
    d->client_data = r;
    jpeg_mem_src(d, jpeg->bytes, (unsigned long)jpeg->size);
    (void)jpeg_read_header(d, TRUE);
    if (d->image_width > SIDE || d->image_height > SIDE) {
        (void)snprintf(r->why, sizeof r->why, "a picture of %u x %u", d->image_width, d->image_height);
        return false;
    }
    if (memory_of(d) > MEMORY) {
        (void)snprintf(r->why, sizeof r->why, "a picture of %u x %u%s needs %zu MB to decode, and may need %zu",
                       d->image_width, d->image_height, jpeg_has_multiple_scans(d) ? " in several scans" : "",
                       memory_of(d) >> 20, MEMORY >> 20);
        return false;
    }
    d->out_color_space = JCS_RGB;
    (void)jpeg_start_decompress(d);
    const size_t row = (size_t)d->output_width * 3;
    r->rgb = malloc(row * d->output_height);
    if (r->rgb == NULL) {
        (void)snprintf(r->why, sizeof r->why, "out of memory: %u x %u", d->output_width, d->output_height);
        return false;
    }
    while (d->output_scanline < d->output_height) {
        JSAMPROW at = r->rgb + row * d->output_scanline;
        (void)jpeg_read_scanlines(d, &at, 1);
    }
    carry_video_scale(pixels, width, height, r->rgb, (int)d->output_width, (int)d->output_height);
    (void)jpeg_finish_decompress(d);
    return true;
}

bool carry_jpeg_decode(const carry_jpeg_bytes *jpeg, float *pixels, int width, int height, char *why, size_t why_size) {
    reading *r = calloc(1, sizeof *r);
    if (r == NULL) {
        (void)snprintf(why, why_size, "out of memory");
        return false;
    }
    r->decompress.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = jump_back;
    r->errors.emit_message = take_warning;
    r->errors.output_message = say_nothing;
    r->decompress.client_data = r;
    const bool is_whole = jpeg->size > 0 && decode(r, jpeg, pixels, width, height);
    (void)snprintf(why, why_size, "%s", is_whole ? "" : jpeg->size > 0 ? r->why : "empty");
    jpeg_destroy_decompress(&r->decompress);
    free(r->rgb);
    free(r);
    return is_whole;
}
