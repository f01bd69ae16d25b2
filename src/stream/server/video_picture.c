/* Converts uncompressed frames to RGB, and scales RGB to the requested size. */
#include <stdio.h>
#include <stdlib.h>

#include "stream/server/video_internal.h"

void carry_video_scale(float *to, int width, int height, const unsigned char *rgb, int from_width, int from_height) {
    const float by_x = (float)from_width / (float)width;
    const float by_y = (float)from_height / (float)height;
    for (int y = 0; y < height; y++) {
        float fy = ((float)y + 0.5f) * by_y - 0.5f;
        fy = fy < 0.0f ? 0.0f : fy;
        const int y0 = (int)fy < from_height - 1 ? (int)fy : from_height - 1;
        const int y1 = y0 + 1 < from_height ? y0 + 1 : y0;
        const float dy = fy - (float)y0;
        for (int x = 0; x < width; x++) {
            float fx = ((float)x + 0.5f) * by_x - 0.5f;
            fx = fx < 0.0f ? 0.0f : fx;
            const int x0 = (int)fx < from_width - 1 ? (int)fx : from_width - 1;
            const int x1 = x0 + 1 < from_width ? x0 + 1 : x0;
            const float dx = fx - (float)x0;
            for (int c = 0; c < 3; c++) {
                const float a = (float)rgb[3 * (y0 * from_width + x0) + c];
                const float b = (float)rgb[3 * (y0 * from_width + x1) + c];
                const float d = (float)rgb[3 * (y1 * from_width + x0) + c];
                const float e = (float)rgb[3 * (y1 * from_width + x1) + c];
                const float top = a + dx * (b - a);
                const float bottom = d + dx * (e - d);
                to[(c * height + y) * width + x] = (top + dy * (bottom - top)) / 255.0f;
            }
        }
    }
}

static unsigned char to_byte(float value) {
    return (unsigned char)(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value + 0.5f);
}

/* BT.601 with 16 to 235 for black to white, the default of cameras. */
static void put_rgb(unsigned char *rgb, int y, int u, int v) {
    const float light = 1.164383f * (float)(y - 16);
    rgb[0] = to_byte(light + 1.596027f * (float)(v - 128));
    rgb[1] = to_byte(light - 0.391762f * (float)(u - 128) - 0.812968f * (float)(v - 128));
    rgb[2] = to_byte(light + 2.017232f * (float)(u - 128));
}

bool carry_yuyv_decode(const carry_jpeg_bytes *frame, const carry_yuyv *about, float *pixels, int width, int height,
                       char *why, size_t why_size) {
    const size_t needed = (size_t)about->row * (size_t)(about->height - 1) + 2 * (size_t)about->width;
    if (frame->size < needed) {
        (void)snprintf(why, why_size, "%zu bytes, where a frame has %zu", frame->size, needed);
        return false;
    }
    unsigned char *rgb = malloc(3 * (size_t)about->width * (size_t)about->height);
    if (rgb == NULL) {
        (void)snprintf(why, why_size, "out of memory: %d x %d", about->width, about->height);
        return false;
    }
    for (int y = 0; y < about->height; y++) {
        const unsigned char *from = frame->bytes + (size_t)y * (size_t)about->row;
        unsigned char *to = rgb + 3 * (size_t)y * (size_t)about->width;
        for (int x = 0; x < about->width; x += 2, from += 4, to += 6) {
            put_rgb(to, from[0], from[1], from[3]);
            put_rgb(to + 3, from[2], from[1], from[3]);
        }
    }
    carry_video_scale(pixels, width, height, rgb, about->width, about->height);
    free(rgb);
    return true;
}
