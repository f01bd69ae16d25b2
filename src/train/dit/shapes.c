/* Draws shapes, and chooses what to draw. */
#include "train/dit/shapes.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "core/rng.h"

#define SIZE 0.16         /* radius of the circle, relative to the picture's side */
#define SQUARE 0.89       /* half the side of the square, relative to that radius: about the same area */
#define TRIANGLE 0.80     /* inner radius of the triangle */
#define START_SPREAD 0.1  /* largest distance of a start from the middle, relative to the side */
#define BLANKS 0.2        /* fraction of starts that come after an empty chunk */
#define STREAM 0x73686170 /* stream of random numbers */

static const char *const forms[CARRY_SHAPE_FORMS] = {"circle", "square", "triangle"};

static const struct {
    const char *name;
    float rgb[3];
} colours[CARRY_SHAPE_COLOURS] = {
#define X(name, red, green, blue) {#name, {red, green, blue}},
    CARRY_COLOUR_LIST(X)
#undef X
};

static const struct {
    const char *name, *words;
    int step[2];
} directions[CARRY_SHAPE_DIRECTIONS] = {
#define X(name, words, right, down) {#name, words, {right, down}},
    CARRY_DIRECTION_LIST(X)
#undef X
};

const char *carry_shape_form(int form) {
    return form >= 0 && form < CARRY_SHAPE_FORMS ? forms[form] : NULL;
}

const char *carry_shape_colour(int colour, float rgb[3]) {
    if (colour < 0 || colour >= CARRY_SHAPE_COLOURS) {
        return NULL;
    }
    for (int i = 0; rgb != NULL && i < 3; i++) {
        rgb[i] = colours[colour].rgb[i];
    }
    return colours[colour].name;
}

const char *carry_shape_direction(int direction, int step[2]) {
    if (direction < 0 || direction >= CARRY_SHAPE_DIRECTIONS) {
        return NULL;
    }
    for (int i = 0; step != NULL && i < 2; i++) {
        step[i] = directions[direction].step[i];
    }
    return directions[direction].name;
}

const char *carry_shape_caption(char text[CARRY_SHAPE_CAPTION], carry_shape shape) {
    (void)snprintf(text, CARRY_SHAPE_CAPTION, "%s %s %s", colours[shape.colour].name, forms[shape.form],
                   directions[shape.direction].words);
    return text;
}

const char *carry_shape_words(char text[CARRY_SHAPE_WORDS]) {
    size_t used = 0;
    for (int i = 0; i < CARRY_SHAPE_COLOURS; i++) {
        used += (size_t)snprintf(text + used, CARRY_SHAPE_WORDS - used, "%s%s", i > 0 ? " " : "", colours[i].name);
    }
    for (int i = 0; i < CARRY_SHAPE_FORMS; i++) {
        used += (size_t)snprintf(text + used, CARRY_SHAPE_WORDS - used, "%s%s", i > 0 ? " " : "\n", forms[i]);
    }
    used += (size_t)snprintf(text + used, CARRY_SHAPE_WORDS - used, "\nmoving");
    for (int i = 0; i + 1 < CARRY_SHAPE_DIRECTIONS; i++) {
        used += (size_t)snprintf(text + used, CARRY_SHAPE_WORDS - used, " %s", directions[i].name);
    }
    (void)snprintf(text + used, CARRY_SHAPE_WORDS - used, "\n%s\n", directions[CARRY_SHAPE_DIRECTIONS - 1].words);
    return text;
}

/* The distance from the shape's edge; positive outside. */
static double outside(int form, double x, double y, double size) {
    if (form == 0) {
        return sqrt(x * x + y * y) - size;
    }
    if (form == 1) {
        return fmax(fabs(x), fabs(y)) - SQUARE * size;
    }
    return fmax(y, 0.86602540378443865 * fabs(x) - 0.5 * y) - TRIANGLE * size;
}

/* Wraps a coordinate to -side/2 .. side/2. */
static double around(double from, double side) {
    return from - side * floor(from / side + 0.5);
}

void carry_shape_draw(float *pixels, int64_t side, carry_shape shape, double x, double y) {
    static const float ground[3] = CARRY_SHAPE_GROUND;
    const float *rgb = colours[shape.colour].rgb; /* also for CARRY_SHAPE_NOTHING, which covers no pixel */
    const double size = SIZE * (double)side;
    const double reach = 2.0 * size + 1.0;
    for (int64_t row = 0; row < side; row++) {
        const double down = around((double)row + 0.5 - y, (double)side);
        for (int64_t column = 0; column < side; column++) {
            const double right = around((double)column + 0.5 - x, (double)side);
            const bool is_far = shape.form == CARRY_SHAPE_NOTHING || fabs(down) > reach || fabs(right) > reach;
            const double off = is_far ? reach : outside(shape.form, right, down, size);
            const float share = off >= 0.5 ? 0.0f : off <= -0.5 ? 1.0f : (float)(0.5 - off);
            for (int64_t i = 0; i < 3; i++) {
                pixels[(i * side + row) * side + column] = ground[i] + share * (rgb[i] - ground[i]);
            }
        }
    }
}

/* Random number `which` of a video, from 0 to 1. */
static double chance(uint64_t seed, int64_t index, int which) {
    const carry_words words = carry_philox(seed, STREAM, (uint64_t)index << 8 | (uint64_t)(which / 4));
    return (double)words.word[which % 4] * 0x1p-32;
}

static int pick(double chance_of_it, int count) {
    return (int)(chance_of_it * count);
}

carry_shapes_video carry_shapes_video_of(const carry_shapes_options *o, uint64_t seed, int64_t index) {
    const double side = (double)o->side;
    const double near = START_SPREAD * side;
    carry_shapes_video v = {.shape[0] = {.form = pick(chance(seed, index, 0), CARRY_SHAPE_FORMS),
                                         .colour = pick(chance(seed, index, 1), CARRY_SHAPE_COLOURS),
                                         .direction = pick(chance(seed, index, 2), CARRY_SHAPE_DIRECTIONS)},
                            .change = o->frames,
                            .is_start = chance(seed, index, 3) < o->starts,
                            .is_unnamed = chance(seed, index, 4) < o->unnamed};
    const double x = chance(seed, index, 5);
    const double y = chance(seed, index, 6);
    v.x = v.is_start ? 0.5 * side + near * (2.0 * x - 1.0) : side * x;
    v.y = v.is_start ? 0.5 * side + near * (2.0 * y - 1.0) : side * y;
    v.shape[1] = v.shape[0];
    const int64_t chunks = o->frames / o->chunk;
    if (v.is_start && chance(seed, index, 15) < BLANKS && chunks > 1) {
        v.blank = o->chunk;
    } else if (chance(seed, index, 7) < o->changes && chunks > 1) {
        v.change = o->chunk * (1 + pick(chance(seed, index, 8), (int)(chunks - 1)));
        if (chance(seed, index, 9) < 0.5) {
            v.shape[1].form = pick(chance(seed, index, 10), CARRY_SHAPE_FORMS);
        }
        if (chance(seed, index, 11) < 0.5) {
            v.shape[1].colour = pick(chance(seed, index, 12), CARRY_SHAPE_COLOURS);
        }
        if (chance(seed, index, 13) < 0.7) {
            v.shape[1].direction = pick(chance(seed, index, 14), CARRY_SHAPE_DIRECTIONS);
        }
    }
    return v;
}

carry_shape carry_shapes_at(const carry_shapes_options *o, const carry_shapes_video *v, int64_t frame, double *x,
                            double *y) {
    const int *first = directions[v->shape[0].direction].step;
    const int *second = directions[v->shape[1].direction].step;
    if (frame < v->blank) {
        *x = v->x;
        *y = v->y;
        return (carry_shape){.form = CARRY_SHAPE_NOTHING, .direction = v->shape[0].direction};
    }
    /* The move from frame i - 1 to frame i uses the direction of frame i's shape: `first` before the change,
       `second` from it on. A video with a change has no blank frames. */
    const int64_t shown = frame - v->blank;
    const double before = o->speed * (double)(frame < v->change ? shown : v->change - 1);
    const double after = o->speed * (double)(frame < v->change ? 0 : frame - v->change + 1);
    *x = v->x + before * first[0] + after * second[0];
    *y = v->y + before * first[1] + after * second[1];
    return v->shape[frame < v->change ? 0 : 1];
}
